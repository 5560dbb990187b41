"""Reading a dataset: JSON Lines, checked as a whole before anything runs.

One JSON object per line. Blank lines and lines that begin with ``#`` are skipped. An object may be wrapped
over several lines if the later ones are indented (or begin with a closing bracket).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from sys import intern
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.strict_json import MAX_DEPTH, finite, is_too_deep
from reward_kit.agent.base.text import cut
from reward_kit.agent.bundles.files import PREFIX, BundleFiles
from reward_kit.agent.bundles.task_row import (
    FILE_FIELDS,
    MAX_ID_LENGTH,
    TaskRow,
    check_row,
    likely_misspelling,
)
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MAX_FAULTS_SHOWN = 200
_CONTINUES = frozenset(" \t}]")
"""First characters of a line that may continue the row above it."""
_SHARED_LENGTH = 64
"""Characters; shorter texts that many rows repeat are kept once."""
_LARGE_EXPONENT = re.compile(r"\d[eE]\+?\d{3}")
"""1e999 is read as infinity, which JSON cannot hold."""

_ELSEWHERE: dict[str, tuple[type | tuple[type, ...], str]] = {
    "system": (str, "did you mean 'system_prompt'?"),
    "prompt": (str, "did you mean 'initial_messages', or 'sim_user_prompt'?"),
    "messages": (list, "did you mean 'initial_messages'?"),
    "seed": (int, "the random numbers of rollouts are set with --seed"),
    "timeout": ((int, float), "the time of a rollout is --timeout"),
    "model": (str, "the agent's model is --model"),
}
"""Names that other tools have for something that is called otherwise here, or is not set in a row."""


class FaultyBundleError(BundleError):
    """Several faults of one bundle; ``faults`` has one line for each, the message the first of them."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        shown = faults[:MAX_FAULTS_SHOWN]
        if len(faults) > len(shown):
            shown.append(f"… and {len(faults) - len(shown)} more faults")
        super().__init__("\n".join(shown))


