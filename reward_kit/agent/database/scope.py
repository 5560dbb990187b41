"""Scopes of statements: the database itself, a tool call in it, a ``transaction()`` in that.

They form a tree. Each scope is a lock that is held by the one statement that runs in it, or by the one scope
that is open inside it; so the statements of parallel calls and transactions never mix.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from concurrent import futures
from typing import TYPE_CHECKING, Any, Self

from reward_kit.agent.database.changes import NO_CHANGES, Changes
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from reward_kit.agent.database.turns import Turns

current_scope: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("reward_kit_scope", default=None)
"""The innermost scope around the running code, of any database."""

_guard = threading.Lock()
"""Held for the moment in which a waiter of any lock joins or leaves its queue."""


class Lock:
    """A lock for tasks of any event loop and for threads, given in the order of asking; not reentrant.

    ``_lock`` is one that blocks threads only.  ``held()`` is true if it is taken.
    """

    _lock: threading.Lock
    held: Callable[[], bool]
    _waiting: deque[futures.Future[None]] | None = None

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        return self._lock.acquire(blocking=False)

    async def acquire(self) -> None:
        """Take the lock, waiting for it without blocking the event loop."""
        waiter = self._queue()
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
        except TimeoutError:
            return not waiter.cancel()
        return True

    def release(self) -> None:
        """Free the lock, and give it to the next waiter."""
        self._lock.release()
        if self._waiting:
            self._give()

    def _give(self) -> None:
        """Give the lock to the first waiter, unless it was taken; its holder does it then."""
        while self._waiting:
            with _guard:
                if not self._waiting or not self.try_acquire():
                    return
                waiter = self._waiting.popleft()
            if waiter.set_running_or_notify_cancel():
                waiter.set_result(None)
                return
            self._lock.release()

    def _queue(self) -> futures.Future[None]:
        """A future that is done once its owner holds the lock."""
        waiter: futures.Future[None] = futures.Future()
        with _guard:
            self._waiting = self._waiting or deque()
            self._waiting.append(waiter)
        self._give()
        return waiter


class Scope(Lock):
    """A ``transaction()`` or a tool call; without a ``parent``, the database around them.

    ``async with`` in tasks and ``with`` in threads: what is written in it is kept at the end, and undone on
    any exception, cancellation included.  Inside another scope it is a savepoint.

    ``outer`` is the scope that was current before, of any database.  ``entered``: it holds the lock of its
    parent.  ``begun``: its transaction or savepoint is open.  ``over``: it has ended, or is about to.
    ``lost``: the reason why SQLite rolled its transaction back.  ``mark`` is the content before it, None
    until there is something to take back.
    """

    is_call = False
    changes: Changes = NO_CHANGES
    parent: Scope | None = None
    outer: Scope | None = None
    child: Scope | None = None
    depth = 0
    entered = False
    begun = False
    over = False
    lost: str | None = None
    mark: Any = None

    def __init__(self, turns: Turns, call: Scope | None = None) -> None:
        self._lock = threading.Lock()
        self.held = self._lock.locked
        self.turns = turns
        self._call = call

    def _open(self) -> Scope:
        turns = self.turns
        self.outer = outer = current_scope.get()
        is_alone = outer is None and self._call is None
        self.parent = parent = turns.root if is_alone else turns.current(self._call)
        self.depth = parent.depth + 1
        return parent

    def begin(self) -> Coroutine[Any, Any, None] | None:
        """Open the scope; returns an awaitable if it has to wait for the lock."""
        self._open()
        return self._take_turn()

    async def _take_turn(self) -> None:
        await self.turns.take(self)
        try:
            if self.is_call:
                self.turns.note_start(self)
        except DatabaseError:
            self.leave()
            raise
        finally:
            self.release()
        current_scope.set(self)

    def finish(self, *, failed: bool) -> Coroutine[Any, Any, None] | None:
        """Commit, or roll back if it has ``failed``; returns an awaitable if a statement still runs."""
        current_scope.set(self.outer)
        innermost = self.end()
        if self.entered:
            if innermost.held():
                return self.turns.finish(self, failed=failed)
            self.turns.settle(self, failed=failed)
        return None

    async def __aenter__(self) -> Self:
        if (waiting := self.begin()) is not None:
            await waiting
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if (waiting := self.finish(failed=kind is not None)) is not None:
            await waiting

    def __enter__(self) -> Scope:
        self._open()
        self.turns.take_blocking(self)
        self.release()
        current_scope.set(self)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        current_scope.set(self.outer)
        self.turns.finish_blocking(self, failed=kind is not None)

    def innermost(self) -> Scope:
        """The open scope inside this one, inside which no other is open."""
        return self if self.child is None or self.child.outer is None else self.child.innermost()

    def end(self) -> Scope:
        """Let no further statement into this scope and those inside it; returns the innermost one."""
        self.over = True
        return self if self.child is None else self.child.end()

    def check_open(self) -> None:
        """Raise ``DatabaseError`` if the scope has ended."""
        if self.over:
            raise DatabaseError(
                "the tool call or transaction that this statement belongs to has ended",
                remedy="Await everything that a tool starts before it returns.",
            )

    def check_not_lost(self) -> None:
        """Raise ``DatabaseError`` if SQLite rolled the transaction back."""
        if self.lost is not None:
            fault = "the transaction was rolled back and takes no further statements, because of"
            raise DatabaseError(f"{fault}: {self.lost}")

    def try_take(self) -> bool:
        """Take the lock, and with the first statement those around it, if none has to be waited for."""
        if self.over or not self._lock.acquire(blocking=False):
            return False
        parent = self.parent
        if self.entered or parent is None:
            return True
        if parent.try_acquire() if parent.parent is None else parent.try_take():
            self.entered = True
            parent.child = self
            if not self.over:
                return True
            self.leave()  # it ended in the meantime
        self.release()
        return False

    def note_entered(self) -> None:
        """The lock of the parent was taken; ``DatabaseError`` if this scope ended in the meantime."""
        assert self.parent is not None
        self.entered = True
        self.parent.child = self
        if self.over:
            self.leave()
            self.check_open()

    def leave(self) -> None:
        """Give the lock of the parent back, if it was taken."""
        if self.entered and self.parent is not None:
            self.entered = False
            self.parent.child = None
            self.parent.release()


class CallScope(Scope):
    """``async with db.tool_call() as call:`` -- the transaction of one tool call.

    Calls that run at the same time take turns: each has the database to itself from its first statement (in
    mode "file": from its start) to its end.  After a clean end ``changes`` are the rows that it changed.
    """

    is_call = True

    def begin(self) -> Coroutine[Any, Any, None] | None:
        parent = self._open()
        # a call waits with its first statement: parallel calls wait only if they use the database
        if parent.parent is not None or self.turns.store.is_shared:
            return self._take_turn()
        current_scope.set(self)
        return None
