"""Values of gold calls and outputs that an agent cannot know, and facts that agents may ask for."""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING, Any

from reward_kit.agent.checks.findings import Fault
from reward_kit.agent.checks.reach import (
    Answer,
    Reach,
    holds,
    keyed_scalars,
    names_in,
    scalars,
    spoken,
    words,
)
from reward_kit.agent.rows.field_checks import is_reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from reward_kit.agent.bundles.bundle import Task
    from reward_kit.agent.checks.playing import PlayedGold
    from reward_kit.agent.checks.reach import Reader

MOST_NUMBERS, MOST_SUMMED = 400, 16
"""Known numbers of which sums and differences of two are tried; prices of which all sums are."""
_SAYS_NOTHING = frozenset({"[]", "{}", "null", "true", "false", ""})
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ][\d:.+Z-]+)?|\d{1,2}:\d\d(:\d\d)?")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_PRICE = re.compile(r"\d+\.\d+")


async def reach_of(task: Task, gold: PlayedGold, reader: Reader) -> Reach:
    """The values that can be known in a row.

    Tools are called with what the instruction says. If that does not lead to all values of gold, they are
    called with those too, and only answers count that have to do with something that the instruction says.
    """
    said = spoken(task)
    reach = Reach(said.casefold(), names_in(said))
    known = {
        (key, value)
        for action in task.row.actions or ()
        for key, value in keyed_scalars(action.arguments)
        if isinstance(value, str | int) and not isinstance(value, bool)
    }
    stated = {(key, value) for key, value in known if holds(reach.text, str(value).casefold())}
    for some in (stated, known):
        for key, value in sorted(some, key=str):
            reach.learn(key, value)
        await reach.explore(task, reader)
        if some is stated and all(reach.tells(value) for _, value in known - stated):
            break
    else:
        reach.keep_anchored(task)
    for number, call in gold.calls.items():  # what a writing call answers is known as well
        if call.status == "ok" and call.name in reader.writing:
            action = (task.row.actions or ())[number]
            reach.take(Answer(action.name, action.arguments, call.content))
    return reach


def unknown_literals(task: Task, gold: PlayedGold, reach: Reach) -> Iterator[Fault]:
    """Each value of a gold call that neither the instruction nor a tool gives."""
    reported = set[str]()
    earlier: list[str] = []
    for number, action in enumerate(task.row.actions or ()):
        tool = task.registry_of(action.by).tools[action.name]
        offered = words(json.dumps(tool.schema) + tool.description)
        for key, value in keyed_scalars(action.arguments) if not tool.terminal and not action.refused else ():
            shown = str(value)
            parts = words(shown)
            if not (
                shown in reported
                or not _is_checked(key, value)
                or parts <= offered
                or parts <= words(reach.text)
                or reach.tells(value)
                or any(holds(text, shown.casefold()) for text in earlier)
                or any(parts <= words(answer.content) for answer in reach.answers)
            ):
                reported.add(shown)
                text = f"neither the instruction nor a tool gives {key} {shown!r}"
                yield Fault("unknown-literal", f"actions[{number}] ({action.name}): {text}")
        if number in gold.calls and not any(map(is_reference, action.arguments.values())):
            known = all(reach.tells(value) for value in scalars(action.arguments))
            earlier += [gold.calls[number].content.casefold()] * known


def _is_checked(key: str, value: Any) -> bool:
    """True for names and ids: text with a digit or a capital, numbers under a key such as ``seat_id``."""
    if isinstance(value, bool) or value is None or isinstance(value, float):
        return False
    if isinstance(value, int):
        return key.casefold().rpartition("_")[2] in ("id", "ids", "number", "no", "code")
    if _TIME.fullmatch(value) or len(value) > 60 or len(value.split()) > 3:
        return False
    if any(character.isdigit() or character in "@#" for character in value):
        return len(value) > 1 and " " not in value
    return len(value) > 3 and value[0].isupper() and not value.isupper() and value.replace(" ", "").isalpha()


def unknown_outputs(task: Task, gold: PlayedGold, reach: Reach) -> Iterator[Fault]:
    """Each output that is in no answer and, if it is a number, no count, sum or difference of known ones."""
    own = [call.content for call in gold.calls.values() if call.status == "ok"]
    texts = [*own, *(answer.content for answer in reach.answers)]
    plain = "\n".join([reach.text, *texts]).casefold().replace(",", "")
    numbers: set[float] | None = None
    for output in task.row.outputs:
        shown = output.casefold().replace(",", "").strip()
        if shown in plain or words(shown) <= words(plain):
            continue
        figure = shown.strip("$€£ ")
        if _NUMBER.fullmatch(figure):
            if numbers is None:
                numbers = _derived(texts)
            many = len({price for text in own for price in _PRICE.findall(text)}) > MOST_SUMMED
            value = round(float(figure), 2)
            if value in numbers or round(100 * value) in numbers or (many and "." in figure):
                continue
        yield Fault("unknown-output", f"no tool gives {output!r}")


def _derived(texts: Iterable[str]) -> set[float]:
    """Known numbers, differences and sums of two, sums of up to ``MOST_SUMMED`` prices, and small counts."""
    known: dict[float, None] = {}
    for text in texts:
        known |= dict.fromkeys(float(number) for number in _NUMBER.findall(text) if len(number) < 10)
    numbers = [*known][:MOST_NUMBERS]
    sums = {0.0}
    for price in [number for number in numbers if number % 1][:MOST_SUMMED]:
        sums |= {round(one + price, 2) for one in sums}
    pairs = {
        round(value, 2)
        for one, other in itertools.combinations(numbers, 2)
        for value in (one + other, abs(one - other))
    }
    return set(map(float, range(101))) | known.keys() | pairs | sums


def unstated_facts(reach: Reach) -> Iterator[Fault]:
    """Each fact that the agent may ask for instead of one that the instruction gives.

    A tool answers the same to it as another tool to what the instruction says, with no more arguments.
    """
    reported = set[str]()
    by_content: dict[str, list[Answer]] = {}
    for answer in reach.answers:
        if answer.arguments and answer.content not in _SAYS_NOTHING:
            by_content.setdefault(answer.content, []).append(answer)
    for answer, other in itertools.chain(*(itertools.permutations(same, 2) for same in by_content.values())):
        if other.tool == answer.tool or len(other.arguments) > len(answer.arguments):
            continue
        if not all(holds(reach.text, str(value).casefold()) for value in answer.arguments.values()):
            continue
        for name, value in other.arguments.items():
            is_said = words(name.replace("_", " ")) & words(reach.text)
            if name not in reported and not is_said and not holds(reach.text, str(value).casefold()):
                reported.add(name)
                given = " and ".join(answer.arguments)
                text = f"{other.tool} answers to {name} as {answer.tool} does to {given}"
                yield Fault("unstated-fact", f"{text}, and the instruction says nothing of {name}")
