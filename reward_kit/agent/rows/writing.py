"""Writing to a dataset file: a new row, or the answer of a row that has none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.files import write_file
from reward_kit.agent.rows.dataset import DEFAULTS, row_texts
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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
    if "actions" in written:
        fault = f"row {row['id']!r} has actions already"
        raise UsageError(fault, place=f"{path.name}:{number}", remedy="Save it under another id.")
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
