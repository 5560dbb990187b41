"""The one connection of a database state: whose statement runs, where it runs, and in which transaction."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from reward_kit.agent.database.changes import Changes
from reward_kit.agent.database.statement import Answer, NotNowError, Statement, Ticket
from reward_kit.agent.database.statement_text import describe_statement
from reward_kit.agent.database.turns import Scope, Turns, enclosing_scope, scope_has_ended
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from reward_kit.agent.database.determinism import Randomness
    from reward_kit.agent.database.guards import Limits
    from reward_kit.agent.database.statement import Judge

_Result = TypeVar("_Result")

_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="reward-kit-database")
"""For the few statements, of whichever database, that take too long for an event loop."""


class Driver(Protocol):
    """An open SQLite connection.  Whoever calls it sees to it that only one thread does."""

    begin_sql: str
    """The statement that begins a transaction."""

    @property
    def judge(self) -> Judge:
        """Who decides which statements may run."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""

    @property
    def version(self) -> object:
        """Equal as long as the content is; may differ although the content is equal."""

    def run(self, statement: Statement) -> Answer:
        """Run a statement and fetch its rows.

        ``DatabaseError`` with SQLite's message; ``NotNowError`` if it holds up the event loop.
        """

    def control(self, sql: str) -> None:
        """Run a statement of this package's own (BEGIN, COMMIT ...)."""

    def query(self, sql: str) -> Iterable[Sequence[Any]]:
        """The rows of a query of this package's own."""

    def interrupt(self) -> None:
        """Stop the running statement; may be called from any thread."""

    def changes(self) -> Changes:
        """The rows that differ from the base, those of an open transaction included."""

    def since_now(self) -> Callable[[], Changes] | None:
        """A function that tells the rows changed since this moment, if there is a way but by their total."""

    def protect(self) -> None:
        """A tool call starts: make sure that ``restore`` can bring back the present content."""

    def restore(self) -> None:
        """Take back what was written since ``protect`` by others than this connection."""

    def rest(self) -> None:
        """Nothing is under way: give back what only statements need."""

    def close(self) -> None:
        """Close the connection; an open transaction is lost."""


