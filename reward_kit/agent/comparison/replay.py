"""Compare replayed rollouts with their recordings."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.history import parse_arguments
from reward_kit.agent.base.text import apart, count, one_line
from reward_kit.agent.records.recording import Observation, Recording, observations
from reward_kit.agent.records.rollout_record import as_json, load_rollout
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from reward_kit.agent.records.outcome import RolloutOutcome
    from reward_kit.agent.records.recording import Recordings
    from reward_kit.agent.records.rollout_record import RolloutRecord

SHOWN = 10
"""Rollouts that the report shows."""
LONGEST = 80
"""Characters of an observation that are shown."""


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

    def to_json(self) -> dict[str, Any]:
        return {**as_json(self), "call": as_json(self.call) if self.call else None}

    def line(self) -> str:
        """One line for a person."""
        parts = []
        if self.reward != self.reward_before:
            parts.append(f"reward {_score(self.reward_before)} -> {_score(self.reward)}")
        if self.stop_reason != self.stop_reason_before:
            parts.append(f"ended by {self.stop_reason_before} -> {self.stop_reason}")
        if self.call is not None:
            parts.append(_described(self.call))
        if self.error:
            parts.append(one_line(self.error))
        return f"{self.row_id} #{self.index + 1}: {'; '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """An evaluation beside the recording that it played again.

    ``compared`` counts rollouts; ``untold`` those whose recording does not say how they ended (a
    conversation and nothing else), and those where it or the trajectory cannot be read.
    """

    source: str
    compared: int
    differences: tuple[RolloutDifference, ...]
    untold: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "compared": self.compared,
            "different": len(self.differences),
            "untold": self.untold,
            "differences": [difference.to_json() for difference in self.differences],
        }

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
            yield f"{count(self.untold, 'rollout')} not compared: the recording does not say how they ended"


def compare_evaluation(
    outcomes: Iterable[RolloutOutcome], folder: Path, recordings: Recordings
) -> Comparison:
    """Compare each of the rollouts with its recording; trajectories are read from ``folder`` one by one."""
    compared = untold = 0
    differences = []
    for outcome in outcomes:
        recording = recordings.find_or_none(outcome.row_id, outcome.index)
        if recording is None or not recording.tells_the_end:
            untold += 1
            continue
        try:
            difference = compare(recording, load_rollout(folder / outcome.file))
        except (StorageError, KeyError, TypeError, AttributeError):  # the latter: written by other hands
            untold += 1
            continue
        compared += 1
        if difference is not None:
            differences.append(difference)
    return Comparison(str(recordings.source), compared, tuple(differences), untold)


def compare(recording: Recording, record: RolloutRecord) -> RolloutDifference | None:
    """What differs between a rollout and its recording; None if nothing does."""
    calls = [as_json(call) for call in record.tool_calls]
    call = first_difference(recording.observations(), list(observations(record.messages, calls)))
    same_end = recording.stop_reason == record.stop_reason and recording.reward == record.reward
    if call is None and same_end:
        return None
    return RolloutDifference(
        row_id=record.row_id,
        index=record.index,
        reward_before=recording.reward,
        reward=record.reward,
        stop_reason_before=recording.stop_reason or "",
        stop_reason=record.stop_reason,
        call=call,
        error=record.error if record.error != recording.error else None,
    )


def first_difference(before: list[Observation], now: list[Observation]) -> CallDifference | None:
    """The first call that differs; None if all are the same."""
    for number, (old, new) in enumerate(zip_longest(before, now)):
        if new is None:
            return CallDifference(number, old.name, "missing", one_line(old.content, LONGEST), "")
        if old is None:
            return CallDifference(number, new.name, "added", "", one_line(new.content, LONGEST))
        found = _difference(old, new)
        if found is not None:
            return CallDifference(number, new.name, *found)
    return None


def _difference(old: Observation, new: Observation) -> tuple[str, str, str] | None:
    if (old.name, parse_arguments(old.arguments)) != (new.name, parse_arguments(new.arguments)):
        return "call", *apart(f"{old.name} {old.arguments}", f"{new.name} {new.arguments}")
    if old.content != new.content:
        return "observation", *apart(old.content, new.content)
    if old.changes is not None and new.changes is not None and old.changes != new.changes:
        return "changes", *apart(str(old.changes), str(new.changes))
    return None


def _score(reward: float | None) -> str:
    return "none" if reward is None else f"{reward:g}"


def _described(call: CallDifference) -> str:
    where = f"call {call.call + 1}, {call.name}"
    if call.what == "missing":
        return f"{where} is not made any more"
    if call.what == "added":
        return f"{where} was not made before"
    noun = {"observation": "answered", "changes": "changed", "call": "made as"}[call.what]
    return f"{where}: {noun} {call.before!r}, now {call.now!r}"
