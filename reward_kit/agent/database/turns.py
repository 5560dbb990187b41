"""Who may use a connection now: one statement at a time, one tool call or transaction after the other."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING

from reward_kit.errors import DatabaseError, QueryTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.database.changes import Changes
    from reward_kit.agent.database.connection import Connection

current_scope: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("reward_kit_scope", default=None)


class Scope:
    """One tool call or one ``transaction()``: its statements share a transaction.

    ``parent`` is the scope of the same connection in which it was entered (then it is a savepoint),
    ``outer`` the one that was current before, of whichever connection.  ``began``: its transaction is
    open.  ``wrote``: a statement that may write was let through.  ``over``: it has ended, or is about to.
    ``lost``: why SQLite rolled its transaction back.  ``draws``: how many random numbers had been drawn
    when it first began.  If it is ``recorded``, ``before`` are the version of the database at that time
    and a function that tells the changes since.
    """

    __slots__ = (
        "before",
        "began",
        "connection",
        "depth",
        "draws",
        "lost",
        "outer",
        "over",
        "parent",
        "recorded",
        "wrote",
    )

    def __init__(self, connection: Connection, *, recorded: bool, call: Scope | None = None) -> None:
        self.connection = connection
        self.recorded = recorded
        self.outer = current_scope.get()
        self.parent = enclosing_scope(connection, call)
        self.depth: int = 0 if self.parent is None else self.parent.depth + 1
        self.began = False
        self.wrote = False
        self.over = False
        self.lost: str | None = None
        self.draws: int | None = None
        self.before: tuple[object, Callable[[], Changes]] | None = None

    @property
    def root(self) -> Scope:
        """The outermost scope around this one, or this one itself."""
        return self if self.parent is None else self.parent.root

    def chain(self) -> list[Scope]:
        """This scope and those around it, outermost first."""
        scopes: list[Scope] = []
        scope: Scope | None = self
        while scope is not None:
            scopes.append(scope)
            scope = scope.parent
        return scopes[::-1]


def enclosing_scope(connection: Connection, call: Scope | None = None) -> Scope | None:
    """The innermost scope of ``connection`` that the running code is in.

    ``call`` is the tool call that was given the database: what a thread or an event loop of the tool's own
    does with it belongs there, although no scope is known in their context. ``DatabaseError`` in a tool call
    of another rollout: the tool has kept this database from an earlier call, and would read and write what is
    not its rollout's.
    """
    scope = present = current_scope.get()
    if present is None and call is not None:
        owner = connection.turns.owner
        return owner if owner is not None and call in owner.chain() else call
    while scope is not None and scope.connection is not connection:
        scope = scope.outer
    if scope is None and present is not None and connection.is_played_on and present.root.recorded:
        raise DatabaseError(
            "this database is another rollout's",
            remedy="Use the `db` that the call is given, and keep none from one call to the next.",
        )
    return scope


class _Waiter:
    """Somebody in the queue; ``refused`` once the scope has ended before it came to its turn."""

    def __init__(self, scope: Scope | None, *, last: bool) -> None:
        self.scope = scope
        self.last = last
        self.refused = False

    def wake(self) -> bool:
        """Tell it that it has the turn (or was refused); whether anybody is there to hear it."""
        raise NotImplementedError


class _WaitingTask(_Waiter):
    def __init__(self, scope: Scope | None, *, last: bool) -> None:
        super().__init__(scope, last=last)
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._finish)
        except RuntimeError:  # its loop was closed: nobody waits there any more
            return False
        return True

    def _finish(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class _WaitingThread(_Waiter):
    def __init__(self, scope: Scope | None, *, last: bool) -> None:
        super().__init__(scope, last=last)
        self.event = threading.Event()

    def wake(self) -> bool:
        self.event.set()
        return True


class Turns:
    """Hands out the turns at one connection in the order of asking.

    A turn lasts one statement.  With its first turn a scope becomes the owner of the connection and stays
    so until it is released: meanwhile only scopes inside it get turns.  The ``last`` turn of a scope is
    the one in which it is committed or rolled back; from ``close`` on it is the only one left to it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy = False
        self._owner: Scope | None = None
        self._queue: list[_Waiter] = []

    @property
    def are_free(self) -> bool:
        """Whether nobody has the turn and no scope owns the connection."""
        return not self._busy and self._owner is None

    @property
    def owner(self) -> Scope | None:
        """The scope that owns the connection."""
        return self._owner

    def enter(self, scope: Scope | None, *, last: bool = False) -> bool:
        """Take the turn for ``scope`` (``None``: for a single statement) if it is free."""
        with self._lock:
            if self._busy or not self._may_enter(scope, last):
                return False
            self._busy = True
            if scope is not None:
                self._owner = scope
            return True

    def leave(self) -> None:
        """Give the turn to whoever comes next."""
        with self._lock:
            self._busy = False
            if self._queue:
                self._hand_over()

    def close(self, scope: Scope) -> bool:
        """Let no further statement of ``scope`` in; whether it owns the connection and has to be released."""
        with self._lock:
            scope.over = True
            if self._queue:
                self._refuse_ended()
            return self._owner is not None and scope in self._owner.chain()

    def release(self, scope: Scope) -> None:
        """Leave the last turn of ``scope`` and give up its ownership."""
        with self._lock:
            self._busy = False
            self._owner = scope.parent
            if self._queue:
                self._hand_over()

    async def wait(self, scope: Scope | None, *, last: bool = False) -> None:
        """``enter``, waiting for the turn without blocking the event loop."""
        waiter = _WaitingTask(scope, last=last)
        if self._enqueue(waiter):
            try:
                await waiter.future
            except asyncio.CancelledError:
                self._give_up(waiter)
                raise
        if waiter.refused:
            raise scope_has_ended()

    def wait_blocking(self, scope: Scope | None, *, last: bool = False, seconds: float | None = None) -> None:
        """``enter``, blocking this thread, at most for ``seconds``.

        ``DatabaseError`` in an event loop's thread, which may be the one that has to give the turn away.
        """
        waiter = _WaitingThread(scope, last=last)
        if self._enqueue(waiter):
            if _is_event_loop_running():
                self._give_up(waiter)
                raise DatabaseError(
                    "another tool call is using the database; waiting here would block the event loop",
                    remedy="Use `await db.execute(...)` in `async def` functions.",
                )
            if not waiter.event.wait(seconds):
                self._give_up(waiter)
                raise QueryTimeoutError(
                    f"waited {seconds:g} s for a tool call that holds the database",
                    remedy="Threads that a tool starts must run in its context, as with `asyncio.to_thread`.",
                )
        if waiter.refused:
            raise scope_has_ended()

    def _may_enter(self, scope: Scope | None, last: bool) -> bool:
        owner = self._owner
        if scope is None:
            return owner is None
        if last:
            return owner is not None and scope in owner.chain()
        if owner is scope:
            return not scope.over
        chain = scope.chain()
        return (owner is None or owner in chain) and not any(each.over for each in chain)

    def _enqueue(self, waiter: _Waiter) -> bool:
        """Whether ``waiter`` has to wait; if not, it has the turn or was refused."""
        with self._lock:
            self._queue.append(waiter)
            self._refuse_ended()
            if not self._busy:
                self._hand_over()
            return waiter in self._queue

    def _give_up(self, waiter: _Waiter) -> None:
        with self._lock:
            if waiter in self._queue:
                self._queue.remove(waiter)
                return
        if not waiter.refused:  # the turn was handed over to it already
            self.leave()

    def _hand_over(self) -> None:
        for waiter in list(self._queue):
            if self._may_enter(waiter.scope, waiter.last):
                self._queue.remove(waiter)
                if waiter.wake():
                    self._busy = True
                    if waiter.scope is not None:
                        self._owner = waiter.scope
                    return

    def _refuse_ended(self) -> None:
        for waiter in list(self._queue):
            if (
                waiter.scope is not None
                and not waiter.last
                and any(each.over for each in waiter.scope.chain())
            ):
                self._queue.remove(waiter)
                waiter.refused = True
                waiter.wake()


def scope_has_ended() -> DatabaseError:
    """The error of a statement that comes after the end of its tool call or transaction."""
    return DatabaseError(
        "the tool call or transaction that this statement belongs to has ended",
        remedy="Await everything that a tool starts before it returns.",
    )


def _is_event_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
