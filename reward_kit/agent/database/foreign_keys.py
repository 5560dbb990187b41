"""The reference to a row that does not exist, in words."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import apsw

from reward_kit.agent.base.text import cut
from reward_kit.agent.database.statement import storable_parameters

if TYPE_CHECKING:
    from reward_kit.agent.database.statement import Parameters

LONGEST = 100
"""Characters of a value that are shown."""


def broken_reference(connection: apsw.Connection) -> str | None:
    """``doctors.specialty 'PEDX' is in no row of specialties.code``: the first of them; None without any."""
    violations = connection.execute("PRAGMA foreign_key_check").fetchall()
    if not violations:
        return None
    table, rowid, parent, number = violations[0]
    keys = connection.execute("SELECT * FROM pragma_foreign_key_list(?)", [table]).fetchall()
    pairs = [(str(key[3]), key[4]) for key in keys if key[0] == number]
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    if rowid is None or not pairs:
        return f"a row of {table} refers to a row of {parent} that does not exist{more}"
    values = []
    for column, _ in pairs:
        name, of = ('"' + str(one).replace('"', '""') + '"' for one in (column, table))
        sql = f"SELECT quote({name}) FROM {of} WHERE rowid = ?"  # noqa: S608 - names of the schema
        ((value,),) = connection.execute(sql, [rowid]).fetchall()
        values.append(f"{table}.{column} {cut(str(value), LONGEST)}")
    targets = ", ".join(f"{parent}.{target}" if target else str(parent) for _, target in pairs)
    return f"{', '.join(values)} is in no row of {targets}{more}"


def why_refused(connection: apsw.Connection, sql: str, parameters: Parameters) -> str:
    """SQLite's error for a statement that breaks a foreign key, with the reference.

    The statement is run once more without the check, and undone.
    """
    why: str | None = None
    if connection.in_transaction:
        with contextlib.suppress(apsw.Error):
            connection.execute("SAVEPOINT why; PRAGMA defer_foreign_keys = ON").fetchall()
            try:
                connection.execute(sql, storable_parameters(parameters)).fetchall()
                why = broken_reference(connection)
            finally:
                undo = "ROLLBACK TO why; RELEASE why; PRAGMA defer_foreign_keys = OFF"
                connection.execute(undo).fetchall()
    return f"FOREIGN KEY constraint failed{f': {why}' if why else ''}"
