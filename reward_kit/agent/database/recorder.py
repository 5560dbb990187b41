"""The rows written to a fork, as SQLite's pre-update hook reports them.

A write costs one entry in a list.  The net changes are put together from the entries when somebody reads
them.  Where the hook does not tell (virtual tables, generated columns, changes of the schema), the rows of
the tables concerned are compared with those of the base.
"""

from __future__ import annotations

import weakref
from collections import Counter
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw

from reward_kit.agent.database.changes import Changes
from reward_kit.agent.database.overlay import Overlay
from reward_kit.agent.database.row_change import RowChange, typed
from reward_kit.agent.database.schema import read_schema, select
from reward_kit.agent.database.table_diff import RowLayout, diff_databases
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reward_kit.agent.database.base_image import BaseImage
    from reward_kit.agent.database.schema import Execute

_MOST_ROWS = 20_000
"""Above this number of rows written in one transaction their tables are compared as a whole."""
_MANY_PAGES = 2000
"""Above this number of changed pages it does not pay to find out which tables they belong to."""

_Row = tuple[Any, ...]
_Written = tuple[str, _Row | None, _Row | None]
"""The table of a row, its values before and after one write."""


class Mark(NamedTuple):
    """A moment of a recording; ``total`` are the changes from the base to it, if entries do not tell them."""

    position: int
    exact: bool
    unseen: frozenset[str]
    total: Changes | None


class Recorder:
    """Records the writes to ``overlay``; ``log`` leads from the state with the changes ``settled`` to now.

    ``exact`` is false once something was written that the log does not hold, to the tables ``unseen``.
    ``settled`` is None for changes that are not known; they are found by comparing when they are needed.
    ``version`` is to be counted up for each statement that may write.
    """

    def __init__(
        self, overlay: Overlay, settled: Changes | None = None, log: Sequence[_Written] = ()
    ) -> None:
        self._overlay = overlay
        self._facts = _facts_of(overlay.base)
        self._log = list(log)
        self.exact = True
        self._unseen: set[str] = set()
        if settled is None:
            settled = overlay_changes_later(overlay)
        self._settled = settled
        self._limit = len(self._log) + _MOST_ROWS
        self._known: tuple[int, Changes] | None = None
        self.version = 0

    def copy(self, overlay: Overlay) -> Recorder:
        """The same recording for ``overlay``, a copy of the committed state."""
        if self._known is not None and self._known[0] == self.version:
            return Recorder(overlay, self._known[1])
        return Recorder(overlay, self._settled if self.exact else None, self._log if self.exact else ())

    @property
    def position(self) -> int:
        """Number of entries so far."""
        return len(self._log)

    def note(self, update: apsw.PreUpdate) -> None:
        """SQLite's pre-update hook: a row is about to be written."""
        table = update.table_name
        if table in self._facts.recorded:
            if update.database_name == "main":
                try:
                    self._log.append((table, update.old, update.new))
                except UnicodeDecodeError:  # comparing will tell of it
                    self._miss(table)
                if len(self._log) > self._limit:
                    self._log.pop()
                    self._miss(table)
        elif table in self._facts.compared and update.database_name == "main":
            self._miss(self._facts.compared[table])

    def cut(self, position: int) -> None:
        """Forget the entries from ``position`` on: what they tell was undone."""
        del self._log[position:]

    def distrust(self) -> None:
        """Part of what was written was undone, and the log does not tell which."""
        self.exact = False

    def mark(self, total: Changes | None, *, committed: bool) -> Mark:
        """The present moment; ``total`` are the changes from the base if they had to be found by comparing.

        ``committed`` says that no transaction is open.
        """
        if committed:
            if total is not None:  # begin anew from here
                self._settled, self._log, self.exact = total, [], True
                self._unseen.clear()
            self._limit = len(self._log) + _MOST_ROWS
        return Mark(len(self._log), self.exact, frozenset(self._unseen), total)

    def restore(self, mark: Mark) -> None:
        """The writes since ``mark`` were undone."""
        self.version += 1
        self.cut(mark.position)
        self.exact = mark.exact
        self._unseen = set(mark.unseen)

    def since(self, mark: Mark, query: Execute, *, schema_touched: bool) -> Changes:
        """The changes from ``mark`` to now."""
        if self.exact and not schema_touched:
            written = tuple(self._log[mark.position :])
            return Changes.deferred(partial(_net, written, self._facts.layouts)) if written else Changes()
        before = mark.total
        if before is None:
            before = self._settled.then(Changes(_net(self._log[: mark.position], self._facts.layouts)))
        return self.total(query, schema_touched=schema_touched).minus(before)

    def total(self, query: Execute, *, schema_touched: bool) -> Changes:
        """The changes from the base to what ``query`` sees.

        ``DatabaseError`` if they cannot be read.
        """
        if self._known is None or self._known[0] != self.version:
            self._known = self.version, self._total(query, schema_touched=schema_touched)
        return self._known[1]

    def _total(self, query: Execute, *, schema_touched: bool) -> Changes:
        if self.exact and not schema_touched:
            return self._settled.then(Changes(_net(self._log, self._facts.layouts)))
        written = {table for table, _, _ in self._log} | {change.table for change in self._settled}
        names = self._unseen | written
        unchanged = () if schema_touched else self._facts.tables - names
        with faults_of_reading(), closing(Overlay(self._overlay.base).connect()) as base:
            return diff_databases(base.execute, query, unchanged=unchanged)

    def _miss(self, table: str) -> None:
        self.exact = False
        self._unseen.add(table)


