"""Compare replayed rollouts with their recordings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.history import INTERRUPTED, NOT_RUN, parse_arguments
from reward_kit.agent.base.text import apart, count, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from reward_kit.agent.base.types import ToolCall
    from reward_kit.agent.store.loading import Recordings
    from reward_kit.agent.store.results import EvaluationResult

SHOWN = 10
"""Rollouts that the report shows."""
LONGEST = 80
"""Characters of an observation that are shown."""
_WORDS = {
    "missing": " is not made any more",
    "added": " was not made before",
    "observation": ": answered {!r}, now {!r}",
    "changes": ": changed {!r}, now {!r}",
    "call": ": made as {!r}, now {!r}",
}


@dataclass(frozen=True, slots=True)
class CallDifference:
    """The first differing tool call; ``call`` counts from 0.

    ``what`` is ``observation`` (what the agent saw), ``changes`` (the rows that the call changed), ``call``
    (another call was made), ``missing`` or ``added``; ``before`` and ``now`` show the difference, shortened.
    """

    call: int
    name: str
    what: str
    before: str
    now: str

    def line(self) -> str:
        """The difference in words."""
        words = _WORDS[self.what].format(self.before, self.now)
        return f"call {self.call + 1}, {self.name}{words}"


@dataclass(frozen=True, slots=True)
class RolloutDifference:
    """A rollout that differs from its recording; rewards are None if not judged."""

    row_id: str
    index: int
    reward_before: float | None
    reward: float | None
    stop_reason_before: str
    stop_reason: str
    call: CallDifference | None
    error: str | None = None

    def line(self) -> str:
        """One line for a person."""
        parts = []
        if self.reward != self.reward_before:
            both = self.reward_before, self.reward
            parts.append(f"reward {' -> '.join('none' if one is None else f'{one:g}' for one in both)}")
        if self.stop_reason != self.stop_reason_before:
            parts.append(f"ended by {self.stop_reason_before} -> {self.stop_reason}")
        if self.call is not None:
            parts.append(self.call.line())
        if self.error:
            parts.append(one_line(self.error))
        return f"{self.row_id} #{self.index + 1}: {'; '.join(parts)}"


@dataclass(frozen=True, slots=True)
class ReplayComparison:
    """An evaluation beside the recording that it played again.

    ``compared`` counts rollouts; ``untold`` those without a recording or a trajectory that can be read.
    """

    source: str
    compared: int
    differences: tuple[RolloutDifference, ...]
    untold: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "different": len(self.differences)}

    def lines(self) -> Iterator[str]:
        """The report for a person, line by line."""
        number = len(self.differences)
        if self.compared and not number:
            yield f"all {count(self.compared, 'rollout')} came out as recorded in {self.source}"
        elif self.compared:
            of = f"{number} of {count(self.compared, 'rollout')}"
            yield f"{of} came out differently from {self.source}:"
        for difference in self.differences[:SHOWN]:
            yield f"  {difference.line()}"
        if number > SHOWN:
            yield f"  and {number - SHOWN} more, all in the results under compared_with"
        if self.untold:
            yield f"{count(self.untold, 'rollout')} not compared: recording or trajectory cannot be read"


def compare_replay(result: EvaluationResult, recordings: Recordings) -> ReplayComparison:
    """Compare each of the rollouts with its recording; trajectories are read one by one."""
    compared = untold = 0
    differences = []
    for outcome in result.outcomes:
        recording = recordings.find_or_none(outcome.row_id, outcome.index)
        record = result.record_or_none(outcome)
        if recording is None or record is None:
            untold += 1
            continue
        compared += 1
        found = RolloutDifference(
            row_id=record.row_id,
            index=record.index,
            reward_before=recording.reward,
            reward=record.reward,
            stop_reason_before=str(recording.stop_reason),
            stop_reason=str(record.stop_reason),
            call=first_difference(recording.tool_calls, record.tool_calls),
            error=record.error if record.error != recording.error else None,
        )
        if found.call or found.reward != found.reward_before or found.stop_reason != found.stop_reason_before:
            differences.append(found)
    return ReplayComparison(str(recordings.source), compared, tuple(differences), untold)


def first_difference(before: Iterable[ToolCall], now: Iterable[ToolCall]) -> CallDifference | None:
    """The first call that differs, of those that ran to their end; None if all are the same."""
    ended = (
        [call for call in calls if call.content not in (INTERRUPTED, NOT_RUN)] for calls in (before, now)
    )
    for number, (old, new) in enumerate(zip_longest(*ended)):
        if new is None:
            return CallDifference(number, old.name, "missing", one_line(old.content, LONGEST), "")
        if old is None:
            return CallDifference(number, new.name, "added", "", one_line(new.content, LONGEST))
        found = _difference(old, new)
        if found is not None:
            return CallDifference(number, new.name, *found)
    return None


def _difference(old: ToolCall, new: ToolCall) -> tuple[str, str, str] | None:
    if (old.name, parse_arguments(old.arguments)) != (new.name, parse_arguments(new.arguments)):
        return "call", *apart(f"{old.name} {old.arguments}", f"{new.name} {new.arguments}")
    if old.content != new.content:
        return "observation", *apart(old.content, new.content)
    if old.changes != new.changes:
        return "changes", *apart(str(old.changes), str(new.changes))
    return None
