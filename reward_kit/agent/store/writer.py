"""The store of an evaluation: one SQLite file that a single process writes and anybody reads.

SQLite gives atomicity, durability and recovery (write-ahead log, ``synchronous=FULL``); readers are never
held up. Texts are written without secrets; a trace that had one is ``redacted``. Final states are
data of the bundle: they stay as they are.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sqlite3
import threading
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import json_text
from reward_kit.agent.base.files import Closing, as_storage_error, sync_folder
from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.redaction import hide
from reward_kit.agent.base.worker_thread import Waiters, completed, in_thread
from reward_kit.agent.store.evaluation_file import check_file, check_format, checksum, reading, sqlite_faults
from reward_kit.agent.store.schema import APPLICATION, SCHEMA, VERSION, WRITTEN, row_of, storable
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.rollout.outcome import BrokenOff, Played
    from reward_kit.agent.store.resume import Run

PATIENCE = 0.5
"""Seconds that the lock may be held by somebody who only looks whether it is free."""
COMMIT_PATIENCE = 60.0
"""Seconds that a commit waits for readers, in the rollback journal mode."""
PAGE_SIZE = 8192
"""Bytes: a trajectory takes few pages, and an index that is hit at random none too large."""
LARGEST_GROUP = 64
"""Rollouts in one transaction; a quarter of those that wait if that is more."""
GATHERING = 18
"""Turns of the event loop in which further rollouts join a group: each group wakes a thread, which holds up
the loop's at every statement."""
_REDACTED = re.compile(r'("redacted":\s*)false')
"""The first is the field of the trace: texts cannot hold a bare quote."""
_OF_VALUES = sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError
_ROLLOUTS = f"INTO rollouts ({', '.join(WRITTEN)})"
_UPDATE = "ON CONFLICT (id) DO UPDATE SET " + ", ".join(
    f"{name} = excluded.{name}" for name in WRITTEN if name not in ("id", "run")
)


