"""The first call that differs from the gold actions in a way that matters.

The calls are matched with the gold actions (``align``); what is missing and what is too much is then weighed
by the rows that differ at the end (``first_fault``).
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import normal
from reward_kit.agent.base.text import call_line, cut, json_text
from reward_kit.agent.rows.field_checks import (
    REFERENCE,
    ToNothing,
    arguments_match,
    is_reference,
    resolve_references,
)
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reward_kit.agent.base.types import ToolCall
    from reward_kit.agent.scoring.failures.classify import FailureKind
    from reward_kit.agent.scoring.failures.row_differences import RowDifference

    Pairs = Mapping[int, tuple["ExpectedCall", ToolCall]]

COMPARED = 60
"""Characters of a value whose likeness is measured."""
SHOWN_ARGUMENTS = 3
"""Differing arguments that a line names."""
LONGEST_JSON = 120
LONGEST_ANSWER = 200


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A gold action; ``changes`` are the rows that its replay changed, ``writes`` says if there are any.

    ``answer`` is the answer in the replay, None if it differs between rollouts. ``by`` is the side that makes
    the call.
    """

    name: str
    arguments: Mapping[str, Any]
    writes: bool
    changes: Sequence[Mapping[str, Any]] = ()
    answer: str | None = None
    by: str = "agent"


@dataclass(slots=True)
class Alignment:
    """The result of matching calls with gold actions.

    ``matched`` holds pairs of a position in the gold actions and a call, in the order of the calls.
    ``missing`` are the expected changes that were not made, by position; ``surplus`` the calls that changed
    rows and match no gold action; ``attempts`` the other calls without a match: refused, failed, or without
    effect. Reads are never missing or surplus.
    """

    matched: list[tuple[int, ToolCall]] = field(default_factory=list)
    missing: dict[int, ExpectedCall] = field(default_factory=dict)
    surplus: list[ToolCall] = field(default_factory=list)
    attempts: list[ToolCall] = field(default_factory=list)


def align(tool_calls: Sequence[ToolCall], expected: Sequence[ExpectedCall]) -> Alignment:
    """Match the calls, in their order, with the gold actions; each action is matched once.

    A reference in gold arguments (``{"$result": ...}``) stands for the answer of the call that matched the
    action it points to. Until there is one: for a read, the answer in the replay (any value if that is not
    known); for a change, the answer of the last call of its tool, and no value without such a call.
    """
    aligned = Alignment()
    remaining = dict(enumerate(expected))
    answers: dict[int, str | None] = {
        place: want.answer for place, want in remaining.items() if want.answer is not None or want.writes
    }
    for call in tool_calls:
        if call.status != "ok":
            aligned.attempts.append(call)
            continue
        wrote = bool(call.changes)
        for place, want in remaining.items():
            if (want.name, want.writes, want.by) == (call.name, wrote, call.by) and arguments_match(
                _resolved(want.arguments, answers), call.arguments
            ):
                del remaining[place]
                answers[place] = call.content
                aligned.matched.append((place, call))
                break
        else:
            (aligned.surplus if wrote else aligned.attempts).append(call)
            for place, want in remaining.items():
                if want.writes and (want.name, want.by) == (call.name, call.by):
                    answers[place] = call.content
    aligned.missing = {
        place: replace(want, arguments=_resolved(want.arguments, answers))
        for place, want in remaining.items()
        if want.writes
    }
    return aligned


def _resolved(value: Any, answers: Mapping[int, str | None]) -> Any:
    """The value with references to ``answers`` replaced (by gold position; None: not done)."""
    if is_reference(value):
        position = value[REFERENCE][0]
        if position not in answers:
            return value
        if answers[position] is None:
            return ToNothing(value)
        texts = [answers.get(place) or "" for place in range(position + 1)]
        try:
            return resolve_references({"value": value}, texts)["value"]
        except BundleError:  # the answer has another form than in the replay: any value will do
            return value
    if isinstance(value, dict):
        return {name: _resolved(inner, answers) for name, inner in value.items()}
    if isinstance(value, list):
        return [_resolved(inner, answers) for inner in value]
    return value


def argument_differences(expected: Mapping[str, Any], made: Mapping[str, Any] | str) -> list[dict[str, Any]]:
    """One ``{"argument", "expected", "got"}`` for each that differs; a side without it is left out.

    Arguments that are no JSON object differ as a whole, under the name None.
    """
    if isinstance(made, str):
        return [{"argument": None, "expected": dict(expected), "got": made}]
    sides = {"expected": expected, "got": made}
    return [
        {"argument": name, **{side: values[name] for side, values in sides.items() if name in values}}
        for name in dict.fromkeys([*expected, *made])
        if name not in expected or name not in made or not arguments_match(expected[name], made[name])
    ]


@lru_cache(maxsize=4096)
def _unlikeness(one: str, other: str) -> float:
    """From 0 for equal texts to 1 for texts without a common character."""
    return 1 - SequenceMatcher(None, one, other, autojunk=False).ratio()


