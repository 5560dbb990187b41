"""What is changed while something writes to a fork, from what SQLite's session extension records.

Costs time in proportion to the rows that changed, not to the size of the database.  Where sessions cannot
tell (NULL in a primary key, virtual tables, changes of the schema) the rows themselves are compared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import apsw

from reward_kit.agent.database.base_facts import facts_of, has_null_key, may_be_misread, null_key_query
from reward_kit.agent.database.change_algebra import cancel
from reward_kit.agent.database.changes import Changes
from reward_kit.agent.database.overlay_diff import base_connection, faults_of_reading, overlay_changes
from reward_kit.agent.database.row_change import RowChange
from reward_kit.agent.database.schema import Table, quote_name, select
from reward_kit.agent.database.table_diff import RowLayout, diff_databases, diff_rows, diff_tables

if TYPE_CHECKING:
    from reward_kit.agent.database.guards import Authorizer
    from reward_kit.agent.database.overlay import Overlay


_MANY_ROWS = 500
"""Above this number of written rows a table is searched for NULL keys as a whole."""

_Row = Sequence[Any]


class SessionRecorder:
    """Records what is written through ``connection`` to ``overlay``.

    Attach it before something is written, and to a connection whose statements were all prepared while a
    session was there: others may delete rows unseen.  ``earlier`` are the changes that ``overlay`` holds
    already; if they are not given they are found out by comparing, once they are needed.  ``authorizer``,
    if it is that of the connection, spares looking whether the schema was changed.
    """

    def __init__(
        self,
        connection: apsw.Connection,
        overlay: Overlay,
        earlier: ChangeHistory | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        self._connection = connection
        self._overlay = overlay
        self._authorizer = authorizer
        self._earlier = earlier or ChangeHistory(overlay)
        self._facts = facts_of(overlay.base)
        self._touched: set[str] = set()
        self._written: dict[str, set[int]] = {name: set() for name in self._facts.watched}
        self._session = self._attached()
        if self._written:
            connection.set_update_hook(_row_notes(self._written))

    def changes(self) -> Changes:
        """The net changes from the base to what the connection sees now, uncommitted changes included.

        ``DatabaseError`` if they cannot be read.
        """
        with faults_of_reading():
            return self._net_changes()

    def _net_changes(self) -> Changes:
        if not self._has_schema_of_base():
            return self._compare_all()
        earlier = self._earlier.total()
        if not self._touched:
            return earlier
        try:
            changeset = self._session.changeset()
        except apsw.SchemaChangeError:  # a table was made, written to and rolled back
            return self._compare_all()
        recorded = Changes(cancel(self._recorded(changeset)))
        compared = self._to_compare(earlier)
        kept = Changes(row for row in earlier if row.table not in compared and not self._has_null_key(row))
        rows = Changes(row for row in recorded if row.table not in compared)
        return Changes([*kept.then(rows), *self._compare(compared), *self._null_keys(earlier, compared)])

    def since_start(self) -> Changes:
        """What was changed since this began to record, in time for those rows alone.

        ``DatabaseError`` if it cannot be read.
        """
        with faults_of_reading():
            return self._changes_since_start()

    def _changes_since_start(self) -> Changes:
        same_schema = self._has_schema_of_base()
        if same_schema and not self._touched:
            return Changes()
        try:
            if same_schema and self._sees_all():
                return Changes(cancel(self._recorded(self._session.changeset())))
        except apsw.SchemaChangeError:
            pass  # a table was made, written to and rolled back
        return self._net_changes().minus(self._earlier.total())

    def _sees_all(self) -> bool:
        """Whether the session has missed nothing."""
        tables = [self._facts.schema.tables.get(name) for name in self._touched]
        known = [table for table in tables if table is not None and table.recordable]
        return (
            len(known) == len(tables)
            and not any(table.loose and self._is_written(table, may_be_misread(table)) for table in known)
            and not any(table.nullable_key and self._may_have_null_key(table) for table in known)
        )

    def _may_have_null_key(self, table: Table) -> bool:
        """Whether ``table`` holds rows with NULL in the key now, or did before."""
        return (
            bool(self._facts.null_keys(self._overlay.base, table))
            or self._earlier.may_have_null_key(table.name)
            or self._is_written(table, has_null_key(table))
        )

    def _attached(self) -> apsw.Session:
        """A session that records from now on, and notes the tables that are written to."""
        touched, tables = self._touched, self._facts.schema.tables

        def on_first_write(name: str) -> bool:
            # SQLite asks before a table's first change, or before each if the answer was no
            touched.add(name)
            return name in tables and tables[name].recordable

        session = apsw.Session(self._connection, "main")
        session.config(apsw.SQLITE_SESSION_OBJCONFIG_ROWID, True)
        session.table_filter(on_first_write)
        session.attach()
        return session

    def close(self) -> None:
        """Stop recording."""
        self._session.close()
        if self._written:
            self._connection.set_update_hook(None)

    def __del__(self) -> None:
        # apsw for Python 3.10 never frees a connection that has an open session
        if hasattr(self, "_session"):
            self._session.close()

    def _has_schema_of_base(self) -> bool:
        if self._authorizer is not None and not self._authorizer.schema_touched:
            return True
        cookie: int = self._query("PRAGMA main.schema_version")[0][0]
        return cookie == self._overlay.base.schema_cookie

    def _query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        cursor = self._connection.cursor()
        cursor.exec_trace = _run_untraced
        return cursor.execute(sql, parameters).fetchall()

    def _compare_all(self) -> Changes:
        if not self._connection.in_transaction:
            return overlay_changes(self._overlay)
        with closing(base_connection(self._overlay.base)) as base:
            return diff_databases(base.execute, self._query)

    def _to_compare(self, earlier: Changes) -> set[str]:
        """The tables in which sessions may have missed something, but for rows with NULL in the key."""
        schema = self._facts.schema
        names = {schema.shadows.get(name, name) for name in self._touched} | {row.table for row in earlier}
        tables = [schema.tables[name] for name in names if name in schema.tables]
        return {table.name for table in tables if not table.recordable or self._is_misread(table)}

    def _is_misread(self, table: Table) -> bool:
        """Whether one number may have become another that sessions take for it."""
        if not table.loose or table.name not in self._touched:
            return False
        return self._is_written(table, may_be_misread(table))

    def _is_written(self, table: Table, condition: str) -> bool:
        """Whether a row that was written meets ``condition`` (or some row, if it is not known which were)."""
        rowids = self._written.get(table.name)
        if rowids is not None and len(rowids) <= _MANY_ROWS:
            condition = f"{table.rowid} IN ({','.join(map(str, rowids))}) AND ({condition})"
        return bool(self._query(f"{select('1', table.name, condition)} LIMIT 1"))

    def _has_null_key(self, row: RowChange) -> bool:
        return row.key is None and bool(self._facts.schema.tables[row.table].key)

    def _compare(self, names: Collection[str]) -> Iterator[RowChange]:
        if not names:
            return
        with closing(base_connection(self._overlay.base)) as base:
            for name in names:
                table = self._facts.schema.tables[name]
                yield from diff_tables(base.execute, table, self._query, table)

    def _null_keys(self, earlier: Changes, compared: Collection[str]) -> Iterator[RowChange]:
        """The changes of rows with NULL in the key."""
        known = {row.table for row in earlier if self._has_null_key(row)}
        for name in (self._touched | known) - set(compared):
            table = self._facts.schema.tables.get(name)
            if table is None or not table.nullable_key:
                continue
            before = self._facts.null_keys(self._overlay.base, table)
            if before or name in known or self._is_written(table, has_null_key(table)):
                layout = RowLayout(name, table.columns, table.key)
                yield from diff_rows(layout, before, self._query(null_key_query(table)))

    def _recorded(self, changeset: bytes) -> Iterator[RowChange]:
        for change in apsw.Changeset.iter(changeset):
            table = self._facts.schema.tables[change.name]
            if table.key:
                yield _keyed_change(table, change.old, change.new)
            else:
                yield from self._keyless_changes(table, change.old, change.new)

    def _keyless_changes(self, table: Table, old: _Row | None, new: _Row | None) -> Iterator[RowChange]:
        """A change that the session filed under the rowid, as rows that come and go."""
        layout = RowLayout(table.name, table.columns, ())
        if old is not None and new is not None:
            columns = map(quote_name, table.columns)
            row = self._query(select(columns, table.name, f"{table.rowid} = ?"), [old[0]])[0]
            yield layout.inserted(row)
            before = zip(old[1:], row, strict=True)
            yield layout.deleted([now if was is apsw.no_change else was for was, now in before])
        elif new is not None:
            yield layout.inserted(new[1:])
        elif old is not None:
            yield layout.deleted(old[1:])


class ChangeHistory:
    """The committed changes of a fork, put together from those of its transactions.

    They are only put together when somebody asks for them: a transaction costs time for its own.
    """

    def __init__(self, overlay: Overlay, earlier: Changes | None = None) -> None:
        """``earlier`` are the changes that ``overlay`` holds already; ``None`` if they are not known."""
        self._first = _compared_once(overlay) if earlier is None else lambda: earlier
        self._later: list[Changes] = []
        self._keyless: set[str] | None = None

    def add(self, changes: Changes) -> None:
        """A transaction has made ``changes``."""
        if changes:
            self._later.append(changes)
            if self._keyless is not None:
                self._keyless |= _keyless(changes)

    def may_have_null_key(self, table: str) -> bool:
        """Whether rows of ``table``, which has a key, may be among them that have NULL in it."""
        if self._keyless is None:
            self._keyless = _keyless(self.total())
        return table in self._keyless

    def total(self) -> Changes:
        """All of them together."""
        if self._later:
            parts = [self._first(), *self._later]
            while len(parts) > 1:  # neighbours first: one long sum would go through all rows again and again
                pairs = zip_longest(parts[::2], parts[1::2], fillvalue=Changes())
                parts = [first.then(second) for first, second in pairs]
            total = parts[0]
            self._first, self._later = lambda: total, []
        return self._first()


def _keyless(changes: Changes) -> set[str]:
    """The tables of rows that no key tells apart."""
    return {row.table for row in changes if row.key is None}


def _compared_once(overlay: Overlay) -> Callable[[], Changes]:
    """A function that tells the changes which ``overlay`` holds now, found by comparing when it is asked."""
    if overlay.pristine:
        return Changes
    now = overlay.fork()
    return functools.cache(lambda: overlay_changes(now))


def _keyed_change(table: Table, old: _Row | None, new: _Row | None) -> RowChange:
    if new is None or old is None:
        layout = RowLayout(table.name, table.columns, table.key)
        return layout.deleted(old) if old is not None else layout.inserted(new or ())
    # `old` holds the key and the changed columns, `new` the changed columns
    key = dict(zip(table.columns, old, strict=True))
    changed = [row for row in zip(table.columns, old, new, strict=True) if row[2] is not apsw.no_change]
    return RowChange(
        table.name,
        "update",
        {column: key[column] for column in table.key},
        {name: was for name, was, _ in changed},
        {name: now for name, _, now in changed},
    )


def _row_notes(written: dict[str, set[int]]) -> Callable[[int, str, str, int], None]:
    """A hook that notes the rowids written; it holds no recorder, which apsw could not let go of then."""

    def on_row_written(_op: int, database: str, table: str, rowid: int) -> None:
        rowids = written.get(table)
        if rowids is not None and database == "main" and len(rowids) <= _MANY_ROWS:
            rowids.add(rowid)

    return on_row_written


def _run_untraced(_cursor: apsw.Cursor, _sql: str, _bindings: object) -> bool:
    """Keeps the connection's own tracer, which judges the statements of tools, away from ours."""
    return True
