"""Mutants of a row's gold calls, one dropped, changed, added or moved, and the reward of each."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard

from reward_kit.agent.base.text import cut
from reward_kit.agent.checks.findings import Fault
from reward_kit.agent.checks.playing import PlayedGold, play_gold
from reward_kit.agent.checks.reach import holds, keyed_scalars, words
from reward_kit.agent.database.changes import IGNORED
from reward_kit.agent.rewards.checks import is_exact
from reward_kit.agent.rollout.gold import FAULTY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from reward_kit.agent.base.types import ToolCall
    from reward_kit.agent.bundles.bundle import Task
    from reward_kit.agent.checks.findings import RowAudit
    from reward_kit.agent.checks.reach import Entity, Reach
    from reward_kit.agent.database import Database
    from reward_kit.agent.rows.task_row import Action

Plan = list[tuple[int, "Action"]]
Pool = dict[tuple[str, str], dict[Any, None]]
"""Values of gold arguments in all rows, by tool and key."""
MOST_VALUES, MOST_ALTERNATIVES, MOST_ADDED = 2, 6, 2
_TIME = re.compile(r"\d{4}-\d\d|\d:\d\d")
_CHOICE = re.compile(r"\b(most|least|lowest|highest|cheap\w*|expensive|only|any|original|same|\w{3,}est)\b")


@dataclass(slots=True)
class Trials:
    """Plays mutants of one row against its gold state; ``audit`` counts them."""

    task: Task
    base: Database
    gold_database: Database
    gold: PlayedGold
    writing: set[str]
    reach: Reach
    audit: RowAudit

    @property
    def actions(self) -> Sequence[Action]:
        return self.task.row.actions or ()

    @property
    def plan(self) -> Plan:
        """The gold calls as they are."""
        return list(enumerate(self.actions))

    async def play(self, plan: Plan) -> PlayedGold | None:
        """The result of ``plan``; None if a call cannot be made, or has another status than in gold."""
        played = await play_gold(self.task, self.base, self.gold_database, plan=plan)
        if played.reward is None or played.error:
            return None
        for number, call in played.calls.items():
            meant = self.gold.calls[number].status if number in self.gold.calls else "ok"
            if call.status in FAULTY or call.status != meant:
                return None
        return played

    def is_same(self, played: PlayedGold) -> bool:
        """True if the end state equals gold's, except in columns that the reward ignores."""
        ignored, exact = IGNORED.get() or set(), is_exact(self.task.reward)
        return played.changes.equals(self.gold.changes, ignored, exact=exact)

    def is_refused(self, played: PlayedGold | None) -> TypeGuard[PlayedGold]:
        """True if the end state is another than that of gold, and the reward is less than 1."""
        return played is not None and not self.is_same(played) and not played.reached

    def is_paid(self, played: PlayedGold | None) -> bool:
        """Count a mutant if it ends in another state than gold; True if the reward is 1 for it."""
        if played is None or self.is_same(played):
            return False
        self.audit.mutants += 1
        self.audit.paid += played.reached
        return played.reached

    def calls_that_write(self) -> list[int]:
        """The positions of the gold calls that change data."""
        return [number for number, call in self.gold.calls.items() if call.changes]


async def dropped(trials: Trials) -> AsyncIterator[Fault]:
    """Gold calls that change nothing, and those whose change the reward does not miss."""
    seen: set[str] = set()
    for number, call in trials.gold.calls.items():
        action = trials.actions[number]
        name = f"actions[{number}] ({action.name})"
        key = json.dumps(action.to_json(), sort_keys=True)
        if call.changes:
            rest = [step for step in trials.plan if step[0] != number]
            played = await trials.play(rest)
            if played is not None and trials.is_same(played) and played.reached:
                yield Fault("redundant-gold", f"{name}: the end state is the same without it")
            elif trials.is_paid(played):
                yield Fault("unrewarded-gold", f"{name}: without it the reward is 1 too")
        elif action.name in trials.writing:
            why = "is refused" if call.status == "refused" else "changes nothing"
            yield Fault("redundant-gold", f"{name} {why}: the end state is the same without it")
        elif key in seen:
            yield Fault("repeated-gold", f"{name} is made twice with the same arguments")
        seen.add(key)


async def moved(trials: Trials) -> AsyncIterator[Fault]:
    """Neighbouring writing calls that lead, the other way round, to an end that the reward refuses."""
    for first, second in itertools.pairwise(trials.calls_that_write()):
        plan = trials.plan
        plan.insert(first, plan.pop(second))
        played = await trials.play(plan)
        if trials.is_refused(played):
            names = " before ".join(f"actions[{one}] ({trials.actions[one].name})" for one in (second, first))
            text = f"with {names}, which the tools allow, the reward is {played.reward:g}"
            yield Fault("order-dependence", text)


async def changed(trials: Trials, pool: Pool) -> AsyncIterator[Fault]:
    """Arguments of writing calls that can have another value."""
    for number in trials.calls_that_write():
        action = trials.actions[number]
        for key, value in dict(keyed_scalars(action.arguments)).items():
            for other in _others(pool, trials.reach, action.name, key, value):
                if trials.is_paid(await trials.play(with_value(trials.plan, number, value, other))):
                    text = f"actions[{number}] ({action.name}) with {key} {_shown(other)} instead of "
                    yield Fault("lenient-reward", f"{text}{_shown(value)}: the reward is 1 too")
                    break


