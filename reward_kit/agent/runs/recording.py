"""Recorded rollouts, for the replay agent and the replay user."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from reward_kit.agent.completion import Message


@dataclass(slots=True, frozen=True)
class Recording:
    """The conversation of one recorded rollout."""

    row_id: str
    index: int
    messages: list[Message]
    path: Path


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
        """Read a ``roll_*.json``, a folder of them (also nested), or a log ``runs/evals/ID.jsonl``.

        Raises ``BundleError`` for a missing or faulty file, and where no rollout is found.
        """
        if source.is_dir():
            recordings = [_read(path) for path in sorted(source.rglob("roll_*.json"))]
        elif source.suffix == ".jsonl":
            recordings = list(_read_log(source))
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
                    remedy="Replay one evaluation's log, runs/evals/ID.jsonl.",
                )
            by_index[recording.index] = recording.path

    def check_rollouts(self, row_id: str, n_rollouts: int) -> None:
        """Raise ``BundleError`` unless rollouts 0 to ``n_rollouts`` - 1 of the row can all be replayed.

        Where a log or folder holds one rollout of the row, it answers for one, whatever its index; a single
        file answers for as many as are asked for.
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

    def messages(self, row_id: str, index: int) -> list[Message]:
        """The messages of a rollout; where only one of its row is recorded, that one, whatever its index."""
        self.check(row_id)
        found = self._by_row[row_id]
        chosen = found if len(found) == 1 else [recording for recording in found if recording.index == index]
        if not chosen:
            indices = {recording.index for recording in found}
            raise BundleError(
                f"rollout {index} of row {row_id} is not recorded there, only {_listed(indices)}",
                place=str(self.source),
            )
        return chosen[0].messages


def _listed(indices: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(indices)))


def _read(path: Path) -> Recording:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"the recording cannot be read: {error}", place=str(path)) from error
    return _recording(_parse(text, str(path)), path, str(path))


def _read_log(log: Path) -> Iterator[Recording]:
    """The rollouts that an evaluation's log names; of one that was run again, the last."""
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"the log cannot be read: {error}", place=str(log)) from error
    entries: dict[tuple[Any, Any], Recording] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{log}:{number}"
        entry = _parse(line, place)
        if not isinstance(entry, dict) or entry.get("kind") != "rollout" or not entry.get("final"):
            continue
        recording = _read(_file_of(entry, log, place))
        entries[recording.row_id, recording.index] = recording
    yield from entries.values()


def _file_of(entry: dict[str, Any], log: Path, place: str) -> Path:
    """The trajectory of a logged rollout: the log lies in ``runs/evals``, files are named from ``runs``."""
    name = entry.get("file")
    if not isinstance(name, str):
        raise BundleError("the entry names no recording", place=place)
    return log.parent.parent / name


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
    return Recording(row_id, index, messages, path)