class Store(Closing):
    """Writes an evaluation's file; used by several threads, one at a time.

    Raises ``StorageError`` if another process writes it, if it is a link or no evaluation, or cannot be
    written.
    """

    def __init__(self, path: Path) -> None:
        """Open ``path`` to write it, and make it if need be."""
        check_file(path)
        self.path = path
        self.run = 0
        self.has_runs = False
        self.hidden: set[str] = set()
        """The names of the secrets that were in texts, with the lengths of their values."""
        self._guard = threading.RLock()
        with ExitStack() as opened:
            opened.enter_context(writer_lock(path))
            with sqlite_faults(path):
                self._connection = sqlite3.connect(
                    path, timeout=COMMIT_PATIENCE, isolation_level=None, check_same_thread=False
                )
                opened.callback(self._connection.close)
                self._prepare(self._connection)
            self._file = path.stat()
            self._opened = opened.pop_all()

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")  # of a new file
        with suppress(sqlite3.OperationalError):  # a file system without it: the rollback journal
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            check_format(connection, self.path)
            self.has_runs = connection.execute("SELECT 1 FROM evaluation").fetchone() is not None
            return
        head = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}"
        connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} {head}; COMMIT")
        with as_storage_error(self.path):
            sync_folder(self.path.parent)

    def begin_run(self, run: Run) -> None:
        """Store the settings of this run, and its rows; a known row keeps its fields but ``n_rollouts``."""
        values = run.eval_id, time.time(), f"{os.getpid()} on {socket.gethostname()}"
        with self.transaction() as connection:
            begun = connection.execute(
                "INSERT INTO evaluation"
                " (eval_id, created, status, writer, configuration, versions, code, toolsets)"
                " VALUES (?, ?, 'running', ?, ?, ?, ?, ?)",
                (*values, *map(self._text, (run.configuration, run.versions, run.code, run.toolsets))),
            )
            self.run = begun.lastrowid or 0
            connection.execute("UPDATE rows SET n_rollouts = 0 WHERE n_rollouts")
            query = (
                "INSERT INTO rows (row_id, n_rollouts, position, base, fields, fingerprints)"
                " VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET n_rollouts = excluded.n_rollouts, position = excluded.position,"
                " fields = json_patch(fields, json_object('n_rollouts', excluded.fields ->> 'n_rollouts'))"
            )
            for place, one in enumerate(run.rows):
                texts = self._text(one.fields), self._text(one.fingerprints)
                connection.execute(query, (one.row.id, one.n_rollouts, place, one.seed.key, *texts))

    def plan_as_played(self) -> None:
        """Reduce the planned rollouts of each row to those that have been played."""
        with self.transaction() as connection:
            connection.execute(
                "UPDATE rows SET n_rollouts = (SELECT count(DISTINCT idx) FROM rollouts"
                " WHERE rollouts.row_id = rows.row_id AND final) WHERE n_rollouts"
            )

    def end_run(
        self, status: str, reason: str | None, seconds: float, results: Mapping[str, Any] | None = None
    ) -> None:
        """Store how this run ended; ``results`` are those that do not follow from the rollouts."""
        with self.transaction() as connection:
            connection.execute(
                "UPDATE evaluation SET status = ?, reason = ?, seconds = ? WHERE run = ?",
                (status, storable(reason, self.hidden), seconds, self.run),
            )
            if results:
                self.add_note("results", results)

    def continue_run(self) -> None:
        """Store notes with the last run, which is over."""
        (self.run,) = self._connection.execute("SELECT max(run) FROM evaluation").fetchone()

    def add(self, played: Sequence[Played]) -> None:
        """Store attempts in one transaction; they are on the disk when this returns.

        One that is stored already is replaced. Raises ``StorageError`` if they cannot be written: then none
        of them is.
        """
        with self.transaction() as connection:
            rollouts, traces, states = [], [], []
            for one in played:
                rollout = one.outcome.id
                rollouts.append(row_of(one.outcome, self.run, self.hidden))
                trace = hide(one.trace, self.hidden)
                if trace != one.trace:
                    trace = _REDACTED.sub(r"\1true", trace, count=1)
                traces.append((rollout, trace, checksum(trace)))
                for kind, state in (("final", one.state), ("gold", one.gold_state)):
                    if state is not None:
                        states.append((rollout, kind, state, checksum(state)))
                if (gold := one.row_gold) is not None:
                    texts = self._text(gold.calls), self._text(gold.changes)
                    connection.execute(
                        "UPDATE rows SET gold_calls = ?, gold_changes = ?, gold_state = ?, gold_crc = ?"
                        " WHERE row_id = ? AND gold_calls IS NULL",
                        (*texts, gold.state, checksum(gold.state), gold.row_id),
                    )
            self._insert(_ROLLOUTS, rollouts, _UPDATE)
            self._insert("OR REPLACE INTO traces", traces)
            self._insert("OR REPLACE INTO states", states)

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]], rest: str = "") -> None:
        """Insert many rows with each statement, during which the event loop's thread can run."""
        for start in range(0, len(rows), LARGEST_GROUP):
            some = rows[start : start + LARGEST_GROUP]
            places = ", ".join([f"({', '.join('?' * len(some[0]))})"] * len(some))
            query = f"INSERT {table} VALUES {places} {rest}"  # noqa: S608
            self._connection.execute(query, [*chain.from_iterable(some)])

    def add_usage(self, kind: str, used: BrokenOff) -> None:
        """Store usage apart from finished rollouts: ``kind`` is ``broken_off`` or ``explanation``."""
        if not used.rollouts:
            return
        values = kind, used.rollouts, used.total.tokens, used.total.cost, json_text(used.usage)
        query = "INSERT INTO usage VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)"
        with self.transaction() as connection:
            connection.execute(query, (self.run, time.time(), *values))

    def add_note(self, kind: str, content: Any, rollout: str | None = None) -> None:
        query = "INSERT INTO notes VALUES (NULL, ?, ?, ?, ?, ?)"
        with self.transaction() as connection:
            connection.execute(query, (self.run, time.time(), kind, rollout, self._text(content)))

    def _text(self, content: Any) -> str:
        return hide(json_text(content), self.hidden)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction of all calls inside; their writes are on the disk at the end."""
        connection = self._connection
        with self._guard, sqlite_faults(self.path):
            if connection.in_transaction:
                yield connection
                return
            self._check_file()
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                yield connection
            self._check_file()

    def _check_file(self) -> None:
        """Raise ``StorageError`` if the file is not there any more, or cut: SQLite would write to no name."""
        with suppress(OSError):
            now = self.path.lstat()
            if os.path.samestat(now, self._file) and now.st_size >= self._file.st_size:
                return
        fault = "was deleted, replaced or cut while the evaluation runs"
        remedy = "What finishes from now on would be lost. Restore the file, or begin anew."
        raise StorageError(fault, place=str(self.path), remedy=remedy)

    def close(self) -> None:
        """Close the file, and release the lock; may be called again."""
        with self._guard, suppress(sqlite3.Error):
            self._opened.close()


class UnstorableError(StorageError):
    """A rollout that cannot be written because of its values, not of the file."""


class Saver:
    """Writes to ``store`` in a thread, for one event loop: while a group is written, the next gathers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[Played] = []
        self._saved: Waiters[int, None] = Waiters()
        self._writing: asyncio.Task[None] | None = None
        self._usages: list[asyncio.Future[None]] = []

    def save(self, played: Played) -> asyncio.Future[None]:
        """Write ``played`` soon: the future is done when it is on the disk.

        It has a ``StorageError`` if the file cannot be written, and an ``UnstorableError`` if this rollout
        cannot.
        """
        saved = self._saved.wait(id(played))
        self._waiting.append(played)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        return saved

    async def _write(self) -> None:
        with self._saved:
            while self._waiting:
                for _ in range(GATHERING):
                    if len(self._waiting) < LARGEST_GROUP:
                        await asyncio.sleep(0)
                size = max(LARGEST_GROUP, len(self._waiting) // 4)
                group, self._waiting = self._waiting[:size], self._waiting[size:]
                await self._add(group)

    async def _add(self, group: Sequence[Played]) -> None:
        """Write a group at once; if one of its rollouts makes that fail, each in turn."""
        try:
            await in_thread(partial(self._store.add, group))
        except Exception as error:  # noqa: BLE001 - values of foreign code, which SQLite converts
            is_own = not isinstance(error, StorageError) or isinstance(error.__cause__, _OF_VALUES)
            if is_own and len(group) > 1:
                for one in group:
                    await self._add([one])
                return
            fault = UnstorableError(fault_line(error.__cause__ or error)) if is_own else error
            for one in group:
                self._saved.fail(id(one), fault)
        else:
            for one in group:
                self._saved.answer(id(one), None)

    def add_usage(self, used: BrokenOff) -> None:
        """Store the usage of aborted attempts soon; ``close`` returns the fault if that fails."""
        adding = in_thread(partial(self._store.add_usage, "broken_off", used))
        self._usages.append(asyncio.ensure_future(adding))

    async def close(self) -> BaseException | None:
        """Wait for all that was given; the first fault of ``add_usage``, if there was one."""
        writing = {*self._usages, *([self._writing] if self._writing is not None else [])}
        if writing:
            await completed(asyncio.wait(writing), f"{self._store.path}: storing rollouts")
        done = await asyncio.gather(*self._usages, return_exceptions=True)
        return next((fault for fault in done if fault is not None), None)


@contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Hold the lock of the evaluation at ``path``; raises ``StorageError`` if another process has it.

    Its file stays: a process that removed it might remove the lock of the next holder.
    """
    place = path.with_suffix(".lock")
    with as_storage_error(place):
        place.touch()
    lock = sqlite3.connect(place, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
    with closing(lock):
        try:
            with sqlite_faults(place):
                lock.execute("BEGIN EXCLUSIVE")
        except StorageError as error:
            if "locked" not in error.fault:
                raise
            holder = _last_writer(path)
            fault = f"{f'process {holder}' if holder else 'another process'} is running this evaluation"
            remedy = "Wait for it to end, or choose another --eval-id."
            raise StorageError(fault, place=path.stem, remedy=remedy) from error
        yield


def writer_of(path: Path) -> str | None:
    """The process that writes the evaluation at ``path`` now; None without one."""
    place = path.with_suffix(".lock").absolute()
    try:
        with closing(sqlite3.connect(f"{place.as_uri()}?mode=rw", uri=True, timeout=0)) as probe:
            probe.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:  # also if there is no such file
        if "locked" in str(error):
            return f"process {_last_writer(path)}"
    return None


def _last_writer(path: Path) -> str | None:
    """Number and host of the process that began the last run."""
    with suppress(StorageError), reading(path) as connection:
        for (writer,) in connection.execute("SELECT writer FROM evaluation ORDER BY run DESC LIMIT 1"):
            return str(writer)
    return None