async def added(trials: Trials, others: Sequence[Action]) -> AsyncIterator[Fault]:
    """A writing call of another row, or a repeated one, that can be made after the gold calls and is paid."""
    most = trials.audit.mutants + MOST_ADDED
    for action in [*others, *(trials.actions[number] for number in trials.calls_that_write())]:
        if trials.audit.mutants == most:
            return
        plan = [*trials.plan, (len(trials.actions), replace(action, refused=False))]
        if trials.is_paid(await trials.play(plan)):
            arguments = cut(json.dumps(action.arguments, ensure_ascii=False), 120)
            text = f"with the further call {action.name}({arguments}) the reward is 1 too"
            yield Fault("lenient-reward", text)
            return


async def alternatives(trials: Trials) -> AsyncIterator[Fault]:
    """Values of writing calls in whose place another fits the instruction as well, but not the reward."""
    reach = trials.reach
    for number in trials.calls_that_write():
        action = trials.actions[number]
        for key, value in dict.fromkeys(keyed_scalars(action.arguments)):
            if not isinstance(value, str | int) or holds(reach.text, str(value).casefold()):
                continue
            for other in _equals_of(str(value), action, reach)[:MOST_ALTERNATIVES]:
                if not isinstance(value, str) and not other.isdigit():
                    continue
                given = other if isinstance(value, str) else int(other)
                played = await trials.play(with_value(trials.plan, number, value, given))
                if trials.is_refused(played):
                    text = f"actions[{number}] ({action.name}) with {key} {other!r} instead of {value!r}: "
                    text += "nothing in the instruction tells them apart, and the reward is 0"
                    yield Fault("ambiguous", text)
                    break


def _equals_of(value: str, action: Action, reach: Reach) -> list[str]:
    """The ids beside ``value`` that differ from it in nothing that the instruction says."""
    given = {str(one) for _, one in keyed_scalars(action.arguments)}
    beside = [entity for entity in reach.entities if entity.id in given - {value}]
    said = words(reach.text)
    distinguished: dict[str, bool] = {}
    for entity in [one for one in reach.entities if one.id == value]:
        for other in reach.entities:
            if other.group == entity.group and other.id not in given:
                differs = _is_distinguished(entity, other, said, reach.text, beside)
                distinguished[other.id] = differs or distinguished.get(other.id, False)
    return [one for one, differs in distinguished.items() if not differs]


def _is_distinguished(
    entity: Entity, other: Entity, said: frozenset[str], text: str, beside: Sequence[Entity]
) -> bool:
    """True if the instruction, or an object that the call names beside it, prefers one of the two."""
    for key in entity.values.keys() | other.values.keys():
        one, two = entity.values.get(key), other.values.get(key)
        if one == two or {str(one), str(two)} & {entity.id, other.id}:
            continue
        if isinstance(one, bool) or isinstance(two, bool) or _TIME.search(f"{one} {two}"):
            return True  # such as available, or the next flight
        if isinstance(one, int | float) and _CHOICE.search(text):
            return True
        if any(value is not None and words(str(value)) & said for value in (one, two)):
            return True
        if any(near.values.get(key) in (one, two) for near in beside):  # kept, or to be changed
            return True
    return False


def _others(pool: Pool, reach: Reach, tool: str, key: str, value: Any) -> list[Any]:
    """Other values for an argument: those of other rows, of objects beside it, and one close to it."""
    known = [one for one in pool.get((tool, key), {}) if one != value and type(one) is type(value)]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, str):
        groups = {entity.group for entity in reach.entities if entity.id == value}
        beside = {one.id: None for one in reach.entities if one.group in groups and one.id != value}
        return [*known[:MOST_VALUES], *[*beside][:MOST_VALUES], f"{value} X"]
    return [*known[:MOST_VALUES], value + 1] if isinstance(value, int | float) else known[:MOST_VALUES]


def with_value(plan: Plan, number: int, value: Any, other: Any) -> Plan:
    """The plan with another value in the arguments of one call."""
    changed = list(plan)
    action = plan[number][1]
    changed[number] = number, replace(action, arguments=_replaced(action.arguments, value, other))
    return changed


def _replaced(inner: Any, value: Any, other: Any) -> Any:
    if isinstance(inner, dict):
        return {key: _replaced(one, value, other) for key, one in inner.items()}
    if isinstance(inner, list):
        return [_replaced(one, value, other) for one in inner]
    return other if type(inner) is type(value) and inner == value else inner


def _shown(value: Any) -> str:
    return cut(repr(value), 60)


def pool_of(rows: Iterable[Sequence[Action]]) -> Pool:
    """The values of all gold arguments."""
    pool: Pool = {}
    for actions in rows:
        for action in actions:
            for key, value in keyed_scalars(action.arguments):
                pool.setdefault((action.name, key), {})[value] = None
    return pool


# --- free text, and short outputs

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
            if trials.is_refused(played):
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
        for name, written in (change.get("after") or {}).items():
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