def distance(expected: Mapping[str, Any], made: Mapping[str, Any] | str) -> tuple[int, float]:
    """A distance between arguments that sorts: how many differ, then how unlike those are as texts.

    Arguments that are no JSON object are further than those of which each differs.
    """
    differences = argument_differences(expected, made)
    number = len(expected) + 1 if isinstance(made, str) else len(differences)
    pairs = [(json_text(each.get("expected")), json_text(each.get("got"))) for each in differences]
    return number, sum(_unlikeness(one[:COMPARED], other[:COMPARED]) for one, other in pairs)


@dataclass(frozen=True, slots=True)
class FirstFault:
    """The first fault; ``made`` is None if a call was never tried, ``expected`` if none was expected."""

    kind: FailureKind
    detail: str
    made: ToolCall | None = None
    expected: ExpectedCall | None = None

    @property
    def is_right_call(self) -> bool:
        """True if the expected call was made, but refused or without effect."""
        made, want = self.made, self.expected
        if made is None or want is None or made.name != want.name:
            return False
        return not argument_differences(want.arguments, made.arguments)


def first_fault(
    tool_calls: Sequence[ToolCall],
    expected: Sequence[ExpectedCall],
    rows: Sequence[RowDifference],
    stop_reason: str,
) -> FirstFault | None:
    """The earliest fault of a rollout whose final data are wrong; None if no call explains it.

    A corrected mistake is no fault: only calls count that touch one of the differing ``rows``, if any
    call does. Changes that were never made come last. If the user's call is missing, the right calls after
    it that were refused or without effect are no fault of the agent; an unexpected call of the user
    is named if no other fault is known.
    """
    aligned = align(tool_calls, expected)
    missing, surplus = _relevant(aligned, rows)
    undone = min((place for place, want in missing.items() if want.by == "user"), default=None)
    asked = missing[undone] if undone is not None else None
    missing = {place: want for place, want in missing.items() if want.by == "agent"}
    unasked = next((call for call in surplus if call.by == "user"), None)
    surplus = [call for call in surplus if call.by == "agent"]
    pairs = _pairs(missing, surplus, aligned)
    paired = {call.index for _, call in pairs.values()}
    unpaired = [want for place, want in missing.items() if place not in pairs]
    faults = [
        *_of_pairs(pairs, aligned, expected),
        *_of_surplus([call for call in surplus if call.index not in paired], unpaired),
    ]
    user_is_late = undone is not None and undone < min(missing, default=len(expected))
    if user_is_late:  # what was refused next, or had no effect, was right but for the user
        faults = [fault for fault in faults if not fault.is_right_call]
    if faults:
        return min(faults, key=lambda fault: fault.made.index if fault.made else 0)
    if user_is_late and asked is not None:
        return FirstFault("user_did_not_act", f"the user did not call {_line(asked)}", None, asked)
    if unpaired:
        return _never_done(unpaired[0], len(missing), tool_calls, expected, stop_reason)
    if (fault := _of_order(aligned, expected)) is None and unasked is not None:
        fault = FirstFault("other", f"the user called {_line(unasked)}, which is not expected", unasked)
    return fault


def made_instead(
    tool_calls: Sequence[ToolCall], expected: Sequence[ExpectedCall], rows: Sequence[RowDifference]
) -> dict[int, tuple[ExpectedCall, ToolCall | None]]:
    """The expected changes that are missing, by position, each with the call that was made instead."""
    aligned = align(tool_calls, expected)
    missing, surplus = _relevant(aligned, rows)
    pairs = _pairs(missing, surplus, aligned)
    paired = {call.index for _, call in pairs.values()}
    others = iter([call for call in surplus if call.index not in paired])
    return {place: pairs.get(place) or (want, next(others, None)) for place, want in missing.items()}


def _relevant(
    aligned: Alignment, rows: Sequence[RowDifference]
) -> tuple[dict[int, ExpectedCall], list[ToolCall]]:
    """The missing and surplus calls that touch differing rows; all of them if none is known to."""
    keys: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        keys[row["table"]].add(json.dumps(normal(row["key"])))

    def touches(change: Mapping[str, Any]) -> bool:
        differing = keys.get(change["table"], set())
        key = json.dumps(normal(change.get("key")))
        # A row without a key ("null") may be any row of its table.
        return key in differing or "null" in differing or (key == "null" and bool(differing))

    def counts(changes: Sequence[Mapping[str, Any]]) -> bool:
        return not changes or not rows or any(map(touches, changes))

    missing = {place: want for place, want in aligned.missing.items() if counts(want.changes)}
    surplus = [call for call in aligned.surplus if counts(call.changes)]
    return (missing, surplus) if missing or surplus else (aligned.missing, aligned.surplus)


