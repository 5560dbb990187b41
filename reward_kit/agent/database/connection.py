"""The one connection to a database state: which statement runs, where it runs, and in which transaction."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from reward_kit.agent.database.changes import Changes
from reward_kit.agent.database.scopes import Scope, end_scope, scope_has_ended, scope_in
from reward_kit.agent.database.sql_text import describe_statement
from reward_kit.agent.database.statement import Answer, NotNowError, Statement, Ticket
from reward_kit.errors import DatabaseError, QueryTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.database.backend import Backend
    from reward_kit.agent.database.determinism import Randomness
    from reward_kit.agent.database.guards import Limits

_Result = TypeVar("_Result")

_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="reward-kit-database")
"""For the few statements, of whichever database, that take too long for an event loop."""

MOST_OPEN = 512
"""Forks that keep their SQLite connection (some 150 KB) between two statements.

The others open a new one, which costs more than the statements of a usual tool call.
"""


class Connection:
    """Runs statements one at a time, each in the transaction of the scope that its caller is in.

    The ``backend`` is connected when the first statement comes.  Where many are connected, it is disconnected
    between two statements and connected again for the next.
    """

    def __init__(self, backend: Backend, limits: Limits) -> None:
        self.backend = backend
        self.limits = limits
        self.root = Scope(self, None)
        self.closed = False
        self.used = False
        self._in_use = threading.Lock()
        self._ticket: Ticket | None = None

    @property
    def is_shared(self) -> bool:
        """True where others may write to the content as well: a tool call then owns it from its start on."""
        return self.backend.is_shared

    @property
    def is_idle(self) -> bool:
        """True if no statement runs and no tool call or transaction is under way."""
        return not self.root.lock.held

    async def run(self, statement: Statement) -> Answer:
        """Run when it is the statement's turn; in another thread if it is slow."""
        scope = scope_in(self, statement.call)
        if not scope.lock.try_acquire():
            await scope.lock.acquire()
        try:
            if not scope.top.entered:
                if scope.over:
                    raise scope_has_ended()
                await scope.top.enter()
            try:
                return self._perform(scope, None, statement)
            except NotNowError:
                return await self._perform_on_thread(scope, statement)
        finally:
            scope.lock.release()

    def run_blocking(self, statement: Statement) -> Answer:
        """Run in this thread, waiting for the turn."""
        scope = scope_in(self, statement.call)
        self.wait_blocking(scope)
        try:
            if not scope.top.entered:
                if scope.over:
                    raise scope_has_ended()
                self.enter_blocking(scope.top)
            ticket = self._ticket = Ticket()
            try:
                return self._perform(scope, ticket, statement)
            finally:
                self._ticket = None
        finally:
            scope.lock.release()

    def with_backend(self, work: Callable[[Backend], _Result]) -> _Result:
        """The result of ``work`` on the connected backend, between two statements of the present scope."""
        scope = scope_in(self)
        self.wait_blocking(scope)
        try:
            with self._in_use:
                return work(self._connected())
        finally:
            scope.lock.release()

    def while_open(self, work: Callable[[Backend], _Result]) -> _Result:
        """The result of ``work``, at once: meanwhile no statement runs and nothing is closed."""
        with self._in_use:
            if self.closed:
                raise _closed()
            return work(self.backend)

    def close(self) -> None:
        """Stop what is running and close; an open transaction is lost."""
        self.closed = True
        self.stop_running()
        with self._in_use:
            _connected.pop(id(self), None)
            self.backend.disconnect()
            self.backend.close()

    def disconnect_if_idle(self) -> None:
        """Disconnect the backend unless something is under way or would be lost."""
        if self.root.lock.try_acquire():
            try:
                with self._in_use:
                    if self.backend.can_reconnect:
                        _connected.pop(id(self), None)
                        self.backend.disconnect()
            finally:
                self.root.lock.release()

    def stop_running(self) -> None:
        """Stop the statement that runs in a thread, if there is one."""
        ticket = self._ticket
        if ticket is not None:
            ticket.over = True
            self.backend.interrupt()

    async def break_off(self) -> None:
        """Undo what is under way, and let nobody continue in it."""
        block = self.root.child
        if block is not None:
            await end_scope(block, failed=True)
        elif self.root.lock.held:  # a single statement, in a thread that was left behind
            self.stop_running()
            await self.root.lock.acquire()
            self.root.lock.release()

    def wait_blocking(self, scope: Scope) -> None:
        """Take the lock of ``scope``, blocking this thread.

        ``DatabaseError`` in an event loop's thread, which may be the one that has to release it.
        """
        if scope.lock.try_acquire():
            return
        if _is_event_loop_running():
            raise DatabaseError(
                "another tool call is using the database; waiting here would block the event loop",
                remedy="Use `await db.execute(...)` in `async def` functions.",
            )
        # a statement outside of any call may be in a thread that the call waits for
        seconds = self.limits.timeout if scope is self.root else None
        if not scope.lock.acquire_blocking(seconds):
            raise QueryTimeoutError(
                f"waited {seconds:g} s for a tool call that holds the database",
                remedy="Threads that a tool starts must run in its context, as with `asyncio.to_thread`.",
            )

    def enter_blocking(self, scope: Scope) -> None:
        """Enter ``scope``, blocking this thread; errors as for ``wait_blocking``."""
        assert scope.parent is not None
        if scope.is_call:  # a call waits for as long as the call before it takes
            if not scope.parent.lock.try_acquire():
                scope.parent.lock.acquire_blocking()
        else:
            self.wait_blocking(scope.parent)
        scope.note_entered()

    # --- the beginning and the end of scopes ---

    def start(self, scope: Scope) -> None:
        """Note the content before ``scope``, which has been entered, where others may write to it too."""
        if self.is_shared:
            with self._in_use:
                self._note_start(self._connected(), scope)

    def finish(self, scope: Scope, *, failed: bool) -> Changes:
        """Commit or roll back ``scope``; returns the rows that it changed, if it is a tool call.

        ``DatabaseError`` if it cannot be committed: then it is rolled back.
        """
        if len(_connected) > MOST_OPEN:
            _disconnect_others(self)
        with self._in_use:
            if scope.draws is None or (self.closed and failed):  # nothing was run, or nothing is left of it
                return Changes()
            backend = self._connected()
            if failed:
                self._roll_back(backend, scope)
                return Changes()
            try:
                _check_not_lost(scope)
                # may fail, so before the scope is committed
                changes = backend.since(scope.mark) if scope.is_call and scope.mark is not None else Changes()
                if scope.began:
                    backend.control("COMMIT" if scope.depth == 1 else f"RELEASE {_savepoint(scope)}")
            except DatabaseError:
                self._roll_back(backend, scope)
                raise
            return changes

    def _perform(self, scope: Scope, ticket: Ticket | None, statement: Statement) -> Answer:
        """Run a statement whose turn it is."""
        with self._in_use:
            if scope.over:
                raise scope_has_ended()
            backend = self._connected()
            statement.ticket = ticket
            statement.in_transaction = scope is not self.root
            statement.first_write = not scope.top.wrote
            text = describe_statement(statement.sql)
            if scope is self.root:
                return self._perform_alone(backend, statement, transaction=not text.reads)
            if scope.draws is None:
                self._note_draws(backend, scope)
            if scope.lost is not None or not text.is_query:  # a query alone needs no transaction
                self._begin(backend, scope)
            drawn = _position(backend.randomness)
            try:
                answer = backend.run(statement)
            except BaseException as error:
                self._take_back(backend, scope, statement, error, drawn)
                raise
            scope.top.wrote = scope.top.wrote or statement.writes
            return answer

    def _perform_alone(self, backend: Backend, statement: Statement, *, transaction: bool) -> Answer:
        drawn = _position(backend.randomness)
        if not transaction:
            try:
                return backend.run(statement)
            except NotNowError:
                _set_position(backend.randomness, drawn)
                raise
        mark = backend.mark(recorded=False)
        try:
            backend.control(backend.begin_sql)
            answer = backend.run(statement)
            backend.control("COMMIT")
        except BaseException as error:
            if backend.in_transaction:
                backend.control("ROLLBACK")
            backend.restore(mark)
            if isinstance(error, NotNowError):
                _set_position(backend.randomness, drawn)
            raise
        return answer

    def _take_back(
        self, backend: Backend, scope: Scope, statement: Statement, error: BaseException, drawn: int
    ) -> None:
        """Put things right after a statement that failed or has to be started again."""
        scope.top.wrote = scope.top.wrote or statement.writes
        # a write that was stopped in its very last step is complete, although SQLite calls it interrupted
        if statement.writes and backend.guard.watch.reason is not None and backend.in_transaction:
            backend.control("ROLLBACK")
        again = isinstance(error, NotNowError)
        if again:
            _set_position(backend.randomness, drawn)
        if scope.began and not backend.in_transaction:  # also by SQLite: RAISE(ROLLBACK), a full disk
            backend.restore(scope.top.mark)
            for each in scope.chain():
                each.began, each.lost = False, None if again else str(error)
            if again:
                scope.top.wrote = False

    async def _perform_on_thread(self, scope: Scope, statement: Statement) -> Answer:
        ticket = self._ticket = Ticket()
        running = _threads.submit(self._perform, scope, ticket, statement)
        waiting = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not running.cancel():
                self.stop_running()
            while not waiting.done():  # the caller will roll back, so SQLite has to be out of the statement
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([waiting])
            if not waiting.cancelled():
                waiting.exception()  # asyncio would complain of an exception that nobody asked for
            raise
        finally:
            self._ticket = None

    def _connected(self) -> Backend:
        """The backend, connected."""
        if self.closed:
            raise _closed()
        self.used = True
        if not self.backend.is_connected:
            self.backend.connect(self.limits)
            _connected[id(self)] = weakref.ref(self)
            if len(_connected) > MOST_OPEN:
                _disconnect_others(self)
        return self.backend

    def _note_draws(self, backend: Backend, scope: Scope) -> None:
        for each in scope.chain():
            if each.draws is None:
                each.draws = _position(backend.randomness)

    def _note_start(self, backend: Backend, scope: Scope) -> None:
        self._note_draws(backend, scope)
        for each in scope.chain():
            if each.mark is None:
                each.mark = backend.mark(recorded=each.is_call)

    def _begin(self, backend: Backend, scope: Scope) -> None:
        _check_not_lost(scope)
        if scope.began:
            return
        self._note_start(backend, scope)
        for each in scope.chain():
            if not each.began:
                backend.control(backend.begin_sql if each.depth == 1 else f"SAVEPOINT {_savepoint(each)}")
                each.began = True

    def _roll_back(self, backend: Backend, scope: Scope) -> None:
        if scope.began and backend.in_transaction:
            if scope.depth == 1:
                backend.control("ROLLBACK")
            else:
                backend.control(f"ROLLBACK TO {_savepoint(scope)}")
                backend.control(f"RELEASE {_savepoint(scope)}")
        if scope.mark is not None:
            backend.restore(scope.mark)
        if scope.draws is not None:
            _set_position(backend.randomness, scope.draws)


