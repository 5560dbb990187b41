"""``tool_call()`` and ``transaction()``: blocks whose statements are kept together or not at all.

Scopes form a tree.  Each has a lock, which is held by the one statement that runs in it or by the one block
that is open inside it; so the statements of parallel calls and transactions never mix.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from concurrent import futures
from typing import TYPE_CHECKING

from reward_kit.agent.database.changes import Changes
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from types import TracebackType

    from reward_kit.agent.database.connection import Connection

current_scope: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("reward_kit_scope", default=None)


class TaskLock:
    """A lock, given to those that wait in the order of asking; whoever holds it must not ask again."""

    __slots__ = ("_guard", "_held", "_waiting")

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held = False
        self._waiting: deque[futures.Future[None]] = deque()

    @property
    def held(self) -> bool:
        """True while somebody holds it."""
        return self._held

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        with self._guard:
            if self._held:
                return False
            self._held = True
            return True

    async def acquire(self) -> None:
        """Take the lock, waiting for it without blocking the event loop."""
        waiter = self._queue()
        if waiter.done():
            return
        try:
            await asyncio.wrap_future(waiter)
        except asyncio.CancelledError:
            if not waiter.cancel():  # it was given the lock at that moment
                self.release()
            raise

    def acquire_blocking(self, seconds: float | None = None) -> bool:
        """Take the lock, blocking this thread for at most ``seconds``; False if it was not free by then."""
        waiter = self._queue()
        try:
            waiter.result(seconds)
        except futures.TimeoutError:
            return not waiter.cancel()
        return True

    def release(self) -> None:
        """Give the lock to the next waiter, or free it."""
        with self._guard:
            while self._waiting:
                waiter = self._waiting.popleft()
                if waiter.set_running_or_notify_cancel():
                    break
            else:
                self._held = False
                return
        waiter.set_result(None)

    def _queue(self) -> futures.Future[None]:
        """A future that is done once its owner holds the lock."""
        waiter: futures.Future[None] = futures.Future()
        with self._guard:
            if self._held:
                self._waiting.append(waiter)
                return waiter
            self._held = True
        waiter.set_result(None)
        return waiter


class Scope:
    """One tool call or ``transaction()`` on a connection; without a ``parent``, all that is outside of any.

    ``top`` is the outermost scope around it, or itself.  ``outer`` is the scope that was current before, of
    whichever connection.  ``entered``: it holds the lock of its parent.  ``began``: its transaction or
    savepoint is open.  ``wrote``: a statement that may write was let through in it or inside it (known of the
    top alone).  ``over``: it has ended, or is about to.  ``lost``: the reason why SQLite rolled its
    transaction back.  ``draws`` and ``mark`` are the random numbers drawn and the content before it, each
    None until there is something to take back.
    """

    __slots__ = (
        "began", "child", "connection", "depth", "draws", "entered", "is_call", "lock", "lost", "mark",
        "outer", "over", "parent", "top", "wrote",
    )  # fmt: skip

    def __init__(self, connection: Connection, parent: Scope | None, *, is_call: bool = False) -> None:
        self.connection = connection
        self.parent = parent
        self.top: Scope = self if parent is None or parent.parent is None else parent.top
        self.outer = current_scope.get()
        self.is_call = is_call
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.lock = TaskLock()
        self.child: Scope | None = None
        self.entered = parent is None
        self.began = False
        self.wrote = False
        self.over = False
        self.lost: str | None = None
        self.draws: int | None = None
        self.mark: object = None

    def chain(self) -> list[Scope]:
        """The scopes around this one that have a transaction, outermost first, and this one."""
        scopes: list[Scope] = []
        scope = self
        while scope.parent is not None:
            scopes.append(scope)
            scope = scope.parent
        return scopes[::-1]

    def innermost(self) -> Scope:
        """The open block inside this one, inside which no other is open."""
        scope = self
        while scope.child is not None:
            scope = scope.child
        return scope

    def close(self) -> Scope:
        """Let no further statement into this scope and those inside it; returns the innermost one."""
        scope = self
        scope.over = True
        while scope.child is not None:
            scope = scope.child
            scope.over = True
        return scope

    def try_enter(self) -> bool:
        """Take the lock of the parent if it is free."""
        assert self.parent is not None
        if not self.parent.lock.try_acquire():
            return False
        self.note_entered()
        return True

    async def enter(self) -> None:
        """Take the lock of the parent, waiting for it."""
        assert self.parent is not None
        if not self.parent.lock.try_acquire():
            await self.parent.lock.acquire()
        self.note_entered()

    def note_entered(self) -> None:
        """The lock of the parent was taken; ``DatabaseError`` if the parent has ended meanwhile."""
        parent = self.parent
        assert parent is not None
        if parent.over or self.over:
            parent.lock.release()
            raise scope_has_ended()
        self.entered = True
        parent.child = self

    def leave(self) -> None:
        """Give the lock of the parent back, if that was not done."""
        parent = self.parent
        if self.entered and parent is not None:
            self.entered = False
            if parent.child is self:
                parent.child = None
            parent.lock.release()


def scope_in(connection: Connection, call: Scope | None = None) -> Scope:
    """The scope of ``connection`` that the running code is in.

    ``call`` is the tool call that was given the database: the statements of a thread or an event loop of the
    tool's own belong to it, although no scope is known in their context.  ``DatabaseError`` if the running
    code is in a call of another rollout: the tool has kept this database from an earlier call.
    """
    current = scope = current_scope.get()
    while scope is not None and scope.connection is not connection:
        scope = scope.outer
    if scope is not None:
        return scope
    if call is None:
        return connection.root
    if current is None:
        return call.innermost()
    raise DatabaseError(
        "this database is another rollout's",
        remedy="Use the `db` that the call is given, and keep none from one call to the next.",
    )


async def end_scope(scope: Scope, *, failed: bool) -> Changes:
    """Commit or roll back ``scope``; returns the rows that it changed, if it is a tool call.

    Waits for the statement that runs in it, which is stopped if the scope has failed or the waiting task is
    cancelled.
    """
    innermost = scope.close()
    connection = scope.connection
    if not scope.entered:
        return Changes()
    cancelled: asyncio.CancelledError | None = None
    if not innermost.lock.try_acquire():
        if failed:
            connection.stop_running()
        cancelled = await _acquired(innermost)
    try:
        changes = connection.finish(scope, failed=failed or cancelled is not None)
    finally:
        innermost.lock.release()
        scope.leave()
    if cancelled is not None:
        raise cancelled
    return changes


async def _acquired(scope: Scope) -> asyncio.CancelledError | None:
    """Take the lock even if the task is cancelled meanwhile; returns that cancellation."""
    cancelled: asyncio.CancelledError | None = None
    while True:
        try:
            await scope.lock.acquire()
        except asyncio.CancelledError as error:
            cancelled = error
            scope.connection.stop_running()
        else:
            return cancelled


class Transaction:
    """``async with db.transaction():`` -- kept at the end, undone on any exception, cancellation included.

    Inside a tool call or another transaction it is a savepoint.
    """

    def __init__(self, connection: Connection, call: Scope | None = None) -> None:
        self._connection = connection
        self._call = call
        self._scope: Scope | None = None

    async def __aenter__(self) -> None:
        scope = Scope(self._connection, scope_in(self._connection, self._call))
        await scope.enter()
        self._scope = scope
        current_scope.set(scope)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._scope is not None
        current_scope.set(self._scope.outer)
        await end_scope(self._scope, failed=kind is not None)


class ToolCall:
    """``async with db.tool_call() as call:`` -- the transaction of one tool call.

    Calls that run at the same time take turns: each has the database to itself from its first statement (in
    mode "file": from its start) to its end.  After a clean end ``changes`` are the rows that it changed.
    """

    def __init__(self, connection: Connection, call: Scope | None = None) -> None:
        self._connection = connection
        self._call = call
        self._scope: Scope | None = None
        self.changes = Changes()

    @property
    def scope(self) -> Scope:
        """The scope of the call's statements, once the call was entered."""
        assert self._scope is not None, "it was entered"
        return self._scope

    async def __aenter__(self) -> ToolCall:
        connection = self._connection
        scope = Scope(connection, scope_in(connection, self._call), is_call=True)
        if scope.parent is not connection.root or connection.is_shared:
            await scope.enter()
            connection.start(scope)
        self._scope = scope
        current_scope.set(scope)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        current_scope.set(self.scope.outer)
        self.changes = await end_scope(self.scope, failed=kind is not None)


class BlockingTransaction:
    """``with db.transaction():`` -- a ``Transaction`` for code that runs in a thread."""

    def __init__(self, connection: Connection, call: Scope | None = None) -> None:
        self._connection = connection
        self._call = call
        self._scope: Scope | None = None

    def __enter__(self) -> None:
        connection = self._connection
        scope = Scope(connection, scope_in(connection, self._call))
        connection.enter_blocking(scope)
        self._scope = scope
        current_scope.set(scope)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        scope = self._scope
        assert scope is not None
        current_scope.set(scope.outer)
        innermost = scope.close()
        if not scope.entered:
            return
        self._connection.wait_blocking(innermost)
        try:
            self._connection.finish(scope, failed=kind is not None)
        finally:
            innermost.lock.release()
            scope.leave()


def scope_has_ended() -> DatabaseError:
    """The error of a statement that comes after the end of its tool call or transaction."""
    return DatabaseError(
        "the tool call or transaction that this statement belongs to has ended",
        remedy="Await everything that a tool starts before it returns.",
    )
