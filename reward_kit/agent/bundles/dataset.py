"""Reading a dataset: JSON Lines, checked as a whole before anything runs.

One JSON object per line. Blank lines and lines that begin with ``#`` are passed over. An object may be
wrapped over several lines if the later ones are indented (or begin with a closing bracket).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reward_kit.agent.bundles.files import PREFIX, BundleFiles
from reward_kit.agent.bundles.row_check import check_row, likely_misspelling
from reward_kit.agent.bundles.task_row import FILE_FIELDS, MAX_ID_LENGTH, TaskRow
from reward_kit.agent.cut_text import cut
from reward_kit.agent.strict_json import MAX_DEPTH, finite, is_too_deep
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_FAULTS_SHOWN = 200

_ONE_A_LINE = "write each row as an object on a line of its own, without commas between them"

_CONTINUES = frozenset(" \t}]")
"""What a line begins with that may go on with the row above it."""


class FaultyBundleError(BundleError):
    """Several faults of one bundle; ``faults`` has one line for each, the message the first of them."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        shown = faults[:MAX_FAULTS_SHOWN]
        if len(faults) > len(shown):
            shown.append(f"… and {len(faults) - len(shown)} more faults")
        super().__init__("\n".join(shown))


@dataclass(slots=True)
class Dataset:
    """The rows of a file, in its order, and what is odd about them without being wrong."""

    rows: list[TaskRow]
    warnings: list[str]


@dataclass(slots=True)
class _Reader:
    """What is known so far while the file is read."""

    name: str
    files: BundleFiles
    rows: list[TaskRow] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    lines_of_ids: dict[str, tuple[int, str]] = field(default_factory=dict)
    odd: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def read(self, line: int, text: str) -> None:
        """Check one row."""
        try:
            data = _parse(text)
        except json.JSONDecodeError as error:
            place = f"{self.name}:{line + error.lineno - 1}:{error.colno}"
            self.faults.append(f"{place}: not valid JSON: {error.msg}{_mending(error)}")
            return
        except (ValueError, RecursionError) as error:
            self.faults.append(f"{self.name}:{line}: not valid JSON: {error}")
            return
        row, faults = check_row(data)
        place = f"{self.name}:{line}"
        named = data.get("id") if isinstance(data, dict) else None
        self.faults.extend(_fault_line(place, named, name, fault) for name, fault in faults)
        if isinstance(named, str):
            self._check_unique(named, line)
        if row is not None:
            self._keep(row, place)

    def _check_unique(self, row_id: str, line: int) -> None:
        earlier = self.lines_of_ids.setdefault(row_id.casefold(), (line, row_id))
        if earlier[0] == line:
            return
        fault = f"line {earlier[0]} has the same id"
        if earlier[1] != row_id:
            fault = (
                f"line {earlier[0]} has the id {earlier[1]!r}, the same folder name where case does not count"
            )
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
        self.rows.append(row.located(place, texts))
        for oddity in _oddities(row):
            self.odd.setdefault(oddity, []).append(f"{place}: row {row.id!r}")


def read_dataset(path: Path, files: BundleFiles) -> Dataset:
    """The rows of ``path``; raises ``BundleError`` that tells every fault of every row, one line each."""
    reader = _Reader(path.name, files)
    try:
        with path.open("rb") as stream:
            for line, text in _chunks(_lines(stream, reader)):
                reader.read(line, text)
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror}", place=str(path)) from error
    if reader.faults:
        raise FaultyBundleError(reader.faults)
    if not reader.rows:
        raise BundleError("has no rows", place=str(path), remedy="Write one JSON object per line.")
    return Dataset(reader.rows, [_warning(*item) for item in reader.odd.items()])


def _lines(stream: Any, reader: _Reader) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(stream, 1):
        data = raw
        if number == 1:
            if (kind := _other_kind(raw)) is not None:
                reader.faults.append(f"{reader.name}:1: {kind}")
                return
            data = raw.removeprefix(b"\xef\xbb\xbf")
        try:
            text = data.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            reader.faults.append(
                f"{reader.name}:{number}:{error.start + 1}: is not UTF-8 text ({error.reason})"
            )
            continue
        yield number, text


def _other_kind(beginning: bytes) -> str | None:
    """What a file is that is no JSON Lines, by how it begins."""
    if beginning.startswith((b"\x1f\x8b", b"PK\x03\x04")):
        return "is compressed; unpack it first"
    if beginning.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in beginning[:4]:
        return "is UTF-16 text; save the file as UTF-8"
    return None


def _mending(error: json.JSONDecodeError) -> str:
    """How to mend what people write for JSON Lines."""
    rest = error.doc[error.pos : error.pos + 40].lstrip()
    if error.msg == "Extra data":
        return f"; {_ONE_A_LINE}" if rest[:1] in "{," else ""
    if error.msg.startswith("Expecting property name") and rest[:1] == "'":
        return "; JSON has double quotes"
    if error.pos == 0 and rest[:2] in ("//", "/*", "--"):
        return "; a comment begins with #"
    return ""


def _chunks(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Each row's text with the number of its first line."""
    start = 0
    parts: list[str] = []
    for number, text in lines:
        if (
            parts
            and text[:1] in _CONTINUES
            and text.strip()
            and not (len(parts) == 1 and _is_complete(parts[0]))
        ):
            parts.append(text)
            continue
        if parts:
            yield start, "\n".join(parts)
        is_row = text.strip() and not text.lstrip().startswith("#")
        start, parts = number, [text] if is_row else []
    if parts:
        yield start, "\n".join(parts)


def _is_complete(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _parse(text: str) -> Any:
    """The JSON value of ``text``; ``ValueError`` for what JSON does not have or cannot be written again."""
    data = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=finite)
    if is_too_deep(data, text):
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    if _LARGE_EXPONENT.search(text):
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


_LARGE_EXPONENT = re.compile(r"\d[eE]\+?\d{3}")
"""1e999 is read as infinity, which JSON cannot hold."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the key {twice!r} twice")
    return value


def _fault_line(place: str, row_id: Any, name: str, fault: str) -> str:
    where = [f"row {_shortened(row_id)!r}"] if isinstance(row_id, str) else []
    where += [f"field {name!r}"] if name else []
    return f"{place}: {', '.join(where)}: {fault}" if where else f"{place}: {fault}"


def _shortened(text: str) -> str:
    """A text of any length as it is shown in messages."""
    return cut(text, 2 * MAX_ID_LENGTH)


_ELSEWHERE: dict[str, tuple[type | tuple[type, ...], str]] = {
    "system": (str, "did you mean 'system_prompt'?"),
    "prompt": (str, "did you mean 'initial_messages', or 'sim_user_prompt'?"),
    "messages": (list, "did you mean 'initial_messages'?"),
    "seed": (int, "the random numbers of rollouts come of --seed"),
    "timeout": ((int, float), "the time of a rollout is --timeout"),
    "model": (str, "the agent's model is --model"),
}
"""Names that other tools have for what is called otherwise here, or is no matter of a row."""


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


def _warning(oddity: tuple[str, str], places: list[str]) -> str:
    name, text = oddity
    return f"{places[0]}, field {name!r}: {text}{also_in_more_rows(len(places) - 1)}"


def also_in_more_rows(count: int) -> str:
    """What follows a message that is told for the first of several rows."""
    if count == 0:
        return ""
    return f" (also in {count} more {'row' if count == 1 else 'rows'})"
