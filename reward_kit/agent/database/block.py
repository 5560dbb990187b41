"""Blocks of statements: a tool call, a ``transaction()``, and the lock for what runs in one."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from concurrent import futures
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from reward_kit.agent.database.changes import Changes
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from types import TracebackType

    from reward_kit.agent.database.turns import Turns

current_block: contextvars.ContextVar[Block | None] = contextvars.ContextVar("reward_kit_block", default=None)
"""The innermost block around the running code, of any database."""


class Lock:
    """A lock for tasks of any event loop and for threads, given in the order of asking; not reentrant."""

    __slots__ = ("_guard", "_waiting", "held")

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[futures.Future[None]] | None = None
        self.held = False

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        with self._guard:
            if self.held:
                return False
            self.held = True
            return True

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
        """Give the lock to the next waiter, or free it."""
        with self._guard:
            while self._waiting:
                waiter = self._waiting.popleft()
                if waiter.set_running_or_notify_cancel():
                    break
            else:
                self.held = False
                return
        waiter.set_result(None)

    def _queue(self) -> futures.Future[None]:
        """A future that is done once its owner holds the lock."""
        waiter: futures.Future[None] = futures.Future()
        with self._guard:
            if self.held:
                self._waiting = self._waiting or deque()
                self._waiting.append(waiter)
                return waiter
            self.held = True
        waiter.set_result(None)
        return waiter


class Block:
    """One tool call or ``transaction()``; without a ``parent``, all that is outside of any.

    ``outer`` is the block that was current before, of any database.  ``entered``: it holds the lock of its
    parent.  ``begun``: its transaction or savepoint is open.  ``over``: it has ended, or is about to.
    ``lost``: the reason why SQLite rolled its transaction back.  ``mark`` is the content before it, None
    until there is something to take back.
    """

    __slots__ = (
        "begun", "child", "depth", "entered", "is_call", "lock", "lost", "mark", "outer", "over", "parent",
        "turns",
    )  # fmt: skip

    def __init__(self, turns: Turns, parent: Block | None, *, is_call: bool = False) -> None:
        self.turns = turns
        self.parent = parent
        self.outer = current_block.get()
        self.is_call = is_call
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.lock = Lock()
        self.child: Block | None = None
        self.entered = parent is None
        self.begun = False
        self.over = False
        self.lost: str | None = None
        self.mark: Any = None

    @property
    def top(self) -> Block:
        """The outermost block around this one, or itself."""
        return self if self.parent is None or self.parent.parent is None else self.parent.top

    def innermost(self) -> Block:
        """The open block inside this one, inside which no other is open."""
        return self if self.child is None else self.child.innermost()

    def end(self) -> Block:
        """Let no further statement into this block and those inside it; returns the innermost one."""
        self.over = True
        return self if self.child is None else self.child.end()

    def check_not_lost(self) -> None:
        """Raise ``DatabaseError`` if SQLite rolled the transaction back."""
        if self.lost is not None:
            raise DatabaseError(
                f"the transaction was rolled back and takes no further statements, because of: {self.lost}"
            )

    def try_take(self) -> bool:
        """Take the lock, and with the first turn those around it, if none has to be waited for."""
        if self.over or not self.lock.try_acquire():
            return False
        if self.entered:
            return True
        if self.parent is not None and self.parent.try_take():
            self.entered = True
            self.parent.child = self
            if not self.over:
                return True
            self.leave()
        self.lock.release()
        return False

    def enterable_parent(self) -> Block:
        """The parent, in which this block waits for its turn; ``DatabaseError`` if this block is over."""
        if self.over or self.parent is None:
            raise block_has_ended()
        return self.parent

    def note_entered(self) -> None:
        """The lock of the parent was taken."""
        assert self.parent is not None
        self.entered = True
        self.parent.child = self
        if self.over:  # it ended in the meantime
            self.leave()
            raise block_has_ended()

    def leave(self) -> None:
        """Give the lock of the parent back, if it was taken."""
        if self.entered and self.parent is not None:
            self.entered = False
            self.parent.child = None
            self.parent.lock.release()


class Transaction:
    """``async with db.transaction():`` -- kept at the end, undone on any exception, cancellation included.

    Inside a tool call or another transaction it is a savepoint.  ``with`` does the same in a thread.
    """

    is_call = False

    def __init__(self, turns: Turns, call: Block | None = None) -> None:
        self._turns = turns
        self._call = call
        self._block: Block | None = None

    async def __aenter__(self) -> Any:
        turns = self._turns
        block = Block(turns, turns.current(self._call), is_call=self.is_call)
        assert block.parent is not None
        # a call waits with its first statement: parallel calls wait only if they use the database
        if not self.is_call or block.depth > 1 or turns.store.is_shared:
            await turns.take(block)
            with ExitStack() as failed:
                failed.callback(block.lock.release)
                if self.is_call:
                    failed.callback(block.leave)
                    turns.note_call(block)
                failed.pop_all()
            block.lock.release()
        self._block = block
        current_block.set(block)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._finish(failed=kind is not None)

    async def _finish(self, *, failed: bool) -> Changes:
        current_block.set(self.block.outer)
        return await self._turns.finish(self.block, failed=failed)

    @property
    def block(self) -> Block:
        """The block of its statements, once it was entered."""
        assert self._block is not None, "it was entered"
        return self._block

    def __enter__(self) -> Transaction:
        block = Block(self._turns, self._turns.current(self._call))
        self._turns.take_blocking(block)
        block.lock.release()
        self._block = block
        current_block.set(block)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        current_block.set(self.block.outer)
        self._turns.finish_blocking(self.block, failed=kind is not None)


class ToolCall(Transaction):
    """``async with db.tool_call() as call:`` -- the transaction of one tool call.

    Calls that run at the same time take turns: each has the database to itself from its first statement (in
    mode "file": from its start) to its end.  After a clean end ``changes`` are the rows that it changed.
    """

    is_call = True

    def __init__(self, turns: Turns, call: Block | None = None) -> None:
        super().__init__(turns, call)
        self.changes = Changes()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.changes = await self._finish(failed=kind is not None)


def block_has_ended() -> DatabaseError:
    """The error of a statement that comes after the end of its tool call or transaction."""
    return DatabaseError(
        "the tool call or transaction that this statement belongs to has ended",
        remedy="Await everything that a tool starts before it returns.",
    )
