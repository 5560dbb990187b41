"""Reading a dataset: JSON Lines, checked as a whole before anything runs.

One JSON object per line. Blank lines and lines that begin with ``#`` are skipped. An object may be wrapped
over several lines if the later ones are indented (or begin with a closing bracket).
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import MISSING, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import from_json

from reward_kit.agent.base.option_values import MAX_ROLLOUTS
from reward_kit.agent.base.strict_json import MAX_DEPTH, finite, is_too_deep
from reward_kit.agent.base.task_row import (
    INJECTED,
    KNOWN_FIELDS,
    FaultyBundleError,
    RowFaults,
    TaskRow,
    parse_time,
)
from reward_kit.agent.base.text import cut
from reward_kit.agent.bundles.files import PREFIX, BundleFiles
from reward_kit.agent.bundles.gold_reference import reference_faults
from reward_kit.agent.bundles.message_check import Fault, message_faults, show
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

MAX_ID_LENGTH = 128

FILE_FIELDS = ("seed_sql", "system_prompt", "sim_user_prompt", "sim_user_template")
"""Fields whose text may be ``file:NAME``, a file beside the dataset."""

RESERVED_IDS = frozenset({"evals", ".bases", ".cache"})
"""Folders of the output directory that do not belong to a row."""

_ID = re.compile(r"[A-Za-z0-9._-]+")
_DOTTED = re.compile(r"\.?[\w-]+(\.[\w-]+)*")
_CONTINUES = (" ", "\t", "}", "]")
"""First characters of a line that continues the row above it."""
_LARGE_EXPONENT = re.compile(r"\d[eE]\+?\d{3}")
"""1e999 is read as infinity, which JSON cannot hold."""

FieldFault = tuple[str, str]
"""(field, fault): ``("actions[2].name", "got 3 (a whole number), expected …")``."""


@dataclass(slots=True)
class Dataset:
    """The rows of a file, in its order, and warnings about oddities that are no faults."""

    rows: list[TaskRow]
    warnings: list[str]


def read_dataset(path: Path, files: BundleFiles) -> Dataset:
    """The rows of ``path``; raises ``BundleError`` with every fault of every row, one line each."""
    reader = _Reader(path.name, files)
    try:
        with path.open("rb") as stream:
            for line, text in _wrapped(reader.lines(stream)):
                reader.read(line, text)
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror}", place=str(path)) from error
    if reader.faults:
        raise FaultyBundleError(reader.faults)
    if not reader.rows:
        raise BundleError("has no rows", place=str(path), remedy="Write one JSON object per line.")
    return Dataset(reader.rows, reader.oddities.lines())


@dataclass(slots=True)
class _Reader:
    """The state of reading one file."""

    name: str
    files: BundleFiles
    rows: list[TaskRow] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    lines_of_ids: dict[str, tuple[int, str]] = field(default_factory=dict)
    oddities: RowFaults = field(default_factory=RowFaults)
    texts: dict[tuple[tuple[str, str], ...], dict[str, str]] = field(default_factory=dict)

    def lines(self, stream: Iterable[bytes]) -> Iterator[tuple[int, str]]:
        """The lines as text, with their numbers from 1."""
        for number, raw in enumerate(stream, 1):
            if number == 1 and raw.startswith((b"\x1f\x8b", b"PK\x03\x04")):
                self.faults.append(f"{self.name}:1: is compressed; unpack it first")
                return
            if number == 1 and (raw.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in raw[:4]):
                self.faults.append(f"{self.name}:1: is UTF-16 text; save the file as UTF-8")
                return
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                place = f"{self.name}:{number}:{error.start + 1}"
                self.faults.append(f"{place}: is not UTF-8 text ({error.reason})")

    def read(self, line: int, text: str) -> None:
        """Check one row, whose text begins in ``line``."""
        place = f"{self.name}:{line}"
        try:
            data = _parse(text)
        except json.JSONDecodeError as error:
            where = f"{self.name}:{line + error.lineno - 1}:{error.colno}"
            self.faults.append(f"{where}: not valid JSON: {error.msg}{_json_remedy(error)}")
            return
        except ValueError as error:
            self.faults.append(f"{place}: not valid JSON: {error}")
            return
        faults = row_faults(data)
        row_id = data.get("id") if isinstance(data, dict) else None
        texts: dict[str, str] = {}
        if isinstance(row_id, str):
            faults += self._id_faults(row_id, line)
            if not faults:
                texts, faults = self._texts(data)
        where = f"row {cut(row_id, 2 * MAX_ID_LENGTH)!r}, " if isinstance(row_id, str) else ""
        for name, fault in faults:
            self.faults.append(f"{place}: {f'{where}field {name!r}: ' if name else ''}{fault}")
        if not faults:
            row = TaskRow.from_json(data, place=place, texts=texts)
            self.rows.append(row)
            for name, fault in _oddities(row):
                self.oddities.add(row, name, fault)

    def _id_faults(self, row_id: str, line: int) -> list[FieldFault]:
        earlier, same = self.lines_of_ids.setdefault(row_id.casefold(), (line, row_id))
        if earlier == line:
            return []
        if same == row_id:
            return [("id", f"line {earlier} has the same id")]
        return [("id", f"line {earlier} has the id {same!r}, the same folder name where case does not count")]

    def _texts(self, data: dict[str, Any]) -> tuple[dict[str, str], list[FieldFault]]:
        """The texts of the ``file:`` fields, shared by all rows that name the same files."""
        named = tuple((name, data[name]) for name in FILE_FIELDS if (data.get(name) or "").startswith(PREFIX))
        faults: list[FieldFault] = []
        if named and named not in self.texts:
            texts = self.texts[named] = {}
            for name, reference in named:
                try:
                    texts[name] = self.files.text(reference)
                except BundleError as error:
                    faults.append((name, str(error)))
        return self.texts.get(named, {}), faults


def _json_remedy(error: json.JSONDecodeError) -> str:
    """Advice for usual mistakes in JSON Lines."""
    rest = error.doc[error.pos : error.pos + 40].lstrip()
    if error.msg == "Extra data" and rest[:1] in ("{", ",", ""):
        return "; write each row as an object on a line of its own, without commas between them"
    if error.msg.startswith("Expecting property name") and rest[:1] == "'":
        return "; JSON has double quotes"
    if error.pos == 0 and rest[:2] in ("//", "/*", "--"):
        return "; a comment begins with #"
    return ""


def _wrapped(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Each row's text with the number of its first line."""
    start = 0
    texts: list[str] = []
    for number, text in lines:
        is_row = bool(text.strip()) and not text.lstrip().startswith("#")
        if texts and is_row and text.startswith(_CONTINUES):
            texts.append(text)
            continue
        if texts:
            yield start, "\n".join(texts)
        start, texts = number, [text] if is_row else []
    if texts:
        yield start, "\n".join(texts)


