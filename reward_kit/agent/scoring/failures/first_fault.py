"""The first call that differs from the gold actions in a way that matters."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import call_line, cut, json_text
from reward_kit.agent.scoring.failures.alignment import argument_differences, distance
from reward_kit.agent.scoring.failures.rows import DifferingRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reward_kit.agent.base.types import ToolCall
    from reward_kit.agent.scoring.failures.alignment import Alignment, ExpectedCall
    from reward_kit.agent.scoring.failures.classify import FailureKind
    from reward_kit.agent.scoring.failures.rows import RowDifference

INFINITE = (sys.maxsize, 0.0)
SHOWN_ARGUMENTS = 3
"""Differing arguments that a line names."""
LONGEST_JSON = 120
LONGEST_ANSWER = 200


@dataclass(frozen=True, slots=True)
class Fault:
    """The first fault; ``made`` is None if a call was never tried, ``expected`` if none was expected."""

    kind: FailureKind
    detail: str
    made: ToolCall | None = None
    expected: ExpectedCall | None = None


def first_fault(
    tool_calls: Sequence[ToolCall],
    expected: Sequence[ExpectedCall],
    aligned: Alignment,
    rows: Sequence[RowDifference],
    stop_reason: str,
) -> Fault | None:
    """The earliest fault of a rollout whose final data are wrong; None if no call explains it.

    What was corrected later is no fault: only calls count that touch one of the differing ``rows``, if any
    call does. Changes that were never made come last.
    """
    order = {id(call): number for number, call in enumerate(tool_calls)}
    missing, surplus = _relevant(aligned, rows)
    pairs = _pairs(missing, surplus, aligned, order)
    paired = {id(call) for _, call in pairs.values()}
    unpaired = [want for place, want in missing.items() if place not in pairs]
    faults = [
        *_of_pairs(pairs, aligned, expected, order),
        *_of_surplus([call for call in surplus if id(call) not in paired], unpaired),
    ]
    if faults:
        return min(faults, key=lambda fault: order[id(fault.made)])
    if unpaired:
        return _never_done(unpaired[0], len(missing), tool_calls, expected, stop_reason)
    return _of_order(aligned, expected)


def _relevant(
    aligned: Alignment, rows: Sequence[RowDifference]
) -> tuple[dict[int, ExpectedCall], list[ToolCall]]:
    """The missing and surplus calls that touch differing rows; all of them if none is known to."""
    differing = DifferingRows(rows)

    def counts(changes: Sequence[Mapping[str, Any]]) -> bool:
        return not changes or not differing or any(map(differing.touched_by, changes))

    missing = {place: want for place, want in aligned.missing.items() if counts(want.changes)}
    surplus = [call for call in aligned.surplus if counts(call.changes)]
    return (missing, surplus) if missing or surplus else (aligned.missing, aligned.surplus)


def _pairs(
    missing: Mapping[int, ExpectedCall],
    surplus: Sequence[ToolCall],
    aligned: Alignment,
    order: Mapping[int, int],
) -> dict[int, tuple[ExpectedCall, ToolCall]]:
    """For each missing call, by position, the closest call of the same tool.

    A call that changed rows is preferred to a refused one: it did the harm. A failed attempt that is closer
    to a later right call was an attempt at that one.
    """
    pairs: dict[int, tuple[ExpectedCall, ToolCall]] = {}
    names = {want.name for want in missing.values()}
    attempts = [call for call in aligned.attempts if call.name in names]
    nearest = {id(call): _nearest_later(call, aligned, order) for call in attempts}
    free = [*(call for call in surplus if call.name in names), *attempts]
    for place, want in missing.items():
        ranked = [
            (id(call) in nearest, far, number)
            for number, call in enumerate(free)
            if call.name == want.name
            and (far := distance(want.arguments, call.arguments)) < nearest.get(id(call), INFINITE)
        ]
        if ranked:
            pairs[place] = want, free.pop(min(ranked)[-1])
    return pairs


def _nearest_later(attempt: ToolCall, aligned: Alignment, order: Mapping[int, int]) -> tuple[int, float]:
    """The distance of an attempt to the nearest right call after it."""
    return min(
        (
            distance(call.arguments, attempt.arguments)
            for _, call in aligned.matched
            if call.name == attempt.name
            and order[id(call)] > order[id(attempt)]
            and not isinstance(call.arguments, str)
        ),
        default=INFINITE,
    )


def _of_pairs(
    pairs: Mapping[int, tuple[ExpectedCall, ToolCall]],
    aligned: Alignment,
    expected: Sequence[ExpectedCall],
    order: Mapping[int, int],
) -> Iterator[Fault]:
    """Wrong arguments; or the right call, which the tool refused or which had no effect."""
    for place, (want, made) in pairs.items():
        differences = argument_differences(want.arguments, made.arguments)
        if differences:
            detail = f"{want.name}: {_differences(differences)}"
            yield Fault("wrong_arguments", detail, made, want)
            continue
        what = "refused" if made.status != "ok" else "without effect"
        answer = cut(f"{want.name} was {what}: {made.content}", LONGEST_ANSWER)
        for position, call in aligned.matched:
            if position > place and expected[position].writes and order[id(call)] < order[id(made)]:
                detail = f"{call.name} came before {want.name}; {answer}"
                yield Fault("partially_completed", detail, call, want)
                break
        else:
            yield Fault("partially_completed", answer, made, want)


def _of_surplus(surplus: Sequence[ToolCall], unpaired: Sequence[ExpectedCall]) -> Iterator[Fault]:
    """Calls that nobody asked for: in place of missing ones, then on top of what was expected."""
    for number, call in enumerate(surplus):
        if number < len(unpaired):
            want = unpaired[number]
            yield Fault("wrong_tool", f"expected {_line(want)}, got {_line(call)}", call, want)
        else:
            yield Fault("unintended_action", f"nobody asked for {_line(call)}", call)


def _never_done(
    want: ExpectedCall,
    missing: int,
    tool_calls: Sequence[ToolCall],
    expected: Sequence[ExpectedCall],
    stop_reason: str,
) -> Fault:
    """A missing change that no call stands for: a tool ended the conversation, or the agent gave up."""
    wanted = sum(call.writes for call in expected)
    progress = f"{wanted - missing} of {wanted} changes made; missing {_line(want)}"
    ending = tool_calls[-1] if stop_reason == "terminal_tool" and tool_calls else None
    if ending is None:
        return Fault("partially_completed", progress, None, want)
    if any(call.name == ending.name for call in expected):
        return Fault("partially_completed", f"{ending.name} came too early: {progress}", ending, want)
    return Fault("unintended_action", f"{ending.name} ended the conversation: {progress}", ending, want)


def _of_order(aligned: Alignment, expected: Sequence[ExpectedCall]) -> Fault | None:
    """The first change that was made before one that should have come earlier."""
    written = [(place, call) for place, call in aligned.matched if expected[place].writes]
    for number, (place, call) in enumerate(written):
        earliest = min((later for later, _ in written[number + 1 :]), default=place)
        if earliest < place:
            want = expected[earliest]
            one, other = (call.name, want.name) if call.name != want.name else (_line(call), _line(want))
            return Fault("other", f"all expected calls were made, but {one} before {other}", call, want)
    return None


def _line(call: ExpectedCall | ToolCall) -> str:
    return call_line(call.name, call.arguments, LONGEST_JSON)


def _differences(differences: Sequence[Mapping[str, Any]]) -> str:
    lines = [_difference(each) for each in differences[:SHOWN_ARGUMENTS]]
    more = len(differences) - SHOWN_ARGUMENTS
    return "; ".join([*lines, *([f"and {more} more"] if more > 0 else [])])


def _difference(difference: Mapping[str, Any]) -> str:
    name = difference["argument"]
    expected, got = (json_text(difference.get(side), LONGEST_JSON) for side in ("expected", "got"))
    if name is None:
        return f"the arguments are no JSON object: {got}"
    if "got" not in difference:
        return f"{name} is missing, expected {expected}"
    if "expected" not in difference:
        return f"{name} was not expected, got {got}"
    return f"{name}: expected {expected}, got {got}"