class RowFaults:
    """Faults that rows share: one line each, with the first row and the number of others."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], tuple[TaskRow, int]] = {}

    def add(self, row: TaskRow, name: str, fault: str) -> None:
        """Note the fault of the field ``name``."""
        first, count = self._rows.get((name, fault), (row, 0))
        self._rows[name, fault] = first, count + 1

    def lines(self) -> list[str]:
        """``task.jsonl:3: row 'a', field 'toolset': … (also in 2 more rows)``."""
        return [
            f"{first.place}: row {first.id!r}, field {name!r}: {fault}{also_in_more_rows(count - 1)}"
            for (name, fault), (first, count) in self._rows.items()
        ]

    def raise_if_any(self) -> None:
        """Raise ``FaultyBundleError`` if there is a fault."""
        if self._rows:
            raise FaultyBundleError(self.lines())


def also_in_more_rows(count: int) -> str:
    """The end of a message about the first of several rows."""
    return f" (also in {count} more {'row' if count == 1 else 'rows'})" if count else ""


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
            for line, text in _chunks(reader.lines(stream)):
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
    texts: dict[tuple[str, ...], dict[str, str]] = field(default_factory=dict)

    def lines(self, stream: Iterable[bytes]) -> Iterator[tuple[int, str]]:
        """The lines as text, with their numbers from 1."""
        for number, raw in enumerate(stream, 1):
            data = raw
            if number == 1:
                if (kind := _other_kind(raw)) is not None:
                    self.faults.append(f"{self.name}:1: {kind}")
                    return
                data = raw.removeprefix(b"\xef\xbb\xbf")
            try:
                yield number, data.decode().rstrip("\r\n")
            except UnicodeDecodeError as error:
                place = f"{self.name}:{number}:{error.start + 1}"
                self.faults.append(f"{place}: is not UTF-8 text ({error.reason})")

    def read(self, line: int, text: str) -> None:
        """Check one row, whose text begins in ``line``."""
        try:
            data = _parse(text)
        except json.JSONDecodeError as error:
            place = f"{self.name}:{line + error.lineno - 1}:{error.colno}"
            self.faults.append(f"{place}: not valid JSON: {error.msg}{_json_remedy(error)}")
            return
        except (ValueError, RecursionError) as error:
            self.faults.append(f"{self.name}:{line}: not valid JSON: {error}")
            return
        row, faults = check_row(data)
        place = f"{self.name}:{line}"
        row_id = data.get("id") if isinstance(data, dict) else None
        self.faults.extend(_fault_line(place, row_id, name, fault) for name, fault in faults)
        if isinstance(row_id, str):
            self._check_unique(row_id, line)
        if row is not None:
            self._keep(row, place)

    def _check_unique(self, row_id: str, line: int) -> None:
        earlier, same = self.lines_of_ids.setdefault(row_id.casefold(), (line, row_id))
        if earlier == line:
            return
        fault = f"line {earlier} has the same id"
        if same != row_id:
            fault = f"line {earlier} has the id {same!r}, the same folder name where case does not count"
        self.faults.append(_fault_line(f"{self.name}:{line}", row_id, "id", fault))

    def _keep(self, row: TaskRow, place: str) -> None:
        texts = {}
        for name in FILE_FIELDS:
            value = getattr(row, name)
            if value is None or not value.startswith(PREFIX):
                continue
            try:
                texts[name] = self.files.text(value)
            except BundleError as error:
                self.faults.append(_fault_line(place, row.id, name, str(error)))
        key = tuple(getattr(row, name) for name in texts)
        self.rows.append(row.located(place, self.texts.setdefault((*texts, *key), texts)))
        for name, fault in _oddities(row):
            self.oddities.add(row, name, fault)


def _other_kind(beginning: bytes) -> str | None:
    """The kind of a file that is not JSON Lines, by its first bytes."""
    if beginning.startswith((b"\x1f\x8b", b"PK\x03\x04")):
        return "is compressed; unpack it first"
    if beginning.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in beginning[:4]:
        return "is UTF-16 text; save the file as UTF-8"
    return None


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


def _chunks(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Each row's text with the number of its first line."""
    start = 0
    texts: list[str] = []
    for number, text in lines:
        continues = texts and text[:1] in _CONTINUES and text.strip()
        if continues and not (len(texts) == 1 and _is_complete(texts[0])):
            texts.append(text)
            continue
        if texts:
            yield start, "\n".join(texts)
        is_row = text.strip() and not text.lstrip().startswith("#")
        start, texts = number, [text] if is_row else []
    if texts:
        yield start, "\n".join(texts)


def _is_complete(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _parse(text: str) -> Any:
    """The JSON value of ``text``; ``ValueError`` for a value that could not be written again."""
    data = _decoder.decode(text)
    if is_too_deep(data, text):
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    if ("e" in text or "E" in text) and _LARGE_EXPONENT.search(text):
        try:
            json.dumps(data, allow_nan=False)
        except ValueError:
            raise ValueError("a number is too large") from None
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"half a character, {error.object[error.start]!r}") from None
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; keys and short texts that repeat in many rows are the same ``str``."""
    value = {
        intern(name): intern(inner) if inner.__class__ is str and len(inner) < _SHARED_LENGTH else inner
        for name, inner in pairs
    }
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the key {twice!r} twice")
    return value


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=finite)


def _fault_line(place: str, row_id: Any, name: str, fault: str) -> str:
    where = [f"row {cut(row_id, 2 * MAX_ID_LENGTH)!r}"] if isinstance(row_id, str) else []
    where += [f"field {name!r}"] if name else []
    return f"{place}: {', '.join(where)}: {fault}" if where else f"{place}: {fault}"


def _oddities(row: TaskRow) -> Iterator[tuple[str, str]]:
    for name, value in (row.model_extra or {}).items():
        meant = likely_misspelling(name)
        kind, remedy = _ELSEWHERE.get(name, (type(None), None))
        if meant:
            yield name, f"is kept as a field of your own; did you mean {meant!r}?"
        elif remedy is not None and isinstance(value, kind):
            yield name, f"is kept as a field of your own, for the reward; {remedy}"
    if row.system_prompt and any(message["role"] == "system" for message in row.initial_messages):
        yield "system_prompt", "the initial messages have a system message too; the model sees both"
    if not row.initial_messages and row.sim_user_prompt is None:
        yield (
            "initial_messages",
            "there are none, and no 'sim_user_prompt': nobody tells the agent what to do",
        )
