"""The calls of a rollout matched with the gold actions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.gold_reference import (
    REFERENCE,
    ToNothing,
    arguments_match,
    is_reference,
    resolve_references,
)
from reward_kit.agent.base.text import json_text
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reward_kit.agent.base.types import ToolCall

COMPARED = 60
"""Characters of a value whose likeness is measured."""


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A gold action; ``changes`` are the rows that its replay changed, ``writes`` says if there are any.

    ``answer`` is the answer in the replay, None if it differs between rollouts.
    """

    name: str
    arguments: Mapping[str, Any]
    writes: bool
    changes: Sequence[Mapping[str, Any]] = ()
    answer: str | None = None


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
            if (want.name, want.writes) == (call.name, wrote) and arguments_match(
                _resolved(want.arguments, answers), call.arguments
            ):
                del remaining[place]
                answers[place] = call.content
                aligned.matched.append((place, call))
                break
        else:
            (aligned.surplus if wrote else aligned.attempts).append(call)
            for place, want in remaining.items():
                if want.writes and want.name == call.name:
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
    return [
        {
            "argument": name,
            **({"expected": expected[name]} if name in expected else {}),
            **({"got": made[name]} if name in made else {}),
        }
        for name in dict.fromkeys([*expected, *made])
        if name not in expected or name not in made or not arguments_match(expected[name], made[name])
    ]


def distance(expected: Mapping[str, Any], made: Mapping[str, Any] | str) -> tuple[int, float]:
    """A distance between arguments that sorts: how many differ, then how unlike those are as texts.

    Arguments that are no JSON object are further than those of which each differs.
    """
    differences = argument_differences(expected, made)
    number = len(expected) + 1 if isinstance(made, str) else len(differences)
    pairs = [(json_text(each.get("expected")), json_text(each.get("got"))) for each in differences]
    return number, sum(_unlikeness(one[:COMPARED], other[:COMPARED]) for one, other in pairs)


@lru_cache(maxsize=4096)
def _unlikeness(one: str, other: str) -> float:
    """From 0 for equal texts to 1 for texts without a common character."""
    return 1 - SequenceMatcher(None, one, other, autojunk=False).ratio()
