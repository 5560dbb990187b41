"""The first place in which a rollout left the way of the gold actions."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.calls import call_line, json_text
from reward_kit.agent.cut_text import cut
from reward_kit.agent.failures.alignment import Alignment, argument_differences, distance
from reward_kit.agent.failures.rows import DifferingRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reward_kit.agent.calls import ToolCall
    from reward_kit.agent.failures.kinds import ExpectedCall, FailureKind
    from reward_kit.agent.failures.rows import RowDifference

Distance = tuple[int, float]
NOWHERE: Distance = (sys.maxsize, 0.0)

SHOWN_ARGUMENTS = 3
"""So many differing arguments a line names."""
LONGEST_JSON = 120
LONGEST_ANSWER = 200
"""Characters of a value that a line shows."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong first; ``made`` is None where something was never tried, ``expected`` where nothing
    was.
    """

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
    """The earliest fault of a rollout whose final data are not what they should be; None if no call tells.

    What has been made good again is no fault: only calls count that touch one of the differing ``rows``, if
    any does. What was never done comes last.
    """
    order = {id(call): number for number, call in enumerate(tool_calls)}
    missing, surplus = _to_blame(aligned, rows)
    pairs = _pairs(missing, surplus, aligned, order)
    paired = {id(call) for _, call in pairs.values()}
    unpaired = [want for place, want in missing.items() if place not in pairs]
    faults = [*_of_pairs(pairs, aligned, expected, order), *_of_surplus(surplus, paired, unpaired)]
    if faults:
        return min(faults, key=lambda fault: order[id(fault.made)])
    if unpaired:
        return _never_done(unpaired[0], len(missing), tool_calls, expected, stop_reason)
    return _of_order(aligned, expected)


def said(call: ExpectedCall | ToolCall) -> str:
    return call_line(call.name, call.arguments, LONGEST_JSON)


def _to_blame(
    aligned: Alignment, rows: Sequence[RowDifference]
) -> tuple[dict[int, ExpectedCall], list[ToolCall]]:
    """The missing and surplus calls whose rows differ in the end; all of them if no rows are known of any."""
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
    """For each missing call, by position, the call of the same tool that comes closest to it.

    One that changed rows comes before one that was refused: it is what did the harm. An attempt at something
    else, which succeeded later, is none at this.
    """
    pairs: dict[int, tuple[ExpectedCall, ToolCall]] = {}
    names = {want.name for want in missing.values()}
    corrected = {
        id(call): _nearest_later(call, aligned, order) for call in aligned.attempts if call.name in names
    }
    free = [call for call in (*surplus, *aligned.attempts) if call.name in names]
    harmful = {id(call) for call in surplus}
    for place, want in missing.items():
        ranked = [
            (id(call) not in harmful, far, number)
            for number, call in enumerate(free)
            if call.name == want.name
            and ((far := distance(want.arguments, call.arguments)) < corrected.get(id(call), NOWHERE))
        ]
        if ranked:
            closest = free.pop(min(ranked)[-1])
            pairs[place] = want, closest
    return pairs


def _nearest_later(attempt: ToolCall, aligned: Alignment, order: Mapping[int, int]) -> Distance:
    """How far an attempt is from the nearest right call after it: it may have been an attempt at that."""
    return min(
        (
            distance(call.arguments, attempt.arguments)
            for _, call in aligned.matched
            if call.name == attempt.name
            and order[id(call)] > order[id(attempt)]
            and not isinstance(call.arguments, str)
        ),
        default=NOWHERE,
    )


def _of_pairs(
    pairs: Mapping[int, tuple[ExpectedCall, ToolCall]],
    aligned: Alignment,
    expected: Sequence[ExpectedCall],
    order: Mapping[int, int],
) -> Iterator[Fault]:
    for place, (want, made) in pairs.items():
        differences = argument_differences(want.arguments, made.arguments)
        if differences:
            yield Fault("wrong_arguments", f"{want.name}: {_differences(differences)}", made, want)
        else:
            earlier = [
                call
                for position, call in aligned.matched
                if position > place and expected[position].writes and order[id(call)] < order[id(made)]
            ]
            yield _blocked(want, made, earlier)


def _blocked(want: ExpectedCall, made: ToolCall, earlier: Sequence[ToolCall]) -> Fault:
    """The right call, which the tool refused or which changed nothing; ``earlier`` changes should have come
    after it.
    """
    answer = f"{want.name} was {'refused' if made.status != 'ok' else 'without effect'}: {made.content}"
    if earlier:
        detail = f"{earlier[0].name} came before {want.name}; {cut(answer, LONGEST_ANSWER)}"
        return Fault("partially_completed", detail, earlier[0], want)
    return Fault("partially_completed", cut(answer, LONGEST_ANSWER), made, want)


def _of_surplus(
    surplus: Sequence[ToolCall], paired: set[int], unpaired: Sequence[ExpectedCall]
) -> Iterator[Fault]:
    """Calls that nobody asked for: in place of a missing one, or on top of all that was expected."""
    waiting = iter(unpaired)
    for call in surplus:
        if id(call) in paired:
            continue
        want = next(waiting, None)
        if want is None:
            yield Fault("unintended_action", f"nobody asked for {said(call)}", call)
        else:
            yield Fault("wrong_tool", f"expected {said(want)}, got {said(call)}", call, want)


def _never_done(
    want: ExpectedCall,
    missing: int,
    tool_calls: Sequence[ToolCall],
    expected: Sequence[ExpectedCall],
    stop_reason: str,
) -> Fault:
    """Left undone: because a tool ended the conversation, or because nobody went on."""
    wanted = sum(call.writes for call in expected)
    progress = f"{wanted - missing} of {wanted} changes made; missing {said(want)}"
    ending = tool_calls[-1] if stop_reason == "terminal_tool" and tool_calls else None
    if ending is None:
        return Fault("partially_completed", progress, None, want)
    if any(call.name == ending.name for call in expected):
        return Fault("partially_completed", f"{ending.name} came too early: {progress}", ending, want)
    return Fault("unintended_action", f"{ending.name} ended the conversation: {progress}", ending, want)


def _of_order(aligned: Alignment, expected: Sequence[ExpectedCall]) -> Fault | None:
    """All was done, but a change was made before one that should have come earlier."""
    written = [(place, call) for place, call in aligned.matched if expected[place].writes]
    for number, (place, call) in enumerate(written):
        earliest = min((later for later, _ in written[number + 1 :]), default=place)
        if earliest < place:
            want = expected[earliest]
            one, other = (call.name, want.name) if call.name != want.name else (said(call), said(want))
            return Fault("other", f"all expected calls were made, but {one} before {other}", call, want)
    return None


def _differences(differences: Sequence[Mapping[str, Any]]) -> str:
    lines = [_difference(each) for each in differences[:SHOWN_ARGUMENTS]]
    more = len(differences) - SHOWN_ARGUMENTS
    return "; ".join([*lines, *([f"and {more} more"] if more > 0 else [])])


def _difference(difference: Mapping[str, Any]) -> str:
    name = difference["argument"]
    if name is None:
        return f"the arguments are no JSON object: {_short(difference['got'])}"
    if "got" not in difference:
        return f"{name} is missing, expected {_short(difference['expected'])}"
    if "expected" not in difference:
        return f"{name} was not expected, got {_short(difference['got'])}"
    return f"{name}: expected {_short(difference['expected'])}, got {_short(difference['got'])}"


def _short(value: Any) -> str:
    return json_text(value, LONGEST_JSON)
