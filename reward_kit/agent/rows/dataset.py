"""Reading a dataset: JSON Lines, checked as a whole before anything runs.

One JSON object per line. Blank lines and lines that begin with ``#`` are skipped. An object may be wrapped
over several lines if the later ones are indented (or begin with a closing bracket). The first object may give
fields to all rows that lack them::

    {"defaults": {"toolset": ".tools", "system_prompt": "file:policy.md"}}
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from reward_kit.agent.base.encoding import finite, without_repeats
from reward_kit.agent.base.files import write_file
from reward_kit.agent.base.text import FILE, closest, cut
from reward_kit.agent.rows.field_checks import MAX_ID_LENGTH, show
from reward_kit.agent.rows.task_row import (
    KNOWN_FIELDS,
    FaultyBundleError,
    FaultyRowError,
    FieldFault,
    RowFaults,
    TaskRow,
)
from reward_kit.errors import BundleError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from reward_kit.agent.bundles.files import BundleFiles


FILE_FIELDS = ("seed_sql", "system_prompt", "sim_user_prompt", "sim_user_template", "ticket")
"""Fields whose text may be ``file:NAME``, a file beside the dataset."""

_CONTINUES = (b" ", b"\t", b"}", b"]")
"""First characters of a line that continues the row above it."""
DEFAULTS = "defaults"
FORM = "a row is one JSON object on its own line, in UTF-8, with double quotes (a comment begins with #)"
_LARGE_EXPONENT = re.compile(rb"\d[eE]\+?\d{3}")
_PLACE = re.compile(r" at line (\d+) column (\d+)$")


@dataclass(slots=True)
class Dataset:
    """The rows of a file, in its order, their defaults, and warnings about oddities that are no faults."""

    rows: list[TaskRow]
    warnings: list[str]
    defaults: dict[str, Any]


def read_dataset(path: Path, files: BundleFiles) -> Dataset:
    """The rows of ``path``; raises ``BundleError`` with every fault of every row, one line each."""
    reader = _Reader(path.name, files)
    try:
        with path.open("rb") as stream:
            if stream.peek(2)[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise BundleError("is UTF-16 text", place=str(path), remedy="Save the file as UTF-8.")
            for line, text in row_texts(stream):
                reader.read(line, text)
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror}", place=str(path)) from error
    if reader.faults:
        raise FaultyBundleError(reader.faults)
    if not reader.rows:
        raise BundleError("has no rows", place=str(path), remedy="Write one JSON object per line.")
    return Dataset(reader.rows, reader.oddities.lines(), reader.defaults or {})


def row_texts(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Each row's text with the number of its first line, from 1."""
    start = 0
    texts: list[bytes] = []
    for number, line in enumerate(lines, 1):
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        is_row = text.strip() and not text.lstrip().startswith(b"#")
        if texts and is_row and text.startswith(_CONTINUES):
            texts.append(text)
            continue
        if texts:
            yield start, b"".join(texts).rstrip()
        start, texts = number, [text] if is_row else []
    if texts:
        yield start, b"".join(texts).rstrip()


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
    defaults: dict[str, Any] | None = None
    """Fields of rows that lack them; None before the first object of the file."""

    def read(self, line: int, text: bytes) -> None:
        """Check one row, whose text begins in ``line``."""
        place = f"{self.name}:{line}"
        try:
            data = _parsed(text)
        except ValueError as error:
            if found := _PLACE.search(str(error)):
                place = f"{self.name}:{line + int(found[1]) - 1}:{found[2]}"
            self.faults.append(f"{place}: not valid JSON: {_PLACE.sub('', str(error))}; {FORM}")
            return
        if isinstance(data, dict) and data.keys() == {DEFAULTS}:
            self._read_defaults(data[DEFAULTS], place)
            return
        self.defaults = self.defaults or {}
        if isinstance(data, dict):
            data = self.defaults | {k: v for k, v in data.items() if v is not None or k not in self.defaults}
        fields = data if isinstance(data, dict) else {}
        row_id = fields.get("id")
        texts, faults = self._texts(fields)
        if isinstance(row_id, str):
            faults += self._id_faults(row_id, line)
        try:
            row = TaskRow.from_json(data, place=place, texts=texts)
        except FaultyRowError as error:
            faults = [*error.faults, *faults]
        if not faults:
            self.rows.append(row)
            for name, fault in _oddities(row):
                self.oddities.add(row, name, fault)
            return
        where = f"row {cut(row_id, 2 * MAX_ID_LENGTH)!r}, " if isinstance(row_id, str) else ""
        for name, fault in faults:
            self.faults.append(f"{place}: {f'{where}field {name!r}: ' if name else ''}{fault}")

    def _read_defaults(self, given: Any, place: str) -> None:
        """Take over the defaults if they are right: as the fields of any row."""
        is_first, self.defaults = self.defaults is None, self.defaults or {}
        if not is_first:
            self.faults.append(f"{place}: {DEFAULTS!r} must be the first line; all rows get them")
        elif not isinstance(given, dict):
            self.faults.append(f"{place}: {DEFAULTS!r}: got {show(given)}, expected an object of fields")
        elif "id" in given:
            self.faults.append(f"{place}: {DEFAULTS!r} has an 'id': each row has its own")
        else:
            texts, faults = self._texts(given)
            try:
                TaskRow.from_json({"toolset": ".tools", **given, "id": "row"}, texts=texts)
            except FaultyRowError as error:
                faults = [*error.faults, *faults]
            for name, fault in faults:
                self.faults.append(f"{place}: {DEFAULTS!r}, field {name!r}: {fault}")
            faulty = {re.split(r"[.\[]", name)[0] for name, _ in faults}
            self.defaults = {
                name: value for name, value in given.items() if value is not None and name not in faulty
            }

    def _id_faults(self, row_id: str, line: int) -> list[FieldFault]:
        earlier, same = self.lines_of_ids.setdefault(row_id.casefold(), (line, row_id))
        if earlier == line:
            return []
        if same == row_id:
            return [("id", f"line {earlier} has the same id")]
        return [("id", f"line {earlier} has the id {same!r}, the same folder name where case does not count")]

    def _texts(self, data: dict[str, Any]) -> tuple[dict[str, str], list[FieldFault]]:
        """The texts of the ``file:`` fields, shared by all rows that name the same files."""
        texts: dict[str, str] = {}
        faults: list[FieldFault] = []
        for name in FILE_FIELDS:
            reference = data.get(name)
            if isinstance(reference, str) and reference.startswith(FILE):
                try:
                    texts[name] = self.files.text(reference)
                except BundleError as error:
                    faults.append((name, str(error)))
        return self.texts.setdefault(tuple(texts.items()), texts), faults


