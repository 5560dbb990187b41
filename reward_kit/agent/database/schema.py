"""The shape of a database: its tables, how their rows are told apart, and the text that defines it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Execute = Callable[..., Iterable[Sequence[Any]]]
"""``execute(sql, params=())`` gives rows as plain tuples, as ``sqlite3`` and ``apsw`` connections do."""

_VIRTUAL_MODULE = re.compile(r"\bUSING\s+[\"'`\[]?(\w+)", re.IGNORECASE)
_STORED, _VIRTUAL_COLUMN = 0, 2
"""Kinds of columns in ``PRAGMA table_xinfo``: with a value of its own, computed when it is read."""
_FULL_TEXT = frozenset({"fts3", "fts4", "fts5"})
_KEYED_BY_ROWID = frozenset({"rtree", "rtree_i32", "geopoly"})


@dataclass(frozen=True, slots=True)
class Table:
    """One table whose rows count.

    ``columns`` are those that hold values of their own: no generated and no hidden ones.  ``key`` are the
    columns of the primary key (for an R-tree its rowid), empty if there is none.  ``recordable``: SQLite's
    pre-update hook gives its rows in full.  ``positions`` are the places of ``columns`` in them, None for all
    in order.
    """

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...] = ()
    recordable: bool = True
    positions: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """``objects`` maps (type, name) to the SQL that made it.

    ``shadows`` maps the storage tables of a virtual table to it, where it is the virtual table that is
    compared.  A full-text table is compared by the storage table that holds its texts, or by the one that
    holds the lengths of its texts if those belong to another table.  Its index is left out: it depends on the
    order of writes.
    """

    tables: dict[str, Table]
    objects: dict[tuple[str, str], str]
    shadows: dict[str, str]


def quote_name(name: str) -> str:
    """``name`` as an SQL identifier."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def select(terms: Iterable[str], table: str, condition: str = "") -> str:
    """The query for ``terms`` (SQL) of the rows of ``table`` (a name) that meet ``condition`` (SQL)."""
    where = f" WHERE {condition}" if condition else ""
    return f"SELECT {', '.join(terms)} FROM main.{quote_name(table)}{where}"  # noqa: S608 - names are quoted


def read_schema(execute: Execute) -> Schema:
    """The schema of the main database."""
    objects: dict[tuple[str, str], str] = {}
    for kind, name, sql in execute("SELECT type, name, sql FROM main.sqlite_master"):
        if sql is not None and not name.startswith("sqlite_"):  # without SQL: the index of a UNIQUE or a key
            objects[kind, name] = sql
    listed = [row for row in execute("PRAGMA main.table_list") if row[0] == "main"]
    kinds: dict[str, str] = {row[1]: row[2] for row in listed}
    tables: dict[str, Table] = {}
    shadows: dict[str, str] = {}
    for _, name, kind, *_ in listed:
        if kind == "table" and not name.startswith("sqlite_"):
            tables[name] = _read_table(execute, name)
        elif kind == "virtual":
            sql = objects["table", name]
            stored = _stored_texts(name, sql, kinds)
            if stored is None:
                tables[name] = _read_virtual(execute, name, sql)
                shadows.update({other: name for other in kinds if _is_shadow(other, name, kinds)})
            else:
                tables[stored] = _read_table(execute, stored)
    defined = {key: sql for key, sql in objects.items() if kinds.get(key[1]) != "shadow"}
    return Schema(tables, defined, shadows)


def _is_shadow(name: str, owner: str, kinds: dict[str, str]) -> bool:
    return kinds.get(name) == "shadow" and name.startswith(f"{owner}_")


def _module(sql: str) -> str:
    found = _VIRTUAL_MODULE.search(sql)
    return found[1].lower() if found else ""


def _stored_texts(name: str, sql: str, kinds: dict[str, str]) -> str | None:
    if _module(sql) not in _FULL_TEXT:
        return None
    candidates = (f"{name}_content", f"{name}_docsize")
    return next((table for table in candidates if _is_shadow(table, name, kinds)), None)


def _read_virtual(execute: Execute, name: str, sql: str) -> Table:
    info = execute(f"PRAGMA main.table_xinfo({quote_name(name)})")
    columns = tuple(row[1] for row in info if row[6] == 0)
    key = ("rowid",) if _module(sql) in _KEYED_BY_ROWID else ()
    return Table(name, columns, key, recordable=False)


def _read_table(execute: Execute, name: str) -> Table:
    info = list(execute(f"PRAGMA main.table_xinfo({quote_name(name)})"))
    stored = [place for place, row in enumerate(info) if row[6] == _STORED]
    keys = sorted((row[5], row[1]) for row in info if row[5])
    return Table(
        name,
        columns=tuple(info[place][1] for place in stored),
        key=tuple(key[1] for key in keys),
        recordable=all(row[6] != _VIRTUAL_COLUMN for row in info),
        positions=None if len(stored) == len(info) else tuple(stored),
    )
