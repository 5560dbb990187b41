"""The values that an agent can come to know: the instruction, and what reading tools answer to it."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.text import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reward_kit.agent.bundles.bundle import Task
    from reward_kit.agent.database import Database
    from reward_kit.agent.tools.execution import Tool

ROUNDS = 4
"""Times that new values are put into tools: an order leads to a user, a user to other orders, and so on."""
MOST_ANSWERS = 300
"""Answers for one row."""
MOST_OF_TOOL = 60
"""Calls of one tool in one round."""
LONGEST_ID = 64
"""Characters of an answer without JSON that is taken for an id."""
_groups = itertools.count()
_PLURAL = re.compile(r"(_?ids?|s)$")
_NAME = re.compile(r"\b(?:[A-Z]\w{2,}|\w+\d\w*|\d\w+)\b|(?<=[_ ])[a-z]+(?=_)|(?<=_)[a-z]+")
"""Words with a capital or a digit, and the parts of ``ann_lee_1``."""
_WORD = re.compile(r"[^\W_]+")


def names_in(text: str) -> tuple[str, ...]:
    """Words with a capital or a digit, each once."""
    return tuple(dict.fromkeys(_NAME.findall(text)))


class Answer(NamedTuple):
    """A reading call and the text that it answered."""

    tool: str
    arguments: Mapping[str, Any]
    content: str


class Entity(NamedTuple):
    """An object that has an id, in a list of objects or as a member of one; ``group`` are all in there."""

    id: str
    values: Mapping[str, Any]
    group: int


@lru_cache(maxsize=4096)
def words(text: str) -> frozenset[str]:
    """The words and numbers of a text, casefolded."""
    return frozenset(_WORD.findall(text.casefold()))


def spoken(task: Task) -> str:
    """The instruction of the user, and the messages that the agent has at the start."""
    said = [text_of(message.get("content")) for message in task.row.agent_messages]
    return "\n".join([task.sim_user_prompt or "", *said])


@dataclass(slots=True)
class Reader:
    """Calls reading tools on one base; answers are kept. ``writing`` are the tools known to write."""

    base: Database
    writing: set[str]
    answers: dict[str, str | None] = field(default_factory=dict)

    async def read(self, task: Task, tool: Tool, arguments: dict[str, Any]) -> str | None:
        """The answer; None if the tool refuses, fails or writes."""
        key = repr((id(task.registry), tool.name, arguments, task.row.now))
        if key not in self.answers and tool.name not in self.writing:
            with self.base.fork(seed=0, now=task.row.clock()) as scratch:
                result = await task.registry.call(tool.name, arguments, db=scratch)
            if result.changes:
                self.writing.add(tool.name)
            self.answers[key] = result.content if result.status == "ok" and not result.changes else None
        return None if tool.name in self.writing else self.answers[key]


@dataclass(slots=True)
class Reach:
    """The values that can be known in one row, by the keys under which tools answer them.

    ``names`` are tried as texts to search for.
    """

    text: str
    names: tuple[str, ...] = ()
    answers: list[Answer] = field(default_factory=list)
    entities: list[Entity] = field(default_factory=list)
    _values: dict[str, dict[Any, None]] = field(default_factory=dict)

    def tells(self, value: Any) -> bool:
        """True if the instruction has the value, or an answer to a call that does not itself name it."""
        shown = str(value).casefold()
        if holds(self.text, shown):
            return True
        return any(
            holds(answer.content.casefold(), shown) and value not in scalars(answer.arguments)
            for answer in self.answers
        )

    def learn(self, key: str, value: Any) -> None:
        """Note a value that can be given to parameters with a name like ``key``."""
        self._values.setdefault(_stem(key), {})[value] = None

    async def explore(self, task: Task, reader: Reader) -> None:
        """Call the reading tools with all known values, and again with values of their answers."""
        tools = [
            tool
            for tool in task.registry.tools.values()
            if not tool.terminal and "rollout" not in tool.needed
        ]
        made: set[str] = set()
        for _ in range(ROUNDS):
            before = len(made)
            for tool in tools:
                for arguments in itertools.islice(self._fitting(tool, made), MOST_OF_TOOL):
                    if (content := await reader.read(task, tool, arguments)) is not None:
                        self.take(Answer(tool.name, arguments, content))
            if len(made) == before or len(self.answers) > MOST_ANSWERS:
                return

    def _fitting(self, tool: Tool, made: set[str]) -> Iterator[dict[str, Any]]:
        """The calls of a tool, not made so far, of which every argument is known."""
        properties: Mapping[str, Any] = tool.schema.get("properties", {})
        names = [name for name in properties if name in tool.schema.get("required", ())]
        unnamed = self._values.get("", {})
        known = [
            [*self._values.get(_stem(name), {}), *(unnamed if name.endswith("id") else ())]
            or (self.names if properties[name].get("type") == "string" else ())
            for name in names
        ]
        for values in itertools.product(*known):
            arguments = dict(zip(names, values, strict=True))
            key = repr((tool.name, values))
            if key not in made:
                made.add(key)
                yield arguments

    def keep_anchored(self, task: Task) -> None:
        """Forget answers that have no name or number of the instruction, nor follow from such answers."""
        anchors = {word.casefold() for word in _NAME.findall(spoken(task))}
        waiting = [answer for answer in self.answers if answer.arguments]
        kept = [answer for answer in self.answers if not answer.arguments]
        known = set[Any]()
        while found := [
            answer
            for answer in waiting
            if words(answer.content) & anchors
            or known.issuperset(scalars(answer.arguments))
            or any(
                isinstance(value, str) and len(value) > 2 and holds(self.text, value.casefold())
                for value in scalars(answer.arguments)
            )
        ]:
            kept += found
            waiting = [answer for answer in waiting if answer not in found]
            known.update(value for one in found for _, value in _facts(one.content, is_catalogue=False)[0])
        self.answers = kept

    def take(self, answer: Answer) -> None:
        """Note all values of an answer."""
        self.answers.append(answer)
        values, entities = _facts(answer.content, is_catalogue=not answer.arguments)
        for key, value in values:
            self.learn(key, value)
        self.entities += entities


@lru_cache(maxsize=4096)
def _facts(content: str, *, is_catalogue: bool) -> tuple[list[tuple[str, Any]], list[Entity]]:
    """The values of an answer with their keys, and its objects with ids.

    A catalogue is an object of ids by names, from a tool without arguments.
    """
    values: dict[tuple[str, Any], None] = {}
    entities: list[Entity] = []

    def learn(key: str, value: Any) -> None:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            values[key, value] = None

    def walk(key: str, value: Any) -> None:
        group = next(_groups)
        members = value.items() if isinstance(value, dict) else [(key, one) for one in value]
        for name, inner in members:
            if isinstance(inner, dict):
                flat = dict(_flat(inner))
                ids = [str(flat[one]) for one in flat if one.endswith("id")]
                if isinstance(value, dict):
                    ids = [name]
                    learn(key, name)
                entities.extend(Entity(one, flat, group) for one in ids)
            if isinstance(inner, dict | list):
                walk(name, inner)
            else:
                learn(name, inner)

    try:
        parsed = json.loads(content)
    except ValueError:
        parsed = content if len(content) <= LONGEST_ID else None
    walk("", [parsed])
    if is_catalogue and isinstance(parsed, dict):
        for value in parsed.values():
            learn("", value)
    return list(values), entities


def holds(text: str, shown: str) -> bool:
    """True if ``text`` has ``shown`` as whole words: no letter or digit continues it at an end."""
    at = text.find(shown)
    while at >= 0:
        end = at + len(shown)
        if not (text[at - 1 : at].isalnum() and shown[:1].isalnum()) and not (
            text[end : end + 1].isalnum() and shown[-1:].isalnum()
        ):
            return True
        at = text.find(shown, at + 1)
    return False


def scalars(value: Any) -> list[Any]:
    """All values inside of JSON objects and lists."""
    return [inner for _, inner in keyed_scalars(value)]


def keyed_scalars(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """All values inside of JSON objects and lists, each with the nearest key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from keyed_scalars(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from keyed_scalars(inner, key)
    else:
        yield key, value


def _flat(value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The scalars of an object and of the objects in it, but not of lists."""
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from _flat(inner)
        elif not isinstance(inner, list):
            yield name, inner


@lru_cache(maxsize=4096)
def _stem(key: str) -> str:
    """``order`` for ``order_id``, ``orders`` and ``order_ids``."""
    return _PLURAL.sub("", key.casefold().replace("-", "_")) or key.casefold()
