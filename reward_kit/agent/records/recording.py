"""Recorded rollouts, for the replay agent and the replay user."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.history import INTERRUPTED, NOT_RUN, written_arguments
from reward_kit.agent.records.evaluation_file import SUFFIX, connect, final_rollouts, sqlite_faults
from reward_kit.errors import BundleError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.base.types import Message
    from reward_kit.agent.rollout.rollout import Rollout


CUT_OFF = frozenset({"max_steps", "timeout", "budget", "agent_error", "user_error", "infrastructure_error"})
"""Stop reasons that nothing in the messages brings about."""

UNFINISHED = (INTERRUPTED, NOT_RUN)


@dataclass(slots=True, frozen=True)
class Observation:
    """A tool call that ran to its end, and what came of it; ``changes`` is None where it was not recorded."""

    name: str
    arguments: dict[str, Any] | str
    content: str
    changes: list[dict[str, Any]] | None = None


@dataclass(slots=True, frozen=True)
class Recording:
    """One recorded rollout: its conversation, and what is known of how it was played and judged.

    ``tool_calls`` are as in the trajectory; ``user`` is the user that took part, ``seed`` the rollout's own.
    What a recording does not tell is None or empty.
    """

    row_id: str
    index: int
    messages: list[Message]
    path: Path
    seed: int | None = None
    user: str | None = None
    reward: float | None = None
    error: str | None = None
    stop_reason: str | None = None
    stop_detail: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def tells_the_end(self) -> bool:
        """Whether the recording tells how the rollout ended."""
        return self.stop_reason is not None

    def observations(self) -> list[Observation]:
        """The calls that ran to their end, in the order in which they ended."""
        return list(observations(self.messages, self.tool_calls))

    def end(self, rollout: Rollout) -> None:
        """End a replay where the recording ends: for the recorded reason, if no message brings it about."""
        if self.stop_reason in CUT_OFF:
            rollout.stop(self.stop_reason, self.stop_detail)  # type: ignore[arg-type]  # one of CUT_OFF
        else:
            rollout.stop("agent_done", "the recording ends here")


class Recordings:
    """Recorded rollouts by row id and index."""

    def __init__(self, recordings: list[Recording], source: Path) -> None:
        self.source = source
        self._is_file = source.suffix == ".json"
        self._by_row: dict[str, list[Recording]] = {}
        for recording in recordings:
            self._by_row.setdefault(recording.row_id, []).append(recording)

    @classmethod
    def load(cls, source: Path) -> Recordings:
        """Read a ``roll_*.json``, a folder of them (also nested), or an evaluation ``runs/evals/NAME.db``.

        Raises ``BundleError`` for a missing or faulty file, and where no rollout is found.
        """
        if source.is_dir():
            recordings = [_read(path) for path in sorted(source.rglob("roll_*.json"))]
        elif source.suffix == SUFFIX:
            recordings = _read_evaluation(source)
        else:
            recordings = [_read(source)]
        if not recordings:
            raise BundleError("no recorded rollouts are there", place=str(source))
        return cls(recordings, source)

    def check(self, row_id: str) -> None:
        """Raise ``BundleError`` where no rollout of the row was recorded, or one more than once."""
        found = self._by_row.get(row_id, [])
        if not found:
            raise BundleError(f"no rollout of row {row_id} is recorded there", place=str(self.source))
        by_index: dict[int, Path] = {}
        for recording in found:
            if recording.index in by_index:
                raise BundleError(
                    f"rollout {recording.index} of row {row_id} is recorded twice, "
                    f"in {by_index[recording.index].name} and {recording.path.name}",
                    place=str(self.source),
                    remedy="Replay one evaluation: runs/evals/NAME.db.",
                )
            by_index[recording.index] = recording.path

    def check_rollouts(self, row_id: str, n_rollouts: int) -> None:
        """Raise ``BundleError`` unless rollouts 0 to ``n_rollouts`` - 1 of the row can all be replayed.

        Where an evaluation or folder holds one rollout of the row, it answers for one, whatever its index; a
        single file answers for as many as are asked for.
        """
        self.check(row_id)
        indices = {recording.index for recording in self._by_row[row_id]}
        if len(indices) == 1 and (n_rollouts == 1 or self._is_file):
            return
        missing = set(range(n_rollouts)) - indices
        if not missing:
            return
        recorded = "1 rollout is" if len(indices) == 1 else f"{len(indices)} rollouts are"
        fault = f"row {row_id}: {recorded} recorded, {n_rollouts} asked for"
        if len(indices) >= n_rollouts:
            fault = f"row {row_id}: rollout {min(missing)} is not recorded, only {_listed(indices)}"
        most = max(min(missing), int(len(indices) == 1))
        remedy = f"Replay at most so many: --n-rollouts {most}." if most else None
        raise BundleError(fault, place=str(self.source), remedy=remedy)

    def with_user(self, row_id: str) -> bool:
        """Whether a user takes part in the row's recorded rollouts, beyond what the row begins with.

        Where a recording does not say, one does: a user without a line to say ends the replay.
        """
        return any(recording.user != "none" for recording in self._by_row.get(row_id, []))

    def find(self, row_id: str, index: int) -> Recording:
        """A recorded rollout; where only one of its row is recorded, that one, whatever its index."""
        self.check(row_id)
        found = self._by_row[row_id]
        chosen = found if len(found) == 1 else [recording for recording in found if recording.index == index]
        if not chosen:
            indices = {recording.index for recording in found}
            raise BundleError(
                f"rollout {index} of row {row_id} is not recorded there, only {_listed(indices)}",
                place=str(self.source),
            )
        return chosen[0]

    def find_or_none(self, row_id: str, index: int) -> Recording | None:
        """As ``find``, but None where there is no such recording."""
        try:
            return self.find(row_id, index)
        except BundleError:
            return None


def observations(
    messages: Sequence[Message], tool_calls: Sequence[Mapping[str, Any]]
) -> Iterator[Observation]:
    """The calls that ran to their end; without ``tool_calls`` as far as the messages tell them."""
    if tool_calls:
        for call in tool_calls:
            if call["content"] not in UNFINISHED:
                yield Observation(call["name"], call["arguments"], call["content"], call.get("changes"))
        return
    asked = {
        call["id"]: call["function"]
        for message in messages
        if message["role"] == "assistant"
        for call in message.get("tool_calls") or ()
    }
    for message in messages:
        function = asked.get(message.get("tool_call_id"))
        if message["role"] == "tool" and function and message["content"] not in UNFINISHED:
            yield Observation(function["name"], written_arguments(function["arguments"]), message["content"])


def _listed(indices: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(indices)))


def _read(path: Path) -> Recording:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"the recording cannot be read: {error}", place=str(path)) from error
    return _recording(_parse(text, str(path)), path, str(path))


def _read_evaluation(file: Path) -> list[Recording]:
    """The rollouts of an evaluation; of one that was run again, the last."""
    try:
        with closing(connect(file)) as connection, sqlite_faults(file):
            return [
                _recording(_parse(text, f"{file}/{rollout}"), file / rollout, f"{file}/{rollout}")
                for rollout, text in final_rollouts(connection)
            ]
    except StorageError as error:
        raise BundleError(f"the recording cannot be read: {error.fault}", place=str(file)) from error


def _parse(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BundleError(f"is not JSON: {error}", place=place) from error


def _recording(data: Any, path: Path, place: str) -> Recording:
    if not isinstance(data, dict):
        raise BundleError("is not a recorded rollout", place=place)
    row_id, index, messages = data.get("row_id"), data.get("index"), data.get("messages")
    if not isinstance(row_id, str) or not isinstance(index, int) or not isinstance(messages, list):
        raise BundleError("is not a recorded rollout: it lacks row_id, index or messages", place=place)
    told = {name: data[name] for name, kind in _TOLD.items() if isinstance(data.get(name), kind)}
    if not all(_is_call(call) for call in told.get("tool_calls", ())):
        del told["tool_calls"]  # the messages tell of them, too
    return Recording(row_id, index, messages, path, **told)


_TOLD: dict[str, Any] = {
    "seed": int,
    "user": str,
    "reward": (int, float),
    "error": str,
    "stop_reason": str,
    "stop_detail": str,
    "tool_calls": list,
}


def _is_call(call: Any) -> bool:
    """Whether this is a tool call as trajectories hold them."""
    return (
        isinstance(call, dict)
        and all(isinstance(call.get(name), str) for name in ("id", "name", "content"))
        and isinstance(call.get("arguments"), dict | str)
    )
