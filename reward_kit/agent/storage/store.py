"""The store of an evaluation: one SQLite file that a single process writes and anybody reads.

::

    with Store.create(folder.evals / "NAME.db", eval_id="NAME") as store:
        store.begin_run(run)
        store.add([played])            # committed and on the disk when this returns
        store.end_run("complete", None, seconds=12.0)

SQLite gives atomicity, durability and recovery (write-ahead log, ``synchronous=FULL``); readers are never
held up. The one writer holds SQLite's exclusive lock on an empty database beside the file, ``NAME.lock``: the
system releases it when the process ends, however that ends, and no fork of the process inherits it.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from reward_kit.agent.base.files import storage_error, sync_folder
from reward_kit.agent.records.evaluation_file import (
    APPLICATION,
    SCHEMA,
    VERSION,
    check_format,
    connect,
    sqlite_faults,
)
from reward_kit.agent.storage.outcome_rows import as_json, columns, storable, totals
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from reward_kit.agent.records.broken_off import BrokenOff
    from reward_kit.agent.records.played import PlayedRollout, RowGold

T = TypeVar("T")

LOCK_PATIENCE = 0.5
"""Seconds that the lock may be held by somebody who only looks whether it is free."""
COMMIT_PATIENCE = 60.0
"""Seconds that a commit waits for readers, in the rollback journal mode."""


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row as it is about to be evaluated.

    ``n_rollouts`` are planned, ``base`` is the key of its seed, ``fields`` are those of
    the row; ``fingerprints`` identify them, and everything else that its results depend on.
    """

    row_id: str
    n_rollouts: int
    base: str
    fields: Mapping[str, Any]
    fingerprints: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """The settings of one run of an evaluation: the first, or one that resumes it.

    ``code`` holds the fingerprint of each module, ``toolsets`` tools in the OpenAI format by the fingerprint
    that ``rows`` have of them.
    """

    eval_id: str
    configuration: Mapping[str, Any]
    versions: Mapping[str, str]
    code: Mapping[str, str]
    toolsets: Mapping[str, list[dict[str, Any]]]
    rows: Sequence[StoredRow]


