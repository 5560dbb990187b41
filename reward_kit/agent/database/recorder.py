"""The row changes of a database: recorded as they are written, or found by comparing tables.

SQLite's pre-update hook reports the rows written to a fork; a write costs one entry in a list, and the net
changes are computed when they are read. Tables whose rows the hook does not report (virtual tables, virtual
columns, changes of the schema) are compared with those of the base. That comparison, which needs nothing but
two ``execute`` callables and so serves plain files under ``sqlite3`` as well, is also the reference for what
is recorded.
"""

from __future__ import annotations

import itertools
import marshal
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import same, typed
from reward_kit.agent.database.changes import NO_CHANGES, SCHEMA_TABLE, Changes, RowChange, net

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import apsw

    from reward_kit.agent.database.determinism import Randomness

_MOST_ROWS = 20_000
"""Above this number of recorded writes the tables are compared as a whole."""

_Row = tuple[Any, ...]
Written = tuple[str, _Row | None, _Row | None]
"""The table of a row, its values before and after one write."""


Mark = tuple[int, int, frozenset[str] | None, Changes | None]
"""A moment: random numbers drawn, length and gaps of the log, the changes so far if the log is not exact."""


class Recorder:
    """Records writes: ``log`` leads from the state with the changes ``settled`` to the present one.

    ``missed`` is None as long as the log holds all that was written; then it names the tables of which rows
    are missing, none if some rows in it were undone.  ``schema_changed`` is true once the tables are no
    longer those of the base.  ``compare`` finds the changes from the base without the log; it is given the
    names of tables that did not change.
    """

    def __init__(
        self,
        schema: Schema,
        compare: Callable[[Collection[str]], Changes],
        randomness: Randomness,
        settled: Changes,
        log: Iterable[Written] = (),
    ) -> None:
        self._schema = schema
        self._compare = compare
        self._randomness = randomness
        self.settled = settled
        self.log = list(log)
        self.schema_changed = False
        self.missed: frozenset[str] | None = None
        self.known: Changes | None = None

    @property
    def exact(self) -> bool:
        """True if ``log`` tells all that was written."""
        return self.missed is None and not self.schema_changed

    def note(self, update: apsw.PreUpdate) -> None:
        """SQLite's pre-update hook: a row is about to be written."""
        table = update.table_name
        if update.database_name != "main":
            return
        if table in self._schema.recordable:
            if len(self.log) < _MOST_ROWS:
                try:
                    self.log.append((table, update.old, update.new))
                except UnicodeDecodeError:  # comparing will report it
                    self._miss(table)
            else:
                self._miss(table)
        elif table in self._schema.unrecorded:
            self._miss(self._schema.unrecorded[table])

    def cut(self, position: int) -> None:
        """Forget the entries from ``position`` on: these writes were undone."""
        del self.log[position:]

    def distrust(self) -> None:
        """Note that some writes were undone, and that the log does not say which."""
        self.missed = self.missed or frozenset()

    def mark(self, *, recorded: bool) -> Mark:
        """The present content, for ``restore`` and, if it is ``recorded``, for ``since``."""
        before = None if not recorded or (self.missed is None and not self.schema_changed) else self.total()
        return self._randomness.position, len(self.log), self.missed, before

    def settle(self) -> None:
        """Begin the log anew, if it is not exact; no transaction is open."""
        if not self.exact and not self.schema_changed:
            self.settled, self.log, self.missed = self.total(), [], None

    def restore(self, mark: Mark) -> None:
        """Note that SQLite has undone all writes since ``mark``."""
        self._randomness.position, position, self.missed, _ = mark
        self.known = None
        self.cut(position)

    def since(self, mark: Mark) -> Changes:
        """The rows changed since ``mark``."""
        _, position, _, before = mark
        if self.missed is None and not self.schema_changed:
            written = self.log[position:]
            if not written:
                return NO_CHANGES
            return Changes(partial(_net, written, self._schema.recordable))
        if before is None:
            before = self.settled.then(self._recorded(self.log[:position]))
        return self.total().minus(before)

    def total(self) -> Changes:
        """The changes from the base to the present state; ``DatabaseError`` if they cannot be read."""
        if self.known is None and self.exact:
            self.known = self.settled.then(self._recorded(self.log))
        elif self.known is None:
            written = {table for table, _, _ in self.log} | {change.table for change in self.settled}
            tables = self._schema.tables.keys() - written - (self.missed or frozenset())
            self.known = self._compare(() if self.schema_changed else tables)
        return self.known

    def _recorded(self, log: Iterable[Written]) -> Changes:
        return Changes.of(_net(log, self._schema.recordable))

    def _miss(self, table: str) -> None:
        self.missed = (self.missed or frozenset()) | {table}


def _net(written: Iterable[Written], tables: Mapping[str, Table]) -> Iterable[RowChange]:
    steps = [change for entry in written for change in _changes_of(entry, tables)]
    return net(steps) if len(steps) > 1 else steps


