"""Seeding: SQL text or a script becomes a base, a finished read-only SQLite file."""

from __future__ import annotations

import contextlib
import inspect
import os
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from reward_kit.agent.base.files import draft_beside
from reward_kit.agent.database.base_image import FOREIGN_KEYS_ON
from reward_kit.agent.database.determinism import Randomness, frozen_clock, julian_day, read_moment
from reward_kit.agent.database.seed_connection import SeedConnection
from reward_kit.agent.database.sql_text import ScriptStatement, split_statements
from reward_kit.errors import BundleError, DatabaseError, RewardKitError, StorageError, UsageError

_RANDOM_SEED = 0
"""The same for all seeds: an edit in one place of a seed leaves the random values before it as they were."""
_NO_SQL = "Lines with a dot are commands of the program sqlite3, no SQL: leave them out."
_QUOTED = 100
"""Longest beginning of a faulty statement (characters) that an error quotes."""

SeedScript = Callable[[SeedConnection], None]


def seed_base(
    path: str | os.PathLike[str],
    sql: str | None = "",
    *,
    script: SeedScript | None = None,
    origin: str = "seed SQL",
    now: datetime | str | None = None,
) -> Path:
    """Run ``sql``, then ``script``, on an empty database and publish it at ``path``; returns the path.

    The same seed gives the same rows: ``random()`` and ``randomblob()`` start from a fixed seed, and the
    clock stands still at ``now``, or if there is none at the moment the seeding began.  A seed that reads
    the clock is therefore repeatable only with ``now``.

    ``BundleError`` with the place ``origin:LINE`` for a faulty statement, ``StorageError`` if the file cannot
    be written, ``UsageError`` for what is no SQL (None: none) or no function.  Nothing is left behind then,
    and an older file at ``path`` stays.
    """
    _check_kinds(sql, script)
    target = Path(path)
    if "\0" in str(target):
        raise StorageError("the path has a NUL character", place=repr(str(target)))
    if not target.parent.is_dir():
        raise StorageError(f"there is no folder {target.parent}", place=str(target), remedy="Make it first.")
    moment = read_moment(now)
    with draft_beside(target) as temporary:
        temporary.touch(
            exist_ok=False
        )  # what SQLite says of a folder that cannot be written in is less clear
        with frozen_clock(julian_day(moment or datetime.now(UTC))):
            _write(SeedConnection(temporary, Randomness(_RANDOM_SEED)), sql or "", script, origin)
        with temporary.open("r+b") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o444)
        temporary.replace(target)
    return target


def _write(seed: SeedConnection, sql: str, script: SeedScript | None, origin: str) -> None:
    with contextlib.closing(seed):
        _run_sql(seed, sql, origin)
        ends_at = origin
        if script is not None:
            if not seed.is_left_open:
                ends_at = getattr(script, "place", origin)
            _run_script(seed, script, origin)
        with _faults_at(ends_at):
            seed.finish()
        with _faults_at(origin):
            _finalise(seed)


def _check_kinds(sql: object, script: object) -> None:
    """Raise ``UsageError`` for what is no SQL, or no function that runs when it is called."""
    if sql is not None and not isinstance(sql, str):
        remedy = (
            "Give a function as script=." if callable(sql) else "Give what the file says: path.read_text()."
        )
        raise UsageError(f"sql= takes text, not a {type(sql).__name__}", remedy=remedy)
    if script is not None and (not callable(script) or inspect.iscoroutinefunction(script)):
        kind = "an async function" if callable(script) else f"a {type(script).__name__}"
        raise UsageError(
            f"script= takes a function, not {kind}", remedy="It is called with the open, empty database."
        )


@contextlib.contextmanager
def _faults_at(place: str) -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        raise BundleError(error.fault, place=place, remedy=error.remedy) from error


def _run_sql(seed: SeedConnection, sql: str, origin: str) -> None:
    if "\0" in sql:
        line = sql[: sql.index("\0")].count("\n") + 1
        raise BundleError("a NUL character, at which SQLite would stop reading", place=f"{origin}:{line}")
    for statement in split_statements(sql):
        _run_statement(seed, statement, origin)


def _run_statement(seed: SeedConnection, statement: ScriptStatement, origin: str) -> None:
    try:
        seed.run(statement.sql)
    except DatabaseError as error:
        offset = getattr(error.__cause__, "error_offset", -1)
        beginning = " ".join(statement.sql.split())
        if len(beginning) > _QUOTED:
            beginning = f"{beginning[: _QUOTED - 3]}..."
        place = f"{origin}:{statement.line_at(offset)}"
        message = " ".join(error.fault.split())
        remedy = _NO_SQL if statement.sql.startswith(".") else error.remedy
        raise BundleError(f"{message}, in: {beginning}", place=place, remedy=remedy) from error


def _run_script(seed: SeedConnection, script: SeedScript, origin: str) -> None:
    try:
        script(seed)
    except RewardKitError as error:
        if isinstance(error.__cause__, StorageError):  # SeedScript takes whatever happens for its own fault
            raise error.__cause__ from None
        if isinstance(error, (BundleError, StorageError)):
            raise
        raise BundleError(error.fault, place=_place_in(script, error, origin), remedy=error.remedy) from error
    except Exception as error:  # the border to foreign code: whatever it raises is a fault of the bundle
        raise BundleError(
            f"{type(error).__name__}: {error}", place=_place_in(script, error, origin)
        ) from error


def _place_in(script: SeedScript, error: Exception, origin: str) -> str:
    """``origin:LINE`` of the innermost frame that is in the script's file."""
    code = getattr(script, "__code__", None)
    file = None if code is None else code.co_filename
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{origin}:{lines[-1]}" if lines else origin


def _finalise(seed: SeedConnection) -> None:
    """Leave the file as forks want it: no journal, no free pages, and the state of foreign keys written down.

    No ANALYZE: every fork would load the statistics when it opens, and their tables would show among the
    user's.  A seed that wants them runs ANALYZE itself.
    """
    if seed.value("PRAGMA foreign_keys"):
        _check_foreign_keys(seed)
        if seed.value("PRAGMA application_id"):
            raise DatabaseError(
                "foreign_keys=ON and an application_id of the seed's own exclude each other",
                remedy="A base remembers in this field that foreign keys are on: leave it unset.",
            )
        seed.run(f"PRAGMA application_id={FOREIGN_KEYS_ON}")
    else:
        # writes page 1 even if the seed is empty: a file without pages is no database
        seed.run(f"PRAGMA user_version={seed.value('PRAGMA user_version')}")
    # VACUUM may renumber rowids, by which a full-text index refers to the texts of another table
    if not seed.value("SELECT count(*) FROM sqlite_master WHERE type = 'table' AND rootpage = 0"):
        seed.run("VACUUM")
    seed.run("PRAGMA journal_mode=DELETE")


def _check_foreign_keys(seed: SeedConnection) -> None:
    violations = seed.run("PRAGMA foreign_key_check").values
    if violations:
        table, rowid, parent, _ = violations[0]
        row = f"a row of {table}" if rowid is None else f"row {rowid} of {table}"
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        raise DatabaseError(f"{row} refers to a row of {parent} that does not exist{more}")
