"""What a database holds that its base does not, row by row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from reward_kit.agent.database.change_algebra import cancel, compose, subtract
from reward_kit.agent.database.change_lines import describe_difference, describe_row
from reward_kit.agent.database.row_change import RowChange

__all__ = ["Changes", "RowChange"]


class Changes(Sequence[RowChange]):
    """The net row changes from a base, in a stable order: by table, key, operation.

    Two states of one base hold equal rows exactly if their changes are equal.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: Iterable[RowChange] = ()) -> None:
        self._rows = tuple(sorted(rows, key=RowChange.sort_key))

    @overload
    def __getitem__(self, index: int) -> RowChange: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RowChange, ...]: ...
    def __getitem__(self, index: int | slice) -> RowChange | tuple[RowChange, ...]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[RowChange]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Changes) and self.equals(other)

    def __hash__(self) -> int:
        return hash(self._rows)

    def __repr__(self) -> str:
        return f"Changes({list(self._rows)!r})"

    def equals(self, other: Changes, ignore: Collection[str] = ()) -> bool:
        """Whether both lead to the same rows; 60 and 60.0 differ, as do -0.0 and 0.0, 'a' and b'a'.

        ``ignore`` names what does not count: ``"table.column"``, ``"*.column"`` or ``"table"``.  Rows of a
        table whose key is ignored are compared by their other columns.
        """
        return tuple(self.ignoring(ignore)) == tuple(other.ignoring(ignore))

    def ignoring(self, ignore: Collection[str]) -> Changes:
        """These changes without what ``ignore`` names (see :meth:`equals`)."""
        if not ignore:
            return self
        tables, columns = _parse_ignore(ignore)
        kept = []
        for row in self._rows:
            table = row.table.casefold()
            if table in tables:
                continue
            rest = row.without(columns.get(table, set()) | columns.get("*", set()))
            if rest is not None:
                kept.append(rest)
        return Changes(cancel(kept))

    def minus(self, earlier: Changes) -> Changes:
        """What came after ``earlier``: the changes that lead from that state of the base to this one."""
        return Changes(subtract(self._rows, earlier._rows)) if earlier else self

    def then(self, later: Changes) -> Changes:
        """The inverse of ``minus``: from the base over this state to the end of ``later``."""
        return Changes(compose(self._rows, later._rows)) if self and later else (self or later)

    def describe(self, expected: Changes, ignore: Collection[str] = (), *, limit: int = 20) -> list[str]:
        """How this differs from ``expected``, one line per fault; empty when they are equal.

        ``orders #W2611340 status: expected 'cancelled', got 'pending'``.  After ``limit`` lines: ``... and
        N more``.
        """
        return describe_difference(self.ignoring(ignore), expected.ignoring(ignore), limit)

    def lines(self, *, whole: bool = False) -> list[str]:
        """The changes as lines for a person; long values are cut unless ``whole``."""
        return [line for row in self._rows for line in describe_row(row, whole=whole)]

    def to_json(self) -> list[dict[str, Any]]:
        """A list of dicts of JSON values; blobs become ``{"$blob": hex}``."""
        return [row.to_json() for row in self._rows]

    @classmethod
    def from_json(cls, records: Iterable[Mapping[str, Any]]) -> Changes:
        """The inverse of ``to_json``."""
        return cls(map(RowChange.from_json, records))


def _parse_ignore(ignore: Collection[str]) -> tuple[set[str], dict[str, set[str]]]:
    """Whole tables, and table -> columns, all casefolded as SQLite folds names."""
    tables: set[str] = set()
    columns: dict[str, set[str]] = {}
    for name in [ignore] if isinstance(ignore, str) else ignore:
        table, dot, column = name.casefold().rpartition(".")
        if dot:
            columns.setdefault(table, set()).add(column)
        else:
            tables.add(column)
    return tables, columns
