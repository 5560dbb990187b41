"""Turns at one database: which statement runs, in which thread, and in which transaction.

A scope begins its SQLite transaction (inside of another one, its savepoint) with its first statement that is
not a mere query.
"""

from __future__ import annotations

import asyncio
from concurrent import futures
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from reward_kit.agent.database.guard import NotNowError, describe_statement
from reward_kit.agent.database.scope import Scope, current_scope
from reward_kit.agent.database.statement import plain
from reward_kit.errors import DatabaseError, QueryTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.database.file_store import FileStore
    from reward_kit.agent.database.overlay_store import OverlayStore
    from reward_kit.agent.database.statement import ExecuteResult, Statement

    Store: TypeAlias = OverlayStore | FileStore

_Result = TypeVar("_Result")

_threads = futures.ThreadPoolExecutor(max_workers=4, thread_name_prefix="reward-kit-database")
"""For the few statements, of all databases, that take too long for an event loop."""


class Turns:
    """Runs the statements on ``store`` one at a time, each in the transaction of the scope it is in.

    No changes of the tables ``hidden`` are shown.
    """

    def __init__(self, store: Store, hidden: tuple[str, ...] = ()) -> None:
        self.store = store
        self.hidden = hidden
        self.root = Scope(self)
        self.closed = False
        self._in_use = store.in_use
        self._running: Statement | None = None

    def current(self, call: Scope | None = None) -> Scope:
        """The scope of this database that the running code is in.

        ``call`` is the tool call that was given the database: the statements of a thread or an event loop of
        the tool's own belong to it, although no scope is known in their context.  ``DatabaseError`` if the
        running code is in a call of another rollout: the tool has kept this database from an earlier call.
        """
        current = scope = current_scope.get()
        while scope is not None and scope.turns is not self:
            scope = scope.outer
        if scope is not None:
            return scope
        if call is None:
            return self.root
        if current is None:
            return call.innermost()
        raise DatabaseError(
            "this database is another rollout's",
            remedy="Use the `db` that the call is given, and keep none from one call to the next.",
        )

    async def run(self, statement: Statement, answer: Callable[[ExecuteResult], Any] | None = None) -> Any:
        """Run when it is the statement's turn; in another thread if it is slow.

        Returns ``answer`` of the result, or the result.
        """
        scope = current_scope.get()
        if scope is None or scope.turns is not self:
            scope = self.current(statement.call)
        if not scope.try_take():
            await self.take(scope)
        try:
            result = self._perform(scope, statement)
        except NotNowError:
            result = await self._perform_in_thread(scope, statement)
        finally:
            scope.release()
        return result if answer is None else answer(result)

    def run_blocking(self, statement: Statement) -> ExecuteResult:
        """Run in this thread, waiting for the turn."""
        scope = self.current(statement.call)
        self.take_blocking(scope)
        statement.in_thread = True
        self._running = statement
        try:
            return self._perform(scope, statement)
        finally:
            self._running = None
            scope.release()

    def with_store(self, work: Callable[[Store], _Result], *, settled: bool = False) -> _Result:
        """The result of ``work``, between two statements of the current scope.

        ``DatabaseError`` inside a transaction, if ``settled``.
        """
        scope = self.current()
        if not scope.try_take():
            self.take_blocking(scope)
        try:
            with self._in_use:
                store = self.store if not self.closed else self.open_store()
                if settled and store.in_transaction:
                    raise DatabaseError("a transaction is open", remedy="Do this after the tool call.")
                return work(store)
        finally:
            scope.release()

    def open_store(self) -> Store:
        """The store; ``DatabaseError`` if it was closed."""
        if self.closed:
            raise DatabaseError("this database is closed")
        return self.store

    def _perform(self, scope: Scope, statement: Statement) -> ExecuteResult:
        """Run a statement whose turn it is."""
        if statement.sql.__class__ is not str:
            statement.sql, statement.parameters = plain(statement.sql, statement.parameters)
        with self._in_use:
            if self.closed:
                self.open_store()
            if scope.over:
                scope.check_open()
            if scope is not self.root:
                statement.in_transaction = True
                return self._perform_in(scope, statement)
            if describe_statement(statement.sql).is_query:
                return self.store.run(statement)
            alone = Scope(self)
            alone.parent, alone.depth = scope, 1
            done = False
            try:
                result = self._perform_in(alone, statement)
                self.store.control("COMMIT")
                done = True
            finally:
                if not done:
                    self._roll_back(alone)
            return result

    def _perform_in(self, scope: Scope, statement: Statement) -> ExecuteResult:
        store = self.store
        if scope.mark is None:
            self._note_start(scope)
        if scope.lost is not None or not (scope.begun or describe_statement(statement.sql).is_query):
            self._begin(scope)
        try:
            return store.run(statement)
        except BaseException as error:
            # a write that was stopped in its very last step is complete, although SQLite calls it interrupted
            stopped = statement.over or isinstance(error, QueryTimeoutError)
            if statement.writes and stopped and store.in_transaction:
                store.control("ROLLBACK")
            if scope.begun and not store.in_transaction:  # also by SQLite: RAISE(ROLLBACK), a full disk
                each = scope
                while each.parent is not None:
                    each.begun, each.lost = False, str(error)
                    outermost, each = each, each.parent
                store.recorder.restore(outermost.mark)
            raise

    async def _perform_in_thread(self, scope: Scope, statement: Statement) -> ExecuteResult:
        statement.in_thread, statement.started = True, None
        self._running = statement
        running = _threads.submit(self._perform, scope, statement)
        waiting = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not running.cancel():
                self.stop_running()
            while not waiting.done():  # the caller will roll back, so SQLite has to be out of the statement
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([waiting])
            if not waiting.cancelled():
                waiting.exception()  # asyncio would complain of an exception that was never retrieved
            raise
        finally:
            self._running = None

    async def take(self, scope: Scope) -> None:
        """Take the lock of ``scope``, and with the first statement in it those around it."""
        if not scope.try_acquire():
            await scope.acquire()
        try:
            scope.check_open()
            if not scope.entered and scope.parent is not None:
                await self.take(scope.parent)
                scope.note_entered()
        except (DatabaseError, asyncio.CancelledError):
            scope.release()
            raise

    def take_blocking(self, scope: Scope) -> None:
        """``take`` in a thread; ``DatabaseError`` in that of an event loop, which would be blocked."""
        if not scope.try_acquire():
            self._wait_blocking(scope)
        try:
            scope.check_open()
            if not scope.entered and scope.parent is not None:
                self.take_blocking(scope.parent)
                scope.note_entered()
        except DatabaseError:
            scope.release()
            raise

    def _wait_blocking(self, scope: Scope) -> None:
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise DatabaseError(
                "another tool call is using the database; waiting here would block the event loop",
                remedy="Use `await db.execute(...)` in `async def` functions.",
            )
        # a statement outside of any call may be in a thread that the call waits for
        seconds = self.store.limits.timeout if self.current() is self.root else None
        if not scope.acquire_blocking(seconds):
            raise QueryTimeoutError(
                f"waited {seconds:g} s for the tool call or transaction that holds the database",
                remedy="Threads that a tool starts must run in its context, as with `asyncio.to_thread`.",
            )

    def note_start(self, scope: Scope) -> None:
        """Note the content before a tool call that has its turn."""
        with self._in_use:
            self.open_store()
            self._note_start(scope)

    async def finish(self, scope: Scope, *, failed: bool) -> None:
        """Commit or roll back ``scope``.

        Waits for the statement that runs in it, which is stopped if the scope has failed or the waiting task
        is cancelled.
        """
        innermost = scope.end()
        if not scope.entered:
            return
        cancelled: asyncio.CancelledError | None = None
        if innermost.held():
            if failed:
                self.stop_running()
            cancelled = await self._end_of_running(innermost)
        self.settle(scope, failed=failed or cancelled is not None)
        if cancelled is not None:
            raise cancelled

    def finish_blocking(self, scope: Scope, *, failed: bool) -> None:
        """``finish`` in a thread."""
        innermost = scope.end()
        if scope.entered:
            if innermost.held():
                innermost.acquire_blocking()
                innermost.release()
            self.settle(scope, failed=failed)

    async def break_off(self) -> None:
        """Undo the open transaction, and refuse all further statements in it."""
        scope = self.root.child
        if scope is not None:
            await self.finish(scope, failed=True)
        elif self.root.held():  # a single statement, in a thread that was left behind
            self.stop_running()
            await self.root.acquire()
            self.root.release()

    def stop_running(self) -> None:
        """Stop the statement that runs in a thread, if there is one."""
        running = self._running
        if running is not None:
            running.over = True

    def close(self) -> None:
        """Stop what is running and close the store; an open transaction is lost."""
        self.closed = True
        if self._running is not None:
            self.stop_running()
        with self._in_use:
            self.store.close()
        self.root.__dict__.pop("turns", None)  # a cycle would stay until garbage is collected

    async def _end_of_running(self, scope: Scope) -> asyncio.CancelledError | None:
        """Wait for a statement even if the task is cancelled meanwhile; returns that cancellation."""
        cancelled: asyncio.CancelledError | None = None
        while True:
            try:
                await scope.acquire()
            except asyncio.CancelledError as error:
                cancelled = error
                self.stop_running()
            else:
                scope.release()
                return cancelled

    def settle(self, scope: Scope, *, failed: bool) -> None:
        """Commit or roll back ``scope``, in which no statement runs, and set the ``changes`` of a tool call.

        ``DatabaseError`` if the scope cannot be committed: then it is rolled back.
        """
        try:
            with self._in_use:
                if scope.mark is None or (self.closed and failed):  # nothing was run, or is left of it
                    return
                store = self.store if not self.closed else self.open_store()
                if failed:
                    self._roll_back(scope)
                elif scope.begun or scope.lost or store.is_shared:  # not only queries were run
                    self._commit(scope, store)
        finally:
            scope.leave()

    def _commit(self, scope: Scope, store: Store) -> None:
        try:
            if scope.lost is not None:
                scope.check_not_lost()
            if scope.is_call:  # may fail, so before the scope is committed
                changes = store.recorder.since(scope.mark)
            if scope.begun:
                store.control("COMMIT" if scope.depth == 1 else f"RELEASE {_savepoint(scope)}")
            if scope.is_call:
                scope.changes = changes.ignoring(self.hidden) if self.hidden else changes
        except DatabaseError:
            self._roll_back(scope)
            raise

    def _note_start(self, scope: Scope) -> None:
        parent = scope.parent
        if scope.mark is None and parent is not None:
            if parent.depth:
                self._note_start(parent)
            store = self.store
            recorder = store.recorder
            if scope.is_call and recorder.missed is not None and not store.in_transaction:
                recorder.settle()
            scope.mark = recorder.mark(recorded=scope.is_call)

    def _begin(self, scope: Scope) -> None:
        if scope.lost is not None:
            scope.check_not_lost()
        if scope.begun or scope.parent is None:
            return
        if scope.depth > 1:
            self._begin(scope.parent)
        self.store.control(self.store.begin_sql if scope.depth == 1 else f"SAVEPOINT {_savepoint(scope)}")
        scope.begun = True

    def _roll_back(self, scope: Scope) -> None:
        store = self.store
        if scope.begun and store.in_transaction:
            if scope.depth == 1:
                store.control("ROLLBACK")
            else:
                store.control(f"ROLLBACK TO {_savepoint(scope)}")
                store.control(f"RELEASE {_savepoint(scope)}")
        if scope.mark is not None:
            drawn = store.randomness.position
            store.recorder.restore(scope.mark)
            if scope.depth > 1:  # what is tried again in the call draws other numbers
                store.randomness.position = drawn


def _savepoint(scope: Scope) -> str:
    return f"reward_kit_{scope.depth}"
