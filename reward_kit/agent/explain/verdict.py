"""Reading what the model answered."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.lenient_json import read_object
from reward_kit.agent.explain.explanation import AUTHORS, Author
from reward_kit.agent.scoring.failures.classify import FAILURE_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_SENTENCE = 600
MOST_TRIED = 30
"""So many braces without an object behind them are passed over, then so many at the end are looked at: each
costs a pass over the text behind it."""
_SAME_FAULT = {
    "called_wrong_tool": "wrong_tool",
    "used_wrong_tool": "wrong_tool",
    "used_wrong_tool_argument": "wrong_arguments",
    "wrong_argument": "wrong_arguments",
    "goal_partially_completed": "partially_completed",
    "took_unintended_action": "unintended_action",
}
"""Names that tau-bench has for the same."""


class Verdict(NamedTuple):
    """Who was at fault, with which kind of fault, and why."""

    author: Author
    fault: str
    sentence: str


def read_verdict(text: str) -> Verdict:
    """The last object in ``text`` that is a verdict, whatever stands around it.

    Raises ``ValueError`` that says what is wrong, in words for the model.
    """
    values = [*_objects(text)]
    if not values:
        raise ValueError("the answer holds no JSON object")
    # Models that think aloud name several before they settle; echoes of the form are not filled in.
    return _verdict(next((value for value in reversed(values) if _is_filled_in(value)), values[-1]))


def _is_filled_in(value: dict[str, Any]) -> bool:
    with suppress(ValueError):
        _verdict(value)
        return True
    return False


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The objects that stand in a text one after the other."""
    position, failed = text.find("{"), 0
    while position >= 0:
        try:
            value, position = read_object(text, position)
        except ValueError:
            position += 1
            failed += 1
            if failed == MOST_TRIED:
                position = max(position, _last_braces(text))
        else:
            yield value
        position = text.find("{", position)


def _last_braces(text: str) -> int:
    """Where the last ``MOST_TRIED`` opening braces begin."""
    position = len(text)
    for _ in range(MOST_TRIED):
        position = max(text.rfind("{", 0, position), 0)
    return position


def _verdict(value: dict[str, Any]) -> Verdict:
    lowered = {str(name).strip().lower(): inner for name, inner in value.items()}
    who = next((lowered[name] for name in ("author", "who", "fault_author") if name in lowered), None)
    author = next((each for each in AUTHORS if _word(who) == each), None)
    if author is None:
        raise ValueError(f'"author" is none of {", ".join(AUTHORS)}')
    kind = _word(next((lowered[name] for name in ("fault", "type", "fault_type") if name in lowered), None))
    kind = _SAME_FAULT.get(kind, kind)
    if kind not in FAILURE_KINDS:
        raise ValueError(f'"fault" is none of {", ".join(FAILURE_KINDS)}')
    why = next(
        (lowered[name] for name in ("sentence", "why", "description", "reason") if name in lowered), ""
    )
    sentence = " ".join(str(why).split())
    if not sentence:
        raise ValueError('"sentence" is missing')
    return Verdict(author, kind, sentence[:LONGEST_SENTENCE])


def _word(value: Any) -> str:
    return str(value).strip().strip(".").lower().replace(" ", "_").replace("-", "_")