class Store:
    """Writes an evaluation's file; used by several threads, one at a time.

    Raises ``StorageError`` where another process writes it, where it is a link, is no evaluation, or cannot
    be written.
    """

    def __init__(self, path: Path) -> None:
        """Open ``path`` to write it, and make it if need be."""
        if path.is_symlink():
            raise StorageError(
                "is a link, so that another file would be written to",
                place=str(path),
                remedy="Remove it: an evaluation makes this file by itself.",
            )
        self.path = path
        self.run = 0
        self._guard = threading.Lock()
        self._lost: StorageError | None = None
        self._lock = _lock(path)
        try:
            with sqlite_faults(path):
                self._connection = sqlite3.connect(
                    path, timeout=COMMIT_PATIENCE, isolation_level=None, check_same_thread=False
                )
                with suppress(sqlite3.OperationalError):  # a file system without it: the rollback journal
                    self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = FULL")
                self._prepare()
            self._file = path.stat()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        """Make the tables of a new file."""
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables:
            check_format(self._connection, self.path)
            return
        self._connection.execute("BEGIN IMMEDIATE")
        for statement in SCHEMA.split(";\n"):
            self._connection.execute(statement)
        self._connection.execute(f"PRAGMA application_id = {APPLICATION}")
        self._connection.execute(f"PRAGMA user_version = {VERSION}")
        self._connection.execute("COMMIT")
        try:
            sync_folder(self.path.parent)
        except OSError as error:
            raise storage_error(error, self.path) from error

    @property
    def begun(self) -> bool:
        """True if there was a run, this one included."""
        return (
            self.read(lambda connection: connection.execute("SELECT 1 FROM evaluation").fetchone())
            is not None
        )

    def begin_run(self, run: Run) -> None:
        """Store the settings of this run, and its rows; a row that is known keeps its fields."""
        self._write(lambda: self._insert_run(run))

    def _insert_run(self, run: Run) -> None:
        begun = self._connection.execute(
            "INSERT INTO evaluation"
            " (eval_id, created, status, writer, configuration, versions, code, toolsets)"
            " VALUES (?, ?, 'running', ?, ?, ?, ?, ?)",
            (
                run.eval_id,
                time.time(),
                f"{os.getpid()} on {socket.gethostname()}",
                *map(as_json, (run.configuration, run.versions, run.code, run.toolsets)),
            ),
        )
        self.run = begun.lastrowid or 0
        self._connection.execute("UPDATE rows SET n_rollouts = 0 WHERE n_rollouts")
        self._connection.executemany(
            "INSERT INTO rows (row_id, position, n_rollouts, base, fields, fingerprints)"
            " VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET n_rollouts = excluded.n_rollouts, position = excluded.position",
            (
                (
                    row.row_id,
                    position,
                    row.n_rollouts,
                    row.base,
                    as_json(row.fields),
                    as_json(row.fingerprints),
                )
                for position, row in enumerate(run.rows)
            ),
        )

    def end_run(self, status: str, reason: str | None, seconds: float) -> None:
        """Store how this run ended."""
        self._write(
            lambda: self._connection.execute(
                "UPDATE evaluation SET status = ?, reason = ?, seconds = ? WHERE run = ?",
                (status, storable(reason), seconds, self.run),
            )
        )

    def add(self, played: Sequence[PlayedRollout]) -> None:
        """Store attempts in one transaction; they are on the disk when this returns.

        One that is stored already is replaced. Raises ``StorageError`` if they cannot be written: then none
        of them is.
        """

        def add() -> None:
            for one in played:
                self._add(one)

        self._write(add)

    def _add(self, played: PlayedRollout) -> None:
        execute = self._connection.execute
        values = columns(played, self.run)
        names = ", ".join(values)
        updates = ", ".join(f"{name} = excluded.{name}" for name in values if name not in ("id", "run"))
        execute(
            f"INSERT INTO rollouts ({names}) VALUES ({', '.join('?' * len(values))})"  # noqa: S608 - our names
            f" ON CONFLICT (id) DO UPDATE SET {updates}",
            tuple(values.values()),
        )
        rollout = played.outcome.id
        execute("INSERT OR REPLACE INTO trajectories VALUES (?, ?)", (rollout, played.trajectory))
        for kind, state in (("final", played.state), ("gold", played.gold_state)):
            if state is not None:
                execute("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", (rollout, kind, state))
        if played.row_gold is not None:
            self._add_gold(played.row_gold)

    def _add_gold(self, gold: RowGold) -> None:
        self._connection.execute(
            "UPDATE rows SET gold_calls = ?, gold_changes = ?, gold_state = ?"
            " WHERE row_id = ? AND gold_calls IS NULL",
            (as_json(gold.calls), as_json(gold.changes), gold.state, gold.row_id),
        )

    def add_usage(self, kind: str, used: BrokenOff) -> None:
        """Store what was used apart from finished rollouts: ``kind`` is ``broken_off`` or ``explanation``."""
        self._write(lambda: self._add_usage(kind, used))

    def _add_usage(self, kind: str, used: BrokenOff) -> None:
        self._connection.execute(
            "INSERT INTO usage (run, created, kind, rollouts, tokens, cost, usage)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (self.run, time.time(), kind, used.rollouts, *totals(used.usage), as_json(used.usage)),
        )

    def add_note(
        self,
        kind: str,
        content: Mapping[str, Any],
        *,
        rollout: str | None = None,
        used: BrokenOff | None = None,
    ) -> None:
        """Store a note, with what making it has ``used``."""

        def add() -> None:
            self._connection.execute(
                "INSERT INTO notes (run, created, kind, rollout, json) VALUES (?, ?, ?, ?, ?)",
                (self.run, time.time(), kind, rollout, as_json(content)),
            )
            if used is not None:
                self._add_usage(kind, used)

        self._write(add)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The result of ``work``, which reads over this store's connection."""
        with self._guard, sqlite_faults(self.path):
            return work(self._connection)

    def notes(self, kind: str) -> list[dict[str, Any]]:
        """The notes of a kind, in the order in which they were made."""
        query = "SELECT json FROM notes WHERE kind = ? ORDER BY id"
        texts = self.read(lambda connection: connection.execute(query, (kind,)).fetchall())
        try:
            return [json.loads(text) for (text,) in texts]
        except (ValueError, TypeError) as error:
            raise StorageError(f"holds a damaged {kind}: {error}", place=str(self.path)) from error

    def _write(self, work: Callable[[], object]) -> None:
        """Do ``work`` as one transaction; what it has written is on the disk when this returns."""
        with self._guard, sqlite_faults(self.path):
            if self._lost is not None:
                raise self._lost
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                work()
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            self._check_file()

    def _check_file(self) -> None:
        """Raise ``StorageError`` where the file is not there any more: SQLite would write to no name."""
        try:
            there = os.path.samestat(self.path.lstat(), self._file)
        except OSError:
            there = False
        if not there:
            self._lost = StorageError(
                "was deleted or replaced while the evaluation runs",
                place=str(self.path),
                remedy="What finishes from now on would be lost. Restore the file, or begin anew.",
            )
            raise self._lost

    def close(self) -> None:
        """Close the file, and release the lock; may be called again."""
        if hasattr(self, "_connection"):
            with suppress(sqlite3.Error):
                self._connection.close()
        _lock_path(self.path).unlink(missing_ok=True)
        self._lock.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _lock_path(path: Path) -> Path:
    return path.with_suffix(".lock")


def _lock(path: Path) -> sqlite3.Connection:
    """Hold the lock of an evaluation, until the connection is closed."""
    place = _lock_path(path)
    while True:
        try:
            place.touch()
            before = place.lstat()
        except OSError as error:
            raise storage_error(error, place) from error
        with sqlite_faults(place):
            lock = sqlite3.connect(
                place, timeout=LOCK_PATIENCE, isolation_level=None, check_same_thread=False
            )
        try:
            lock.execute("BEGIN EXCLUSIVE")
            # The former holder may have removed the file after it was opened here: that lock is on nothing.
            if os.path.samestat(before, place.lstat()):
                return lock
        except FileNotFoundError:
            pass
        except sqlite3.OperationalError as error:
            lock.close()
            if "locked" not in str(error):
                with sqlite_faults(place):
                    raise
            holder = _writer(path)
            raise StorageError(
                f"another process{f' ({holder})' if holder else ''} is running this evaluation",
                place=path.stem,
                remedy="Wait for it to end, or choose another --eval-id.",
            ) from error
        lock.close()


def writer_of(path: Path) -> str | None:
    """The process that writes the evaluation now; None if nobody does."""
    place = _lock_path(path)
    if not place.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{place.absolute().as_uri()}?mode=rw", uri=True, timeout=0)) as probe:
            probe.isolation_level = None
            probe.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            return f"process {_writer(path)}"
    return None


def _writer(path: Path) -> str | None:
    """Number and host of the process that began the last run."""
    with suppress(StorageError, sqlite3.Error), closing(connect(path)) as connection:
        found = connection.execute("SELECT writer FROM evaluation ORDER BY run DESC LIMIT 1").fetchone()
        return None if found is None else str(found[0])
    return None
