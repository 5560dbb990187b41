"""The calls of a rollout laid beside the gold actions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from reward_kit.agent.bundles.gold_reference import (
    REFERENCE,
    ToNothing,
    arguments_match,
    is_reference,
    resolve_references,
)
from reward_kit.agent.calls import json_text
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from reward_kit.agent.calls import ToolCall
    from reward_kit.agent.failures.kinds import ExpectedCall


COMPARED = 60
"""Characters of a value by which its likeness to another is judged."""


@dataclass(slots=True)
class Alignment:
    """Which call stands for which gold action.

    ``matched`` holds position in the gold actions and call, in the order of the calls. ``missing`` are the
    expected changes that nothing was made of, by position; ``surplus`` the calls that changed rows and stand
    for no gold action; ``attempts`` all other calls that stand for none: refused, failed, or without effect.
    Reads that nobody asked for are no fault, and neither are reads that were left out.
    """

    matched: list[tuple[int, ToolCall]] = field(default_factory=list)
    missing: dict[int, ExpectedCall] = field(default_factory=dict)
    surplus: list[ToolCall] = field(default_factory=list)
    attempts: list[ToolCall] = field(default_factory=list)


def align(tool_calls: Sequence[ToolCall], expected: Sequence[ExpectedCall]) -> Alignment:
    """Match the calls, in their order, with the gold actions; each action is matched once.

    References in gold arguments (``{"$result": ...}``) stand for what the call answered that was matched with
    the action they point to. As long as there is none, they stand for what the action answered in the replay,
    if it is a read (for any value where that is not known); if it is a change, for what the last call of its
    tool answered, and for no value where there is none.
    """
    aligned = Alignment()
    left = dict(enumerate(expected))
    answers: dict[int, str | None] = {
        place: want.answer for place, want in left.items() if want.answer is not None or want.writes
    }
    for call in tool_calls:
        if call.status != "ok":
            aligned.attempts.append(call)
            continue
        wrote = bool(call.changes)
        position = next(
            (
                place
                for place, want in left.items()
                if want.writes == wrote and _stands_for(call, want, answers)
            ),
            None,
        )
        if position is not None:
            del left[position]
            answers[position] = call.content
            aligned.matched.append((position, call))
            continue
        (aligned.surplus if wrote else aligned.attempts).append(call)
        stands_in = {
            place: call.content for place, want in left.items() if want.writes and want.name == call.name
        }
        answers.update(stands_in)
    aligned.missing = {
        place: replace(want, arguments=resolved_arguments(want.arguments, answers))
        for place, want in left.items()
        if want.writes
    }
    return aligned


def resolved_arguments(arguments: Mapping[str, Any], answers: Mapping[int, str | None]) -> dict[str, Any]:
    """The arguments, with every reference replaced that points to one of ``answers`` (by gold position; None
    for an action that was not done).
    """
    return {name: _resolved(value, answers) for name, value in arguments.items()}


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
        for name in _names(expected, made)
        if name not in expected or name not in made or not arguments_match(expected[name], made[name])
    ]


def distance(expected: Mapping[str, Any], made: Mapping[str, Any] | str) -> tuple[int, float]:
    """How far arguments are apart, to be compared: how many differ, then how unlike those are as texts.

    Those that are no JSON object are further than those of which each differs.
    """
    differences = argument_differences(expected, made)
    number = len(expected) + 1 if isinstance(made, str) else len(differences)
    return number, sum(_unlike(each.get("expected"), each.get("got")) for each in differences)


def _unlike(one: Any, other: Any) -> float:
    """From 0 for equal texts to 1 for texts with no character in common."""
    return _unlike_texts(json_text(one)[:COMPARED], json_text(other)[:COMPARED])


@lru_cache(maxsize=4096)
def _unlike_texts(one: str, other: str) -> float:
    return 1 - SequenceMatcher(None, one, other, autojunk=False).ratio()


def _names(expected: Mapping[str, Any], made: Mapping[str, Any]) -> Iterable[str]:
    return dict.fromkeys([*expected, *made])


def _stands_for(call: ToolCall, want: ExpectedCall, answers: Mapping[int, str | None]) -> bool:
    return want.name == call.name and arguments_match(
        resolved_arguments(want.arguments, answers), call.arguments
    )


def _resolved(value: Any, answers: Mapping[int, str | None]) -> Any:
    if is_reference(value):
        path = value[REFERENCE]
        if not isinstance(path, list) or not path or path[0] not in answers:
            return value
        if answers[path[0]] is None:
            return ToNothing(value)
        texts = [answers.get(place) or "" for place in range(path[0] + 1)]
        try:
            return resolve_references({"value": value}, texts)["value"]
        except BundleError:  # the call answered something else than in the replay: any value will do
            return value
    if isinstance(value, dict):
        return resolved_arguments(value, answers)
    if isinstance(value, list):
        return [_resolved(inner, answers) for inner in value]
    return value