def _parse(text: str) -> Any:
    """The JSON value of ``text``, equal short texts shared; ``ValueError`` if it is not standard JSON."""
    too_deep = f"nested more than {MAX_DEPTH} levels deep"
    try:
        data = from_json(text, allow_inf_nan=False, cache_strings="all")
    except ValueError as error:
        if "recursion limit" in str(error):
            raise ValueError(too_deep) from None
        json.loads(text, parse_constant=finite)  # its messages say more
        raise ValueError("half a character, such as \\ud800") from None
    if is_too_deep(data, text):
        raise ValueError(too_deep)
    if _LARGE_EXPONENT.search(text):
        json.loads(text, parse_float=finite)
    if isinstance(data, dict) and any(text.count(f'"{name}"') > 1 for name in data):
        json.loads(text, object_pairs_hook=_without_repeats)
    return data


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the key {twice!r} twice")
    return value


def _oddities(row: TaskRow) -> Iterator[FieldFault]:
    for name in row.more:
        if meant := _likely_misspelling(name):
            yield name, f"is kept as a field of your own; did you mean {meant!r}?"
    if row.system_prompt and any(message["role"] == "system" for message in row.initial_messages):
        yield "system_prompt", "the initial messages have a system message too; the model sees both"
    if not row.initial_messages and row.sim_user_prompt is None:
        fault = "there are none, and no 'sim_user_prompt': nobody tells the agent what to do"
        yield "initial_messages", fault


@lru_cache(maxsize=1024)
def _likely_misspelling(name: str) -> str | None:
    plain = name.lower().replace("-", "_").strip("_")
    close = difflib.get_close_matches(plain, KNOWN_FIELDS, n=1, cutoff=0.8)
    return close[0] if close else None


def row_faults(data: Any) -> list[FieldFault]:
    """Every fault of a row (parsed JSON); ``null`` counts as leaving a field out."""
    if not isinstance(data, dict):
        more = "; write each row on a line of its own, without [ and ]" if isinstance(data, list) else ""
        return [("", f"expected a JSON object, got {show(data)}{more}")]
    faults = []
    for name in data.keys() & INJECTED:
        instead = (
            'the start of the conversation is "initial_messages"' if name == "messages" else "choose another"
        )
        faults.append((name, f"is a name that the rollout gives to the reward; {instead}"))
    for name, (fits, expected, checks) in _FIELDS.items():
        value = data.get(name)
        if value is None:
            if KNOWN_FIELDS[name] is MISSING:
                faults.append((name, f"is missing, expected {expected}"))
        elif not fits(value):
            faults.append((name, f"got {show(value)}, expected {expected}"))
        elif checks is not None:
            faults += [(field_name((name, *way)), fault) for way, fault in checks(value)]
    return faults