class Connection:
    """Runs statements one at a time, each in the transaction of the scope that its caller is in.

    ``open_driver`` is called when the first statement comes.  ``eager`` is for a file that others may
    write to as well: a tool call then owns the connection from its start on, not only from its first
    statement on, and locks the file from its first write on, not already when it reads.
    ``is_played_on`` says that tools were called on it, but for those that another tool called.
    """

    def __init__(
        self,
        open_driver: Callable[[], Driver],
        limits: Limits,
        randomness: Randomness | None = None,
        *,
        eager: bool = False,
    ) -> None:
        self.limits = limits
        self.randomness = randomness
        self.eager = eager
        self.turns = Turns()
        self.closed = False
        self.is_played_on = False
        self._open_driver = open_driver
        self._driver: Driver | None = None
        self._closer: weakref.finalize[[], Connection] | None = None
        self._in_use = threading.Lock()
        self._ticket: Ticket | None = None
        self._known: tuple[object, Changes] | None = None

    def run_inline(self, statement: Statement) -> Answer:
        """Run at once, in the event loop's thread; ``NotNowError`` if that is not possible."""
        scope = enclosing_scope(self, statement.call)
        if not self.turns.enter(scope):
            raise NotNowError(slow=False)
        try:
            return self._perform(scope, None, statement)
        finally:
            self.turns.leave()

    async def run_later(self, statement: Statement, *, slow: bool) -> Answer:
        """Run when it is the statement's turn, on a thread if it is ``slow``."""
        scope = enclosing_scope(self, statement.call)
        if not self.turns.enter(scope):
            await self.turns.wait(scope)
        try:
            if not slow:
                with contextlib.suppress(NotNowError):
                    return self._perform(scope, None, statement)
            return await self._perform_on_thread(scope, statement)
        finally:
            self.turns.leave()

    def run_blocking(self, statement: Statement) -> Answer:
        """Run in this thread, waiting for the turn."""
        scope = enclosing_scope(self, statement.call)
        ticket = Ticket()
        self._enter_blocking(scope)
        try:
            self._ticket = ticket
            return self._perform(scope, ticket, statement)
        finally:
            self._ticket = None
            self.turns.leave()

    def with_driver(self, work: Callable[[Driver], _Result]) -> _Result:
        """The result of ``work`` on the connection between two statements of the present scope."""
        scope = enclosing_scope(self)
        self._enter_blocking(scope)
        try:
            with self._in_use:
                driver = self._opened()
                try:
                    return work(driver)
                finally:
                    if scope is None:
                        driver.rest()
        finally:
            self.turns.leave()

    def while_open(self, work: Callable[[], _Result]) -> _Result:
        """The result of ``work``, whoever has the turn: meanwhile no statement runs and nothing is closed."""
        with self._in_use:
            if self.closed:
                raise _closed()
            return work()

    @property
    def is_open(self) -> bool:
        """Whether a statement was run and ``close`` not called since."""
        return self._driver is not None

    def changes(self) -> Changes:
        """The rows that differ from the base, those of an open transaction included."""
        return self.with_driver(self.current_changes)

    def close(self) -> None:
        """Stop what is running and close; an open transaction is lost."""
        self.closed = True
        self.stop_running()
        with self._in_use:
            self._driver = None
            if self._closer is not None:
                self._closer()

    def stop_running(self) -> None:
        """Stop the statement that runs on a thread, if there is one."""
        ticket, driver = self._ticket, self._driver
        if ticket is not None and driver is not None:
            ticket.over = True
            driver.interrupt()

    # --- scopes: what `tool_call()` and `transaction()` do at their ends ---

    def start(self, scope: Scope) -> None:
        """Begin a tool call that needs the connection from its start on, in a turn of its."""
        with self._in_use:
            driver = self._opened()
            driver.protect()
            self._mark(driver, scope)

    def finish(self, scope: Scope, *, failed: bool) -> Changes:
        """Commit or roll back in the last turn of ``scope``; what it changed, if it is recorded.

        ``DatabaseError`` if it cannot be committed: then it is rolled back.
        """
        with self._in_use:
            try:
                return self._finished(scope, failed=failed)
            finally:
                if scope.parent is None and self._driver is not None:
                    self._driver.rest()

    def _finished(self, scope: Scope, *, failed: bool) -> Changes:
        if scope.draws is None or (self.closed and failed):  # nothing was begun, or nothing is left of it
            return Changes()
        driver = self._opened()
        if failed:
            self._roll_back(driver, scope)
            return Changes()
        try:
            _check_not_lost(scope)
            changes = _changes_within(driver, scope)  # may fail, so before the call is kept
            if scope.began:
                driver.control("COMMIT" if scope.parent is None else f"RELEASE {_savepoint(scope)}")
        except DatabaseError:
            self._roll_back(driver, scope)
            raise
        return changes

    def _perform(self, scope: Scope | None, ticket: Ticket | None, statement: Statement) -> Answer:
        """Run a statement whose turn it is."""
        with self._in_use:
            if ticket is not None and scope is not None and scope.over:
                raise scope_has_ended()  # while this thread was about to start
            driver = self._driver or self._opened()
            if scope is not None and not scope.began:
                self._begin(driver, scope, statement)
            statement.scope = scope
            statement.ticket = ticket
            drawn = 0 if self.randomness is None else self.randomness.position
            alone = scope is None and not describe_statement(statement.sql).reads
            try:
                if alone:
                    driver.control(driver.begin_sql)
                answer = driver.run(statement)
                if alone:
                    driver.control("COMMIT")
            except BaseException as error:
                self._take_back(driver, statement, error, drawn)
                raise
            finally:
                if scope is None and not alone:  # where one statement writes, others are likely to follow
                    driver.rest()
            return answer

    def _take_back(self, driver: Driver, statement: Statement, error: BaseException, drawn: int) -> None:
        """Put things right after a statement that failed or has to be started again."""
        scope = statement.scope
        # a write that was stopped in its very last step is complete, although SQLite calls it interrupted
        stopped = statement.writes and driver.judge.watch.reason is not None
        if driver.in_transaction and (scope is None or stopped):
            driver.control("ROLLBACK")
            driver.judge.writes += 1
        again = isinstance(error, NotNowError)
        if again and self.randomness is not None:
            self.randomness.position = drawn
        if scope is not None and scope.began and not driver.in_transaction:
            # else it is SQLite that rolled back: RAISE(ROLLBACK), a full disk
            for each in scope.chain():
                each.began, each.lost = False, None if again else str(error)

    async def _perform_on_thread(self, scope: Scope | None, statement: Statement) -> Answer:
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
                waiting.exception()  # nobody is interested, and asyncio need not say so
            raise
        finally:
            self._ticket = None

    def _enter_blocking(self, scope: Scope | None) -> None:
        if not self.turns.enter(scope):
            # a statement outside any call may stand in a thread that the call waits for
            self.turns.wait_blocking(scope, seconds=self.limits.timeout if scope is None else None)

    def _opened(self) -> Driver:
        if self.closed:
            raise _closed()
        if self._driver is None:
            driver = self._driver = self._open_driver()
            # a database that was forgotten is closed as well: no collector looks into SQLite's own references
            self._closer = weakref.finalize(self, driver.close)
            self._closer.atexit = False
        return self._driver

    def _mark(self, driver: Driver, scope: Scope) -> None:
        """Note the state to which ``scope`` and those around it go back if they fail."""
        for each in scope.chain():
            if each.draws is None:
                each.draws = 0 if self.randomness is None else self.randomness.position
                if each.recorded:
                    each.before = (driver.version, driver.since_now() or self._since_total(driver))

    def _begin(self, driver: Driver, scope: Scope, statement: Statement) -> None:
        _check_not_lost(scope)
        first = scope.draws is None
        self._mark(driver, scope)
        if (first or self.eager) and describe_statement(statement.sql).is_query:
            return  # many calls are one query, and nobody else writes meanwhile: it needs no transaction
        for each in scope.chain():
            if not each.began:
                driver.control(driver.begin_sql if each.parent is None else f"SAVEPOINT {_savepoint(each)}")
                each.began = True

    def _roll_back(self, driver: Driver, scope: Scope) -> None:
        driver.judge.writes += 1  # what was known of the content so far holds no longer
        if scope.began and driver.in_transaction:
            if scope.parent is None:
                driver.control("ROLLBACK")
            else:
                driver.control(f"ROLLBACK TO {_savepoint(scope)}")
                driver.control(f"RELEASE {_savepoint(scope)}")
        if scope.recorded and scope.parent is None:
            driver.restore()
        if self.randomness is not None and scope.draws is not None:
            self.randomness.position = scope.draws
        self._known = None

    def _since_total(self, driver: Driver) -> Callable[[], Changes]:
        before = self.current_changes(driver)
        return lambda: self.current_changes(driver).minus(before)

    def current_changes(self, driver: Driver) -> Changes:
        """``changes``, for whoever has the turn."""
        if self._known is None or self._known[0] != driver.version:
            self._known = (driver.version, driver.changes())
        return self._known[1]


def _changes_within(driver: Driver, scope: Scope) -> Changes:
    if scope.before is None or driver.version == scope.before[0]:
        return Changes()
    return scope.before[1]()


def _savepoint(scope: Scope) -> str:
    return f"reward_kit_{scope.depth}"


def _check_not_lost(scope: Scope) -> None:
    if scope.lost is not None:
        raise DatabaseError(f"the transaction was rolled back and can do no more, because of: {scope.lost}")


def _closed() -> DatabaseError:
    return DatabaseError("this database is closed")
