"""Faults that most rollouts of an evaluation share: signs of a broken agent or set-up, not of a weak one."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import as_json
from reward_kit.agent.base.text import count, one_line
from reward_kit.agent.store.evaluation_file import count_failed_calls
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from reward_kit.agent.rollout.outcome import Outcome

REPEATED = 5
"""Equal calls in one rollout that make a loop."""
LONGEST = 160
_CALLS = {
    "invalid_json": "were not valid JSON",
    "invalid_arguments": "had arguments that the tool does not take",
    "unknown_tool": "named a tool that does not exist",
}


@dataclass(frozen=True, slots=True)
class SharedFault:
    """A fault that ``rollouts`` of the ``of`` finished ones have, in words."""

    kind: str
    rollouts: int
    of: int
    text: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        found: dict[str, Any] = as_json(self)
        return found


def has_begun(outcomes: Sequence[Outcome]) -> bool:
    """True if any rollout got as far as a call or a reply, or none has finished."""
    return not outcomes or any(one.steps for one in outcomes)


def shared_faults(outcomes: Sequence[Outcome], path: Path) -> list[SharedFault]:
    """The faults that at least half of the finished ``outcomes`` share, read from the evaluation's file."""
    found = [*_errors(outcomes), *_endless_users(outcomes)]
    with suppress(StorageError):  # shared without its trajectories
        found += _calls(outcomes, path)
    return [one for one in found if 2 * one.rollouts >= one.of]


def _errors(outcomes: Sequence[Outcome]) -> Iterator[SharedFault]:
    ended = Counter(
        one.error or one.stop_detail or ""
        for one in outcomes
        if one.stop_reason.endswith("_error") or one.error
    )
    for text, rollouts in ended.most_common(1):
        of = len(outcomes)
        if text and rollouts > 1:
            said = one_line(text, LONGEST)
            yield SharedFault("same_error", rollouts, of, f"{_of(rollouts, of)} ended with {said}")


def _endless_users(outcomes: Sequence[Outcome]) -> Iterator[SharedFault]:
    """Rollouts out of steps or time in which the simulated user was answered in at least every third step."""
    late = [
        one for one in outcomes if one.stop_reason in ("max_steps", "timeout") and one.user_faults is not None
    ]
    endless = sum(one.turns > 1 and 3 * one.turns >= one.steps for one in late)
    if endless:
        text = f"{_of(endless, len(outcomes))} reached a limit because the user never ended the conversation"
        yield SharedFault("endless_user", endless, len(outcomes), text)


def _calls(outcomes: Sequence[Outcome], path: Path) -> Iterator[SharedFault]:
    of = len(outcomes)
    if not any(one.failure for one in outcomes):
        return
    for kind, calls, rollouts, example in count_failed_calls(path, REPEATED):
        example = one_line(example, LONGEST)
        if kind == "repeated_call":
            text = f"{_of(rollouts, of)} made one call again and again, up to {calls} times: {example}"
        else:
            text = f"{count(calls, 'call')} in {_of(rollouts, of)} {_CALLS[kind]}: {example}"
        yield SharedFault(kind, rollouts, of, text)


def _of(rollouts: int, of: int) -> str:
    return f"{rollouts} of {count(of, 'rollout')}"
