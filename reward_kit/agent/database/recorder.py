"""The rows written to a fork, as SQLite's pre-update hook reports them.

A write costs one entry in a list.  The net changes are computed from the entries when they are read.  Tables
whose rows the hook does not report (virtual tables, virtual columns, changes of the schema) are compared with
those of the base.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from reward_kit.agent.database.changes import NO_CHANGES, Changes, net

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    import apsw

    from reward_kit.agent.database.changes import RowChange
    from reward_kit.agent.database.determinism import Randomness
    from reward_kit.agent.database.table_diff import Schema, Table

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
        """Forget the entries from ``position`` on: what they record was undone."""
        del self.log[position:]

    def distrust(self) -> None:
        """Some of what was written was undone, and the log does not tell which."""
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
        """SQLite has taken back what was written since ``mark``."""
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
            return Changes(find=partial(_net, written, self._schema.recordable))
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
        return Changes(_net(log, self._schema.recordable))

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
