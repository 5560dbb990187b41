"""The shape of a database: its tables, how their rows are told apart, and the text that defines it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Execute = Callable[..., Iterable[Sequence[Any]]]
"""``execute(sql, params=())`` gives rows as plain tuples, as ``sqlite3`` and ``apsw`` connections do."""

_VIRTUAL_MODULE = re.compile(r"\bUSING\s+[\"'`\[]?(\w+)", re.IGNORECASE)
_FULL_TEXT = frozenset({"fts3", "fts4", "fts5"})
_KEYED_BY_ROWID = frozenset({"rtree", "rtree_i32", "geopoly"})
_ROWID_NAMES = ("rowid", "_rowid_", "oid")
_MOST_COLUMNS = 2000
"""Of a query, unless SQLite was built for fewer (https://sqlite.org/limits.html)."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table whose rows count.

    ``columns`` are those that hold values of their own: no generated and no hidden ones.  ``key`` are the
    columns of the primary key (for an R-tree its rowid), empty if there is none.  ``nullable_key``: rows
    may have NULL in the key.  ``recordable``: SQLite's session extension sees its changes (but for rows
    with NULL in the key, for 0.0 becoming -0.0, and for a key of 1 becoming 1.0).  ``loose`` are the columns
    that store any value as it is, those too. ``rowid`` is a name for the rowid that no column has taken, if
    there is one.
    """

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...] = ()
    nullable_key: bool = False
    recordable: bool = True
    loose: tuple[str, ...] = ()
    rowid: str | None = None


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
    for _, name, kind, _, without_rowid, *_ in listed:
        if kind == "table" and not name.startswith("sqlite_"):
            tables[name] = _read_table(execute, name, without_rowid=bool(without_rowid))
        elif kind == "virtual":
            sql = objects["table", name]
            stored = _stored_texts(name, sql, kinds)
            if stored is None:
                tables[name] = _read_virtual(execute, name, sql)
                shadows.update({other: name for other in kinds if _is_shadow(other, name, kinds)})
            else:
                tables[stored] = _read_table(execute, stored, without_rowid=False)
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


def _read_table(execute: Execute, name: str, *, without_rowid: bool) -> Table:
    info = list(execute(f"PRAGMA main.table_xinfo({quote_name(name)})"))
    keys = sorted((row[5], row[1], row[3]) for row in info if row[5])
    taken = {row[1].casefold() for row in info}
    rowid = None if without_rowid else next((alias for alias in _ROWID_NAMES if alias not in taken), None)
    indexes = [row[1] for row in execute(f"PRAGMA main.index_list({quote_name(name)})") if row[3] == "pk"]
    collations = {
        row[4]
        for index in indexes
        for row in execute(f"PRAGMA main.index_xinfo({quote_name(index)})")
        if row[5]
    }
    # sessions look rows up by the key's collation but file them by its bytes, or by a column "_rowid_"; where
    # there is no key they ask for the rowid besides all columns
    recordable = bool(keys) or ("_rowid_" not in taken and len(info) < _MOST_COLUMNS)
    return Table(
        name,
        columns=tuple(row[1] for row in info if row[6] == 0),
        key=tuple(key[1] for key in keys),
        # a key without an index of its own is the rowid, which is never NULL
        nullable_key=not without_rowid and bool(indexes) and not all(key[2] for key in keys),
        recordable=collations <= {"BINARY"} and recordable,
        loose=tuple(row[1] for row in info if row[6] == 0 and _is_loose(row[2])),
        rowid=rowid,
    )


def _is_loose(declared_type: str) -> bool:
    """Whether SQLite derives no numeric and no text affinity from the declared type of a column."""
    name = declared_type.upper()
    if any(part in name for part in ("INT", "CHAR", "CLOB", "TEXT")):
        return False
    return not name or "BLOB" in name or name == "ANY"