_connected: dict[int, weakref.ref[Connection]] = {}
"""The connections whose backend is connected, in the order of connecting."""
_disconnecting = threading.Lock()


def _disconnect_others(newest: Connection) -> None:
    """Disconnect what was not used for the longest time, until no more than ``MOST_OPEN`` are connected."""
    if not _disconnecting.acquire(blocking=False):
        return
    try:
        for number in list(_connected):
            if len(_connected) <= MOST_OPEN:
                return
            reference = _connected.pop(number, None)
            connection = None if reference is None else reference()
            if reference is None or connection is None:
                continue
            _connected[number] = reference  # at the end
            if connection.used and connection is not newest:
                connection.used = False
            elif connection is not newest:
                connection.disconnect_if_idle()
    finally:
        _disconnecting.release()


def _position(randomness: Randomness | None) -> int:
    return 0 if randomness is None else randomness.position


def _set_position(randomness: Randomness | None, position: int) -> None:
    if randomness is not None:
        randomness.position = position


def _savepoint(scope: Scope) -> str:
    return f"reward_kit_{scope.depth}"


def _check_not_lost(scope: Scope) -> None:
    if scope.lost is not None:
        raise DatabaseError(f"the transaction was rolled back and can do no more, because of: {scope.lost}")


def _closed() -> DatabaseError:
    return DatabaseError("this database is closed")


def _is_event_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
