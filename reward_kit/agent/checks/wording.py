"""Wordings that the reward takes too literally, or not literally enough: free text, and short outputs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from reward_kit.agent.checks.findings import Fault
from reward_kit.agent.checks.mutants import with_value
from reward_kit.agent.checks.playing import play_gold
from reward_kit.agent.checks.reach import keyed_scalars
from reward_kit.agent.rewards.checks import is_exact

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reward_kit.agent.base.types import ToolCall
    from reward_kit.agent.checks.mutants import Trials

_FREE = frozenset(
    {
        "body", "comment", "comments", "complaint", "content", "description",
        "details", "feedback", "instructions", "message", "note", "notes",
        "reason", "remark", "remarks", "subject", "summary", "symptoms", "text", "title",
    }
)  # fmt: skip
"""Last words of the names of arguments that agents word as they like."""
_LIMITED = {"enum", "const", "pattern", "format"}
_FIGURE = re.compile(r"\d[\d.,:]*\d|\d")
_PLAIN_NUMBER = re.compile(r"\d+(\.\d+)?")


async def free_texts(trials: Trials) -> AsyncIterator[Fault]:
    """Columns that hold an argument which agents word differently, and that the reward compares."""
    for number in trials.calls_that_write():
        action = trials.actions[number]
        tools = trials.task.registry_of(action.by).tools
        properties = tools[action.name].schema.get("properties", {})
        for key, value in dict(keyed_scalars(action.arguments)).items():
            column = _column_of(trials.gold.calls[number], value)
            if column is None or not _is_free(key, value) or _LIMITED & properties.get(key, {}).keys():
                continue
            other = value[:1].swapcase() + value[1:]
            plan = with_value(trials.plan, number, value, other if other != value else f"{value} X")
            played = await trials.play(plan)
            if played is not None and not trials.is_same(played) and not played.reached:
                text = f"the reward compares {column}, which holds {key} of {action.name}"
                yield Fault("free-text", f"{text}: an agent fails that words it otherwise")


def _is_free(key: str, value: Any) -> bool:
    """True for an argument with such a name, and for a sentence: not a name, an address or a number."""
    if not isinstance(value, str) or not any(map(str.isalpha, value)):
        return False
    words = value.split()
    is_sentence = (
        len(words) > 2 and not any(map(str.isdigit, value)) and not all(one[0].isupper() for one in words)
    )
    return is_sentence or re.split(r"[_\W]+", key.casefold())[-1] in _FREE


def _column_of(call: ToolCall, value: Any) -> str | None:
    """The first ``table.column`` in which the call wrote the value."""
    for change in call.changes:
        for name, written in (change["after"] or {}).items():
            if isinstance(value, str) and written == value:
                return f"{change['table']}.{name}"
    return None


async def loose_outputs(trials: Trials) -> AsyncIterator[Fault]:
    """Outputs that count as said inside another number; none if the reward is exact, as tau-bench's."""
    outputs = trials.task.row.scored_outputs
    answers = [call.content for call in trials.gold.calls.values()]
    answers += [answer.content for answer in trials.reach.answers]
    figures = dict.fromkeys(one for text in answers for one in _FIGURE.findall(text)) if outputs else {}
    for number, output in enumerate(outputs):
        if is_exact(trials.task.reward) or not _PLAIN_NUMBER.fullmatch(output):
            continue
        other = next((one for one in figures if output in one.replace(",", "") and one != output), None)
        if other is None or _is_equal(other, output):
            other = f"1{output}.50" if len(output) < 3 else None
        if other is None:
            continue
        said = [*outputs[:number], other, *outputs[number + 1 :]]
        played = await play_gold(trials.task, trials.base, trials.gold_database, reply="\n".join(said))
        if played.reached:
            yield Fault("loose-output", f"the output {output!r} counts as said in {other!r}")


def _is_equal(figure: str, output: str) -> bool:
    try:
        return float(figure.replace(",", "")) == float(output)
    except ValueError:
        return False
