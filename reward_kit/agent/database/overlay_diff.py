"""The changes of a fork that nobody recorded, found by comparing it with its base."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import apsw

from reward_kit.agent.database.changes import Changes
from reward_kit.agent.database.overlay import Overlay
from reward_kit.agent.database.schema import select
from reward_kit.agent.database.table_diff import diff_databases
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.database.base_image import BaseImage

_MANY_PAGES = 2000
"""Above this number of changed pages it does not pay to find out which tables they belong to."""


def overlay_changes(overlay: Overlay) -> Changes:
    """The changes from the base to the committed state of ``overlay``, for example of a loaded delta.

    Only tables that have changed pages are read.  ``DatabaseError`` inside a transaction, or if SQLite cannot
    read the changes.
    """
    if overlay.pristine:
        return Changes()
    with (
        faults_of_reading(),
        closing(base_connection(overlay.base)) as before,
        closing(overlay.fork().connect()) as after,
    ):
        unchanged = _unchanged_tables(before, after, overlay.changed_pages())
        return diff_databases(before.execute, after.execute, unchanged=unchanged)


@contextmanager
def faults_of_reading() -> Iterator[None]:
    """Make what goes wrong where changes are read a ``DatabaseError``: it is the database that is odd."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DatabaseError(f"a text in the database is not UTF-8: {error}") from error
    except apsw.Error as error:
        raise DatabaseError(f"cannot tell what was changed: {error}") from error


def base_connection(base: BaseImage) -> apsw.Connection:
    """A connection to the rows of the base itself."""
    return Overlay(base).connect()


def _unchanged_tables(before: apsw.Connection, after: apsw.Connection, changed_pages: list[int]) -> set[str]:
    """Tables that start at the same page in both and have no changed page, hence the same rows."""
    if "ENABLE_DBSTAT_VTAB" not in apsw.compile_options or len(changed_pages) > _MANY_PAGES:
        return set()
    roots = select(["name", "rootpage"], "sqlite_master", "type = 'table' AND rootpage > 0")
    same = set(before.execute(roots)) & set(after.execute(roots))
    changed = select(["DISTINCT name"], "dbstat", f"pageno IN ({','.join(map(str, changed_pages))})")
    return {name for name, _ in same} - {name for (name,) in after.execute(changed)}
