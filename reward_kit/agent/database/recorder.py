"""The rows written to a fork, as SQLite's pre-update hook reports them.

A write costs one entry in a list.  The net changes are computed from the entries when they are read.  Tables
whose rows the hook does not report (virtual tables, virtual columns, changes of the schema) are compared with
those of the base.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.database.changes import Changes, net

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    import apsw

    from reward_kit.agent.database.changes import RowChange
    from reward_kit.agent.database.table_diff import Schema, Table

_MOST_ROWS = 20_000
"""Above this number of recorded writes the tables are compared as a whole."""

_Row = tuple[Any, ...]
_Written = tuple[str, _Row | None, _Row | None]
"""The table of a row, its values before and after one write."""


class Mark(NamedTuple):
    """A moment of a recording; ``total`` are the changes up to it, if the log does not give them."""

    position: int
    exact: bool
    missed: frozenset[str]
    total: Changes | None


class Recorder:
    """Records writes: ``log`` leads from the state with the changes ``settled`` to the present one.

    ``exact`` is false once something was written that the log does not hold, to the tables ``missed``.
    ``schema_changed`` is true once the tables are no longer those of the base. ``compare`` finds the changes
    from the base without the log; it is given the names of tables that did not change.
    """

    def __init__(
        self,
        schema: Schema,
        compare: Callable[[Collection[str]], Changes],
        settled: Changes,
        log: Iterable[_Written] = (),
    ) -> None:
        self._tables = schema.recordable
        self._unrecorded = schema.unrecorded
        self._names = schema.tables.keys()
        self._compare = compare
        self.settled = settled
        self.log = list(log)
        self.schema_changed = False
        self._exact = True
        self._missed: set[str] = set()
        self._known: Changes | None = None

    @property
    def exact(self) -> bool:
        """True if ``log`` tells all that was written."""
        return self._exact and not self.schema_changed

    def note(self, update: apsw.PreUpdate) -> None:
        """SQLite's pre-update hook: a row is about to be written."""
        table = update.table_name
        if table in self._tables:
            if update.database_name == "main":
                try:
                    self.log.append((table, update.old, update.new))
                except UnicodeDecodeError:  # comparing will report it
                    self._miss(table)
                if len(self.log) > _MOST_ROWS:
                    self.log.pop()
                    self._miss(table)
        elif table in self._unrecorded and update.database_name == "main":
            self._miss(self._unrecorded[table])

    def forget_known(self) -> None:
        """A statement that may write is about to run."""
        self._known = None

    def cut(self, position: int) -> None:
        """Forget the entries from ``position`` on: what they record was undone."""
        del self.log[position:]

    def distrust(self) -> None:
        """Some of what was written was undone, and the log does not tell which."""
        self._exact = False

    def position(self) -> Mark:
        """The present moment, for ``restore`` alone."""
        return Mark(len(self.log), self._exact, frozenset(self._missed), None)

    def mark(self, *, settle: bool) -> Mark:
        """The present moment; with ``settle`` (no transaction is open) the log may begin anew from it."""
        if self.exact:
            return self.position()
        total = self.total()
        if settle:
            self.settled, self.log, self._exact = total, [], True
            self._missed.clear()
        return Mark(len(self.log), self._exact, frozenset(self._missed), total)

    def restore(self, mark: Mark) -> None:
        """The writes since ``mark`` were undone."""
        self._known = None
        self.cut(mark.position)
        self._exact, self._missed = mark.exact, set(mark.missed)

    def since(self, mark: Mark) -> Changes:
        """The changes from ``mark`` to now."""
        if self.exact:
            written = self.log[mark.position :]
            return Changes.deferred(partial(_net, written, self._tables)) if written else Changes()
        before = mark.total
        if before is None:
            before = self.settled.then(Changes(_net(self.log[: mark.position], self._tables)))
        return self.total().minus(before)

    def total(self) -> Changes:
        """The changes from the base to the present state; ``DatabaseError`` if they cannot be read."""
        if self._known is None:
            if self.exact:
                self._known = self.settled.then(Changes(_net(self.log, self._tables)))
            else:
                written = {table for table, _, _ in self.log} | {change.table for change in self.settled}
                unchanged = () if self.schema_changed else self._names - self._missed - written
                self._known = self._compare(unchanged)
        return self._known

    def _miss(self, table: str) -> None:
        self._exact = False
        self._missed.add(table)


def _net(written: Iterable[_Written], tables: Mapping[str, Table]) -> Iterator[RowChange]:
    return net(change for entry in written for change in _changes_of(entry, tables))


def _changes_of(entry: _Written, tables: Mapping[str, Table]) -> Iterator[RowChange]:
    """The change of one write; two if it gave the row another key, or the row has none."""
    name, before, after = entry
    table = tables[name]
    if table.positions is not None:
        before = before and tuple([before[place] for place in table.positions])
        after = after and tuple([after[place] for place in table.positions])
    if before is not None and after is not None:
        deleted, inserted = table.deleted(before), table.inserted(after)
        if deleted.key is not None and deleted.row_identity() == inserted.row_identity():
            change = table.updated(before, after)
            if change is not None:
                yield change
            return
        yield from (deleted, inserted)
    elif before is not None:
        yield table.deleted(before)
    elif after is not None:
        yield table.inserted(after)
