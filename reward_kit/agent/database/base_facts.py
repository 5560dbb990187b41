"""What recorders ask about a base again and again."""

from __future__ import annotations

import weakref
from contextlib import closing
from typing import TYPE_CHECKING, Any

from reward_kit.agent.database.overlay_diff import base_connection
from reward_kit.agent.database.schema import Table, quote_name, read_schema
from reward_kit.agent.database.table_diff import RowLayout, select_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.database.base_image import BaseImage

_SHORT_CHAIN = 100


class BaseFacts:
    """The schema of a base and its rows with NULL in the primary key.

    ``watched`` names the tables whose written rows have to be noted, because sessions may miss what happens
    to them: see ``Table.recordable``.  A NULL in the only column of a key needs no note, the key's index
    finds it.
    """

    def __init__(self, base: BaseImage) -> None:
        with closing(base_connection(base)) as connection:
            self.schema = read_schema(connection.execute)
        self.watched = [
            table.name
            for table in self.schema.tables.values()
            if table.recordable
            and table.rowid is not None
            and (table.loose or (table.nullable_key and len(table.key) > 1))
        ]
        self._null_keys: dict[str, list[Sequence[Any]]] = {}

    def null_keys(self, base: BaseImage, table: Table) -> list[Sequence[Any]]:
        """The rows of ``table`` in the base that have NULL in the key."""
        rows = self._null_keys.get(table.name)
        if rows is None:
            with closing(base_connection(base)) as connection:
                rows = self._null_keys[table.name] = list(connection.execute(null_key_query(table)))
        return rows


_facts: weakref.WeakKeyDictionary[BaseImage, BaseFacts] = weakref.WeakKeyDictionary()


def facts_of(base: BaseImage) -> BaseFacts:
    """The facts about ``base``, gathered once per process."""
    facts = _facts.get(base)
    if facts is None:
        facts = _facts[base] = BaseFacts(base)
    return facts


def has_null_key(table: Table) -> str:
    """The SQL condition for rows of ``table`` with NULL in the key."""
    return _any_of([f"{quote_name(column)} IS NULL" for column in table.key])


def may_be_misread(table: Table) -> str:
    """The SQL condition for rows of ``table`` in which sessions may take one number for another.

    They see no change where 0.0 becomes -0.0; and where a key of 1 becomes 1.0, they find the row by the one
    and file it under the other.
    """
    conditions = []
    for column in table.loose:
        name = quote_name(column)
        is_zero = f"(typeof({name}) = 'real' AND {name} = 0.0)"
        is_number = f"typeof({name}) IN ('integer', 'real')"
        conditions.append(is_number if column in table.key else is_zero)
    return _any_of(conditions)


def null_key_query(table: Table) -> str:
    """The query for the rows of ``table`` with NULL in the key."""
    return select_rows(table, RowLayout(table.name, table.columns, table.key), has_null_key(table))


def _any_of(conditions: list[str]) -> str:
    """The conditions joined by OR, halved again and again: of 2000 columns SQLite takes no chain of 1000."""
    if len(conditions) <= _SHORT_CHAIN:
        return " OR ".join(conditions)
    middle = len(conditions) // 2
    return f"({_any_of(conditions[:middle])}) OR ({_any_of(conditions[middle:])})"
