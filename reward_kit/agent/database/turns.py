"""Turns at one database: which statement runs, in which thread, and in which transaction.

Blocks form a tree: the database itself, a tool call in it, a ``transaction()`` in that.  Each has a lock,
which is held by the one statement that runs in the block or by the one block that is open inside it; so the
statements of parallel calls and transactions never mix.  A block begins its SQLite transaction (inside of
another one, its savepoint) with its first statement that is not a mere query.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent import futures
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, TypeVar

from reward_kit.agent.database.block import Block, Lock, block_has_ended, current_block
from reward_kit.agent.database.changes import Changes
from reward_kit.agent.database.guard import NotNowError, describe_statement
from reward_kit.errors import DatabaseError, QueryTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from reward_kit.agent.database.file_store import FileStore
    from reward_kit.agent.database.overlay_store import OverlayStore
    from reward_kit.agent.database.statement import ExecuteResult, Statement

    Store: TypeAlias = OverlayStore | FileStore

_Result = TypeVar("_Result")

_threads = futures.ThreadPoolExecutor(max_workers=4, thread_name_prefix="reward-kit-database")
"""For the few statements, of all databases, that take too long for an event loop."""


class Turns:
    """Runs the statements on ``store`` one at a time, each in the transaction of the block it is in."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.root = Block(self, None)
        self.closed = False
        self._in_use = threading.Lock()
        self._running: Statement | None = None

    @property
    def is_idle(self) -> bool:
        """True if no statement runs and no tool call or transaction is under way."""
        return not self.root.lock.held

    def current(self, call: Block | None = None) -> Block:
        """The block of this database that the running code is in.

        ``call`` is the tool call that was given the database: the statements of a thread or an event loop of
        the tool's own belong to it, although no block is known in their context.  ``DatabaseError`` if the
        running code is in a call of another rollout: the tool has kept this database from an earlier call.
        """
        current = block = current_block.get()
        while block is not None and block.turns is not self:
            block = block.outer
        if block is not None:
            return block
        if call is None:
            return self.root
        if current is None:
            return call.innermost()
        raise DatabaseError(
            "this database is another rollout's",
            remedy="Use the `db` that the call is given, and keep none from one call to the next.",
        )

    # --- statements ---

    async def run(self, statement: Statement) -> ExecuteResult:
        """Run when it is the statement's turn; in another thread if it is slow."""
        block = self.current(statement.call)
        if not block.try_take():
            await self.take(block)
        try:
            try:
                return self._perform(block, statement)
            except NotNowError:
                return await self._perform_in_thread(block, statement)
        finally:
            block.lock.release()

    def run_blocking(self, statement: Statement) -> ExecuteResult:
        """Run in this thread, waiting for the turn."""
        block = self.current(statement.call)
        self.take_blocking(block)
        statement.in_thread = True
        self._running = statement
        try:
            return self._perform(block, statement)
        finally:
            self._running = None
            block.lock.release()

    def with_store(self, work: Callable[[Store], _Result], *, settled: bool = False) -> _Result:
        """The result of ``work``, between two statements of the current block.

        ``DatabaseError`` inside a transaction, if ``settled``.
        """
        block = self.current()
        self.take_blocking(block)
        try:
            with self._in_use:
                store = self.open_store()
                if settled and store.in_transaction:
                    raise DatabaseError("a transaction is open", remedy="Do this after the tool call.")
                return work(store)
        finally:
            block.lock.release()

    def open_store(self) -> Store:
        """The store; ``DatabaseError`` if it was closed."""
        if self.closed:
            raise DatabaseError("this database is closed")
        return self.store

    def _perform(self, block: Block, statement: Statement) -> ExecuteResult:
        """Run a statement whose turn it is."""
        is_query = describe_statement(statement.sql).is_query
        with self._in_use:
            store = self.open_store()
            if block.over:
                raise block_has_ended()
            if block is not self.root:
                statement.in_transaction = True
                return self._perform_in(block, store, statement, is_query=is_query)
            if is_query:
                return store.run(statement)
            alone = Block(self, self.root)
            with ExitStack() as failed:
                failed.callback(self._roll_back, alone)
                answer = self._perform_in(alone, store, statement, is_query=False)
                store.control("COMMIT")
                failed.pop_all()
            return answer

    def _perform_in(
        self, block: Block, store: Store, statement: Statement, *, is_query: bool
    ) -> ExecuteResult:
        if block.mark is None:
            self._note_start(block)
        if block.lost is not None or not is_query:
            self._begin(block)
        try:
            return store.run(statement)
        except BaseException as error:
            # a write that was stopped in its very last step is complete, although SQLite calls it interrupted
            if statement.writes and store.guard.stopped is not None and store.in_transaction:
                store.control("ROLLBACK")
            if block.begun and not store.in_transaction:  # also by SQLite: RAISE(ROLLBACK), a full disk
                store.restore(block.top.mark)
                each = block
                while each.parent is not None:
                    each.begun, each.lost = False, str(error)
                    each = each.parent
            raise

    async def _perform_in_thread(self, block: Block, statement: Statement) -> ExecuteResult:
        statement.in_thread = True
        self._running = statement
        running = _threads.submit(self._perform, block, statement)
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

    # --- taking turns ---

    async def take(self, block: Block) -> None:
        """Take the lock of ``block``, and with the first turn in it those around it."""
        if not block.lock.try_acquire():
            await block.lock.acquire()
        if block.entered and not block.over:
            return
        with ExitStack() as failed:
            failed.callback(block.lock.release)
            await self.take(block.enterable_parent())
            block.note_entered()
            failed.pop_all()

    def take_blocking(self, block: Block) -> None:
        """``take`` in a thread; ``DatabaseError`` in that of an event loop, which would be blocked."""
        if block.try_take():
            return
        if not block.lock.try_acquire():
            self._wait_blocking(block)
        if block.entered and not block.over:
            return
        with ExitStack() as failed:
            failed.callback(block.lock.release)
            self.take_blocking(block.enterable_parent())
            block.note_entered()
            failed.pop_all()

    def _wait_blocking(self, block: Block) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise DatabaseError(
                "another tool call is using the database; waiting here would block the event loop",
                remedy="Use `await db.execute(...)` in `async def` functions.",
            )
        # a statement outside of any call may be in a thread that the call waits for
        outside = block is self.root and self.current() is block
        seconds = self.store.limits.timeout if outside else None
        if not block.lock.acquire_blocking(seconds):
            raise QueryTimeoutError(
                f"waited {seconds:g} s for a tool call that holds the database",
                remedy="Threads that a tool starts must run in its context, as with `asyncio.to_thread`.",
            )

    # --- the beginning and the end of blocks ---

    def note_call(self, block: Block) -> None:
        """Note the content before a tool call that has its turn."""
        with self._in_use:
            self.open_store()
            self._note_start(block)

    async def finish(self, block: Block, *, failed: bool) -> Changes:
        """Commit or roll back ``block``; returns the rows that it changed, if it is a tool call.

        Waits for the statement that runs in it, which is stopped if the block has failed or the waiting task
        is cancelled.
        """
        innermost = block.end()
        if not block.entered:
            return Changes()
        cancelled: asyncio.CancelledError | None = None
        if not innermost.lock.try_acquire():
            if failed:
                self.stop_running()
            cancelled = await self._acquired(innermost.lock)
        changes = self._finish(block, innermost, failed=failed or cancelled is not None)
        if cancelled is not None:
            raise cancelled
        return changes

    def finish_blocking(self, block: Block, *, failed: bool) -> None:
        """``finish`` in a thread."""
        innermost = block.end()
        if block.entered:
            if not innermost.lock.try_acquire():
                innermost.lock.acquire_blocking()
            self._finish(block, innermost, failed=failed)

    async def break_off(self) -> None:
        """Undo what is under way, and refuse all further statements in it."""
        block = self.root.child
        if block is not None:
            await self.finish(block, failed=True)
        elif self.root.lock.held:  # a single statement, in a thread that was left behind
            self.stop_running()
            await self.root.lock.acquire()
            self.root.lock.release()

    def stop_running(self) -> None:
        """Stop the statement that runs in a thread, if there is one."""
        running = self._running
        if running is not None:
            running.over = True

    def close(self) -> None:
        """Stop what is running and close the store; an open transaction is lost."""
        self.closed = True
        self.stop_running()
        with self._in_use:
            self.store.close()

    async def _acquired(self, lock: Lock) -> asyncio.CancelledError | None:
        """Take the lock even if the task is cancelled meanwhile; returns that cancellation."""
        cancelled: asyncio.CancelledError | None = None
        while True:
            try:
                await lock.acquire()
            except asyncio.CancelledError as error:
                cancelled = error
                self.stop_running()
            else:
                return cancelled

    def _finish(self, block: Block, innermost: Block, *, failed: bool) -> Changes:
        """``DatabaseError`` if the block cannot be committed: then it is rolled back."""
        try:
            with self._in_use:
                if block.mark is None or (self.closed and failed):  # nothing was run, or is left of it
                    return Changes()
                store = self.open_store()
                if failed:
                    self._roll_back(block)
                    return Changes()
                try:
                    block.check_not_lost()
                    # may fail, so before the block is committed
                    changes = store.since(block.mark) if block.is_call else Changes()
                    if block.begun:
                        store.control("COMMIT" if block.depth == 1 else f"RELEASE {_savepoint(block)}")
                except DatabaseError:
                    self._roll_back(block)
                    raise
                return changes
        finally:
            innermost.lock.release()
            block.leave()

    def _note_start(self, block: Block) -> None:
        if block.mark is None and block.parent is not None:
            self._note_start(block.parent)
            block.mark = self.store.mark(recorded=block.is_call)

    def _begin(self, block: Block) -> None:
        block.check_not_lost()
        if block.begun or block.parent is None:
            return
        self._begin(block.parent)
        self.store.control(self.store.begin_sql if block.depth == 1 else f"SAVEPOINT {_savepoint(block)}")
        block.begun = True

    def _roll_back(self, block: Block) -> None:
        store = self.store
        if block.begun and store.in_transaction:
            if block.depth == 1:
                store.control("ROLLBACK")
            else:
                store.control(f"ROLLBACK TO {_savepoint(block)}")
                store.control(f"RELEASE {_savepoint(block)}")
        if block.mark is not None:
            store.restore(block.mark)


def _savepoint(block: Block) -> str:
    return f"reward_kit_{block.depth}"