def _parsed(text: bytes) -> Any:
    """The JSON value of ``text``; ``ValueError`` also for an infinite number and a key that a row repeats."""
    data = from_json(text, allow_inf_nan=False, cache_strings="all")
    names = [f'"{name}"'.encode() for name in data] if isinstance(data, dict) else []
    if max(map(text.count, names), default=0) > 1 or _LARGE_EXPONENT.search(text):
        json.loads(text, object_pairs_hook=without_repeats, parse_float=finite)
    return data


def _oddities(row: TaskRow) -> Iterator[FieldFault]:
    for name in row.more:
        if meant := _likely_misspelling(name):
            yield name, f"is kept as a field of your own; did you mean {meant!r}?"
    if row.system_prompt and any(message["role"] == "system" for message in row.initial_messages):
        yield "system_prompt", "the initial messages have a system message too; the model sees both"
    if not row.initial_messages and row.sim_user_prompt is None and row.ticket is None:
        fault = "there are none, and no 'sim_user_prompt': nobody tells the agent what to do"
        yield "initial_messages", fault


@lru_cache(maxsize=1024)
def _likely_misspelling(name: str) -> str | None:
    plain = name.lower().replace("-", "_").strip("_")
    return closest(plain, KNOWN_FIELDS, cutoff=0.8)


# --- writing


ANSWER = ("actions", "outputs")


def row_as_written(path: Path, row_id: str) -> dict[str, Any]:
    """The fields of a row as the file has them, without defaults; the file has been read without a fault."""
    return next(row for _, row in _rows(path) if row.get("id") == row_id)


def check_is_new(path: Path, row_id: str) -> None:
    """Raise ``UsageError`` if the file, which need not exist, has a row of this id."""
    ids = [str(row.get("id")).casefold() for _, row in _rows(path)]
    if row_id.casefold() in ids:
        raise UsageError(f"has a row {row_id!r} already", place=path.name, remedy="Choose another id.")


def add_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row to the file, which need not exist; fields that are the file's defaults are left out.

    Raises ``UsageError`` if the file has a row of this id, ``StorageError`` if it cannot be written. The file
    is replaced as a whole or stays as it was.
    """
    path = path.resolve()
    check_is_new(path, row["id"])
    before = path.read_bytes() if path.exists() else b""
    defaults: Mapping[str, Any] = next(
        (one[DEFAULTS] for _, one in _rows(path) if one.keys() == {DEFAULTS}), {}
    )
    own = {name: value for name, value in row.items() if name not in defaults or defaults[name] != value}
    line_end = b"" if not before or before.endswith(b"\n") else b"\n"
    write_file(path, before + line_end + _line(own) + b"\n")


def add_answer(path: Path, row: Mapping[str, Any]) -> None:
    """Add the ``ANSWER`` of ``row`` to the row of its id, which has no actions; its text stays as it is.

    Raises as ``add_row``.
    """
    path = path.resolve()
    number, text, written = next(
        (number, text, one) for (number, text), one in _rows(path) if one.get("id") == row["id"]
    )
    answer = {name: row[name] for name in ANSWER if name in row and name not in written}
    with path.open("rb") as stream:
        lines = stream.readlines()
    before, rest = b"".join(lines[: number - 1]), b"".join(lines[number - 1 :])
    start = rest.index(text)
    answered = text[:-1].rstrip() + b",\n " + _line(answer)[1:]
    write_file(path, before + rest[:start] + answered + rest[start + len(text) :])


def _line(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode()


def _rows(path: Path) -> list[tuple[tuple[int, bytes], dict[str, Any]]]:
    """The objects of the file, if it exists, each with the number of its first line and its text."""
    if not path.exists():
        return []
    with path.open("rb") as stream:
        return [(place, json.loads(place[1])) for place in row_texts(stream)]