class _Facts:
    """The shape of a base: tables whose rows the hook ``recorded`` in full, with the layouts of their rows.

    ``compared`` maps the other tables, and the storage of virtual ones, to the table that is compared.
    """

    def __init__(self, base: BaseImage) -> None:
        with closing(Overlay(base).connect()) as connection:
            schema = read_schema(connection.execute)
        tables = schema.tables.values()
        self.tables = frozenset(schema.tables)
        self.recorded = frozenset(table.name for table in tables if table.recordable)
        self.compared = {name: name for name in self.tables - self.recorded} | schema.shadows
        self.layouts = {
            table.name: (RowLayout(table.name, table.columns, table.key), table.positions)
            for table in tables
            if table.recordable
        }


_facts: weakref.WeakKeyDictionary[BaseImage, _Facts] = weakref.WeakKeyDictionary()


def _facts_of(base: BaseImage) -> _Facts:
    """The facts about ``base``, gathered once per process."""
    facts = _facts.get(base)
    if facts is None:
        facts = _facts[base] = _Facts(base)
    return facts


_Layouts = dict[str, tuple[RowLayout, "Sequence[int] | None"]]


def _net(written: Sequence[_Written], layouts: Mapping[str, Any]) -> Iterator[RowChange]:
    """The net changes of consecutive writes.

    Rows with a key are followed by it; rows without one, or with NULL in it, have no identity and are
    counted by their content.
    """
    rows: dict[tuple[str, bytes], list[_Row | None]] = {}
    counts: Counter[tuple[str, bytes]] = Counter()
    contents: dict[tuple[str, bytes], _Row] = {}

    def write(table: str, layout: RowLayout, before: _Row | None, after: _Row | None) -> None:
        row = before if after is None else after
        assert row is not None
        key = layout.key_of(row)
        if key is None:
            identity = (table, typed(row))
            contents[identity] = row
            counts[identity] += -1 if after is None else 1
        else:
            known = rows.setdefault((table, typed(key)), [before, None])
            known[1] = after

    for table, before, after in written:
        layout, positions = layouts[table]
        if positions is not None:
            before = before and tuple([before[place] for place in positions])
            after = after and tuple([after[place] for place in positions])
        if before is None or after is None or _same_key(layout, before, after):
            write(table, layout, before, after)
        else:
            write(table, layout, before, None)
            write(table, layout, None, after)
    for (table, _), (first, last) in rows.items():
        layout = layouts[table][0]
        change = _change(layout, first, last)
        if change is not None:
            yield change
    for identity, count in counts.items():
        layout = layouts[identity[0]][0]
        make = layout.inserted if count > 0 else layout.deleted
        for _ in range(abs(count)):
            yield make(contents[identity])


def _same_key(layout: RowLayout, before: _Row, after: _Row) -> bool:
    old, new = layout.key_of(before), layout.key_of(after)
    return old is not None and new is not None and typed(old) == typed(new)


def _change(layout: RowLayout, before: _Row | None, after: _Row | None) -> RowChange | None:
    if before is None:
        return None if after is None else layout.inserted(after)
    return layout.deleted(before) if after is None else layout.updated(before, after)


def overlay_changes(overlay: Overlay) -> Changes:
    """The changes from the base to the committed state of ``overlay``, found by comparing the two.

    Only tables that have changed pages are read.  ``DatabaseError`` inside a transaction, or if SQLite cannot
    read the changes.
    """
    if overlay.pristine:
        return Changes()
    with (
        faults_of_reading(),
        closing(Overlay(overlay.base).connect()) as before,
        closing(overlay.fork().connect()) as after,
    ):
        unchanged = _unchanged_tables(before, after, overlay.changed_pages())
        return diff_databases(before.execute, after.execute, unchanged=unchanged)


def overlay_changes_later(overlay: Overlay) -> Changes:
    """``overlay_changes`` of the present state, found when somebody reads them."""
    if overlay.pristine:
        return Changes()
    return Changes.deferred(partial(overlay_changes, overlay.fork()))


@contextmanager
def faults_of_reading() -> Iterator[None]:
    """Make what SQLite raises where changes are read a ``DatabaseError``."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DatabaseError(f"a text in the database is not UTF-8: {error}") from error
    except apsw.Error as error:
        raise DatabaseError(f"cannot tell what was changed: {error}") from error


def _unchanged_tables(before: apsw.Connection, after: apsw.Connection, changed_pages: list[int]) -> set[str]:
    """Tables that start at the same page in both and have no changed page, hence the same rows."""
    if "ENABLE_DBSTAT_VTAB" not in apsw.compile_options or len(changed_pages) > _MANY_PAGES:
        return set()
    roots = select(["name", "rootpage"], "sqlite_master", "type = 'table' AND rootpage > 0")
    same = set(before.execute(roots)) & set(after.execute(roots))
    changed = select(["DISTINCT name"], "dbstat", f"pageno IN ({','.join(map(str, changed_pages))})")
    return {name for name, _ in same} - {name for (name,) in after.execute(changed)}