def field_name(way: tuple[str | int, ...]) -> str:
    """``("actions", 2, "name")`` as messages write it: ``actions[2].name``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in way).lstrip(".")


def _id_faults(value: str) -> Iterator[Fault]:
    if len(value) > MAX_ID_LENGTH:
        yield (), f"has {len(value)} characters, at most {MAX_ID_LENGTH} fit into a folder name"
    elif not _ID.fullmatch(value) or value in {".", ".."}:
        allowed = 'use letters, digits, ".", "_" and "-" (but not "." or "..")'
        yield (), f"{value!r} cannot be a folder name; {allowed}"
    elif value.casefold() in RESERVED_IDS:
        yield (), f"{value!r} is a folder that the output directory uses itself; choose another id"


def _toolset_faults(value: str) -> Iterator[Fault]:
    module, _, attribute = value.partition(":")
    if "/" in value or "\\" in value or value.endswith(".py"):
        stem = value.removesuffix(".py").replace("\\", "/").strip("./").replace("/", ".")
        example = stem if "." in stem else f".{stem}"
        yield (), f"{value!r} is a path; write the import path of the tools module, such as {example!r}"
    elif not _DOTTED.fullmatch(module) or (":" in value and not attribute.isidentifier()):
        yield (), f'{value!r} is not an import path; write one such as ".tools" or "my_task.tools:R"'


def _reward_faults(value: str) -> Iterator[Fault]:
    module, _, function = value.partition(":")
    if not _DOTTED.fullmatch(module) or not function.isidentifier():
        yield (), f'{value!r} does not name a reward; write "module:function", such as ".reward:evaluate"'


def _goal_faults(value: str) -> Iterator[Fault]:
    if value.startswith(PREFIX):
        yield (), "is the SQL itself, not a file"
    elif not value.strip():
        yield (), "is empty; write a query whose first value is true on success"


def _time_faults(value: str) -> Iterator[Fault]:
    try:
        parse_time(value)
    except (ValueError, OverflowError):
        yield (), f'{value!r} is not an ISO 8601 time such as "2025-05-19T09:00:00"'


def _count_faults(value: int) -> Iterator[Fault]:
    if value > MAX_ROLLOUTS:
        yield (), f"is more than {MAX_ROLLOUTS} rollouts"


def _output_faults(values: list[Any]) -> Iterator[Fault]:
    for index, value in enumerate(values):
        if not isinstance(value, str):
            yield (index,), f"got {show(value)}, expected a string"


def _action_faults(actions: list[Any]) -> Iterator[Fault]:
    for index, action in enumerate(actions):
        if not isinstance(action, dict):
            expected = 'an object {"name": "…", "arguments": {…}}'
            yield (index,), f"got {show(action)}, expected {expected}"
            continue
        for name in action.keys() - {"name", "arguments"}:
            is_arguments = name in {"kwargs", "args", "argument", "parameters", "input"}
            remedy = 'write "arguments"' if is_arguments else "leave it out"
            yield (index, name), f'an action has "name" and "arguments" only; {remedy}'
        name, arguments = action.get("name"), action.get("arguments", {})
        if not isinstance(name, str) or not name:
            got = ("is empty" if name == "" else f"got {show(name)}") if "name" in action else "is missing"
            yield (index, "name"), f"{got}, expected the name of a tool"
        if not isinstance(arguments, dict):
            fault = f"got {show(arguments)}, expected an object with the tool's arguments"
            yield (index, "arguments"), fault
        for way, fault in reference_faults(arguments, index):
            yield (index, "arguments", *way), fault


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is kind


def _is_positive(value: Any) -> bool:
    return type(value) is int and value >= 1


class _Field(NamedTuple):
    """The check of one field: the JSON type, in words too, then whatever else holds for its values."""

    fits: Callable[[Any], bool]
    expected: str
    faults: Callable[[Any], Iterable[Fault]] | None = None


_FILE_TEXT = 'text, or "file:NAME" for a file beside the dataset'
_FIELDS = {
    "id": _Field(_is(str), 'a string of letters, digits, ".", "_" and "-"', _id_faults),
    "toolset": _Field(
        _is(str), 'the import path of the tools module, such as "my_task.tools" or ".tools"', _toolset_faults
    ),
    "initial_messages": _Field(_is(list), "a list of messages", message_faults),
    "reward": _Field(_is(str), 'a string "module:function"', _reward_faults),
    "seed_sql": _Field(_is(str), f"SQL {_FILE_TEXT}"),
    "end_goal_sql": _Field(
        _is(str), "the text of a query whose first value is true on success", _goal_faults
    ),
    "system_prompt": _Field(_is(str), _FILE_TEXT),
    "sim_user_prompt": _Field(_is(str), _FILE_TEXT),
    "sim_user_template": _Field(_is(str), f"text with {{instruction}} in it: {_FILE_TEXT}"),
    "n_rollouts": _Field(_is_positive, "a whole number >= 1", _count_faults),
    "actions": _Field(_is(list), 'a list of {"name", "arguments"} objects', _action_faults),
    "outputs": _Field(_is(list), "a list of strings", _output_faults),
    "max_steps": _Field(_is_positive, "a whole number >= 1"),
    "now": _Field(_is(str), 'an ISO 8601 time such as "2025-05-19T09:00:00"', _time_faults),
    "metadata": _Field(_is(dict), "an object"),
    "toolset_outside": _Field(_is(bool), "true if the tools lie outside of the bundle's folder"),
}