def _changes_of(entry: Written, tables: Mapping[str, Table]) -> Iterator[RowChange]:
    """The change of one write; two if it gave the row another key, or the row has none."""
    name, before, after = entry
    table = tables[name]
    if table.positions is not None:
        before = before and tuple([before[place] for place in table.positions])
        after = after and tuple([after[place] for place in table.positions])
    if before is not None and after is not None and table.same_row(before, after):
        yield from table.updated(before, after)
        return
    if before is not None:
        yield table.deleted(before)
    if after is not None:
        yield table.inserted(after)


# -- tables compared

Row = Sequence[Any]
Execute = Callable[..., Iterable[Row]]
"""``execute(sql)`` gives rows as plain tuples, as the connections of ``sqlite3`` and ``apsw`` do."""

_STORED, _VIRTUAL_COLUMN = 0, 2
"""Kinds of columns in ``PRAGMA table_xinfo``: with a stored value, computed when it is read."""
_TEXTS = ("_content", "_docsize")
"""Endings of the tables in which a full-text table keeps its texts or, if another table has them, lengths."""
_CHUNK = 256


@dataclass(eq=False)
class Table:
    """One table whose rows count.

    ``columns`` are those that hold stored values: no generated and no hidden ones; ``positions`` are
    their places in a whole row, None for all in order.  ``key`` are the columns of the primary key.
    ``recordable``: SQLite's pre-update hook gives its rows in full.
    """

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...] = ()
    recordable: bool = True
    positions: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        self._key_places = [self.columns.index(column) for column in self.key]

    def key_of(self, row: Row) -> Row | None:
        """The values of the primary key; None if the row has none, or NULL in it."""
        values = [row[place] for place in self._key_places]
        return None if not values or None in values else values

    def same_row(self, before: Row, after: Row) -> bool:
        """True if both have the same key."""
        old = self.key_of(before)
        return old is not None and all(map(same, old, [after[place] for place in self._key_places]))

    def inserted(self, row: Row) -> RowChange:
        """The change that adds ``row``."""
        return RowChange(self.name, "insert", self._named_key(row), None, self._named(row))

    def deleted(self, row: Row) -> RowChange:
        """The change that removes ``row``."""
        return RowChange(self.name, "delete", self._named_key(row), self._named(row), None)

    def updated(self, before: Row, after: Row) -> Iterator[RowChange]:
        """The change from one row to another of the same key; none if they are equal."""
        pairs = zip(self.columns, before, after, strict=True)
        changed = [(name, old, new) for name, old, new in pairs if not same(old, new)]
        if changed:
            old_values = {name: old for name, old, _ in changed}
            new_values = {name: new for name, _, new in changed}
            yield RowChange(self.name, "update", self._named_key(after), old_values, new_values)

    def _named(self, row: Row) -> dict[str, Any]:
        return dict(zip(self.columns, row, strict=True))

    def _named_key(self, row: Row) -> dict[str, Any] | None:
        values = self.key_of(row)
        return None if values is None else dict(zip(self.key, values, strict=True))


@dataclass(frozen=True, slots=True)
class Schema:
    """``objects`` maps (type, name) to the SQL that made it.

    A full-text table is compared by the storage table that holds its texts or their lengths.  Its index is
    left out: it depends on the order of writes.  ``recordable`` are the tables whose rows SQLite's pre-update
    hook gives in full; ``unrecorded`` maps the others, and the storage of virtual tables, to the table that
    has to be compared.
    """

    tables: dict[str, Table]
    objects: dict[tuple[str, str], str]
    recordable: dict[str, Table]
    unrecorded: dict[str, str]


def read_schema(execute: Execute) -> Schema:
    """The schema of the main database that ``execute`` asks."""
    listed = [(row[1], row[2]) for row in execute("PRAGMA main.table_list") if row[0] == "main"]
    kinds: dict[str, str] = dict(listed)
    objects = {
        (kind, name): sql
        for kind, name, sql in execute("SELECT type, name, sql FROM main.sqlite_master")
        if sql is not None and not name.startswith("sqlite_") and kinds.get(name) != "shadow"
    }
    tables: dict[str, Table] = {}
    unrecorded: dict[str, str] = {}
    for name, kind in listed:
        shadows = [other for other in kinds if kinds[other] == "shadow" and other.startswith(f"{name}_")]
        if kind == "table" and not name.startswith("sqlite_"):
            tables[name] = _read_table(execute, name)
        elif kind == "virtual":
            texts = [name + ending for ending in _TEXTS if name + ending in shadows]
            if texts:
                tables[texts[0]] = _read_table(execute, texts[0])
            else:
                tables[name] = _read_table(execute, name, recordable=False)
                unrecorded.update((shadow, name) for shadow in shadows)
    recordable = {name: table for name, table in tables.items() if table.recordable}
    unrecorded.update((name, name) for name in tables if name not in recordable)
    return Schema(tables, objects, recordable, unrecorded)