def _pairs(missing: Mapping[int, ExpectedCall], surplus: Sequence[ToolCall], aligned: Alignment) -> Pairs:
    """For missing calls, by position, the closest call of the same tool; the closest pairs first.

    A call that changed rows is preferred to a refused one: it did the harm. Of missing calls that are as
    close to it, it stands for the one that was not refused.
    """
    free = [*surplus, *aligned.attempts]
    refused = [(one.name, one.by, one.arguments) for one in aligned.attempts]
    tried = {place for place, it in missing.items() if (it.name, it.by, it.arguments) in refused}
    fitting = sorted(
        (not one.changes, distance(want.arguments, one.arguments), place in tried, place, number)
        for place, want in missing.items()
        for number, one in enumerate(free)
        if (one.name, one.by) == (want.name, want.by) and _may_stand_for(one, want, aligned)
    )
    pairs: dict[int, int] = {}
    for *_, place, number in fitting:
        if place not in pairs and number not in pairs.values():
            pairs[place] = number
    return {place: (missing[place], free[number]) for place, number in sorted(pairs.items())}


def _may_stand_for(call: ToolCall, want: ExpectedCall, aligned: Alignment) -> bool:
    """False for a failed attempt that is closer to a right call after it: it was an attempt at that one."""
    return bool(call.changes) or all(
        distance(want.arguments, call.arguments) < distance(right.arguments, call.arguments)
        for _, right in aligned.matched
        if right.name == call.name and right.index > call.index and isinstance(right.arguments, dict)
    )


def _of_pairs(pairs: Pairs, aligned: Alignment, expected: Sequence[ExpectedCall]) -> Iterator[FirstFault]:
    """Wrong arguments; or the right call, which the tool refused or which had no effect."""
    for place, (want, made) in pairs.items():
        if differences := argument_differences(want.arguments, made.arguments):
            yield FirstFault("wrong_arguments", f"{want.name}: {_differences(differences)}", made, want)
            continue
        outcome = "refused" if made.status != "ok" else "without effect"
        answer = cut(f"{want.name} was {outcome}: {made.content}", LONGEST_ANSWER)
        for position, call in aligned.matched:
            if position > place and expected[position].writes and call.index < made.index:
                detail = f"{call.name} came before {want.name}; {answer}"
                yield FirstFault("partially_completed", detail, call, want)
                break
        else:
            yield FirstFault("partially_completed", answer, made, want)


def _of_surplus(surplus: Sequence[ToolCall], unpaired: Sequence[ExpectedCall]) -> Iterator[FirstFault]:
    """Unexpected calls: first those in place of missing ones, then additional ones."""
    for call, want in zip(surplus, unpaired, strict=False):
        yield FirstFault("wrong_tool", f"expected {_line(want)}, got {_line(call)}", call, want)
    for call in surplus[len(unpaired) :]:
        yield FirstFault("unintended_action", f"nobody asked for {_line(call)}", call)


def _never_done(
    want: ExpectedCall,
    missing: int,
    tool_calls: Sequence[ToolCall],
    expected: Sequence[ExpectedCall],
    stop_reason: str,
) -> FirstFault:
    """A missing change that no call stands for: a tool ended the conversation, or the agent gave up."""
    wanted = sum(call.writes for call in expected if call.by == "agent")
    written = sum(bool(call.changes) for call in tool_calls if call.by == "agent")
    progress = f"{min(wanted - missing, written)} of {wanted} changes made; missing {_line(want)}"
    ending = tool_calls[-1] if stop_reason == "terminal_tool" and tool_calls else None
    if ending is None:
        return FirstFault("partially_completed", progress, None, want)
    if any(call.name == ending.name for call in expected):
        return FirstFault("partially_completed", f"{ending.name} came too early: {progress}", ending, want)
    return FirstFault("unintended_action", f"{ending.name} ended the conversation: {progress}", ending, want)


def _of_order(aligned: Alignment, expected: Sequence[ExpectedCall]) -> FirstFault | None:
    """The first change that was made before one that should have come earlier."""
    written = [(place, call) for place, call in aligned.matched if expected[place].writes]
    for number, (place, call) in enumerate(written):
        earliest = min((later for later, _ in written[number + 1 :]), default=place)
        if earliest < place:
            want = expected[earliest]
            one, other = (call.name, want.name) if call.name != want.name else (_line(call), _line(want))
            return FirstFault("other", f"all expected calls were made, but {one} before {other}", call, want)
    return None


def _line(call: ExpectedCall | ToolCall) -> str:
    return call_line(call.name, call.arguments, LONGEST_JSON)


def _differences(differences: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for difference in differences[:SHOWN_ARGUMENTS]:
        name = difference["argument"]
        expected, got = (json_text(difference.get(side), LONGEST_JSON) for side in ("expected", "got"))
        if name is None:
            lines.append(f"the arguments are no JSON object: {got}")
        elif "got" not in difference:
            lines.append(f"{name} is missing, expected {expected}")
        elif "expected" not in difference:
            lines.append(f"{name} was not expected, got {got}")
        else:
            lines.append(f"{name}: expected {expected}, got {got}")
    if len(differences) > SHOWN_ARGUMENTS:
        lines.append(f"and {len(differences) - SHOWN_ARGUMENTS} more")
    return "; ".join(lines)