def _read_table(execute: Execute, name: str, *, recordable: bool = True) -> Table:
    info = list(execute(f"PRAGMA main.table_xinfo({_quoted(name)})"))
    stored = [place for place, row in enumerate(info) if row[6] == _STORED]
    keys = sorted((row[5], row[1]) for row in info if row[5])
    return Table(
        name,
        columns=tuple(info[place][1] for place in stored),
        key=tuple(key[1] for key in keys),
        recordable=recordable and all(row[6] != _VIRTUAL_COLUMN for row in info),
        positions=None if len(stored) == len(info) else tuple(stored),
    )


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def diff_databases(before: Execute, after: Execute, unchanged: Container[str] = ()) -> Iterator[RowChange]:
    """The changes that lead from the rows and the schema of ``before`` to those of ``after``.

    ``unchanged`` names tables whose stored rows are known to be equal; they are skipped.
    """
    old, new = read_schema(before), read_schema(after)
    schema = Table(SCHEMA_TABLE, ("type", "name", "sql"), ("type", "name"))
    yield from _diff_rows(
        schema, *([(*key, sql) for key, sql in side.objects.items()] for side in (old, new))
    )
    for name in old.tables.keys() | new.tables.keys():
        # a new column with a default value changes rows without a write to them
        same_columns = old.objects.get(("table", name)) == new.objects.get(("table", name))
        if name not in unchanged or not same_columns:
            yield from _diff_tables(before, old.tables.get(name), after, new.tables.get(name))


def _diff_tables(
    before: Execute, old: Table | None, after: Execute, new: Table | None
) -> Iterator[RowChange]:
    """The row changes of one table; a side that is None has no such table.

    A column that only one side has counts as NULL on the other; if the primary key is another one, the rows
    are compared as rows without a key.
    """
    sides = [table for table in (old, new) if table is not None]
    columns = tuple(dict.fromkeys(column for table in sides for column in table.columns))
    key = sides[0].key if len({table.key for table in sides}) == 1 else ()
    merged = Table(sides[0].name, columns, key)
    left = before(_select(old, columns)) if old else ()
    right = after(_select(new, columns)) if new else ()
    yield from _diff_rows(merged, left, right)


def _select(table: Table, columns: Sequence[str]) -> str:
    """The query for rows of ``table`` as ``columns``, in storage order, which is the fastest."""
    terms = ", ".join(_quoted(name) if name in table.columns else "NULL" for name in columns)
    return f"SELECT {terms} FROM main.{_quoted(table.name)}"  # noqa: S608 - names are quoted


def _diff_rows(table: Table, left: Iterable[Row], right: Iterable[Row]) -> Iterator[RowChange]:
    """The changes that lead from the rows ``left`` to the rows ``right``.

    Rows are matched by key, or by content if there is no key.  Both sides are read in step and a row is
    kept only until its partner turns up: equal order, which storage order nearly is, makes this cheap; no
    order makes it wrong.
    """
    waiting_left: dict[bytes, list[Row]] = {}
    waiting_right: dict[bytes, list[Row]] = {}
    for old_rows, new_rows in _unequal_chunks(left, right):
        for old in old_rows:
            if (new := _partner(table, old, waiting_right, waiting_left)) is not None:
                yield from table.updated(old, new)
        for new in new_rows:
            if (before := _partner(table, new, waiting_left, waiting_right)) is not None:
                yield from table.updated(before, new)
    yield from (table.deleted(row) for rows in waiting_left.values() for row in rows)
    yield from (table.inserted(row) for rows in waiting_right.values() for row in rows)


def _unequal_chunks(left: Iterable[Row], right: Iterable[Row]) -> Iterator[tuple[list[Row], list[Row]]]:
    """Both sides in pieces, leaving out pieces that are equal to the last bit."""
    left, right = iter(left), iter(right)
    while True:
        old, new = list(itertools.islice(left, _CHUNK)), list(itertools.islice(right, _CHUNK))
        if not old and not new:
            return
        # version 2 of the format: see encoding.typed
        if len(old) != len(new) or marshal.dumps(old, 2) != marshal.dumps(new, 2):
            yield old, new


def _partner(
    table: Table, row: Row, partners: dict[bytes, list[Row]], waiting: dict[bytes, list[Row]]
) -> Row | None:
    """The waiting partner of ``row``; without one ``row`` itself starts to wait."""
    key = table.key_of(row)
    identity = typed([*row, None]) if key is None else typed(key)  # a row is longer than its key: no mix-up
    found = partners.pop(identity, None)
    if found is None:
        waiting.setdefault(identity, []).append(row)
        return None
    partner = found.pop()
    if found:
        partners[identity] = found
    return partner
