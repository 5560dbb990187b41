"""``tool_call()`` and ``transaction()``: blocks whose statements are kept together or not at all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reward_kit.agent.database.changes import Changes
from reward_kit.agent.database.turns import Scope, current_scope

if TYPE_CHECKING:
    from types import TracebackType

    from reward_kit.agent.database.connection import Connection


class _Block:
    recorded = False

    def __init__(self, connection: Connection, call: Scope | None = None) -> None:
        self._connection = connection
        self._call = call
        self._scope: Scope | None = None

    def _enter(self) -> Scope:
        self._scope = Scope(self._connection, recorded=self.recorded, call=self._call)
        current_scope.set(self._scope)
        return self._scope

    def _leave(self) -> Scope | None:
        """The scope, if it has to be ended because statements were run in it."""
        scope = self._scope
        assert scope is not None
        current_scope.set(scope.outer)
        return scope if self._connection.turns.close(scope) else None

    def _end(self, scope: Scope, *, failed: bool) -> Changes:
        try:
            return self._connection.finish(scope, failed=failed)
        finally:
            self._connection.turns.release(scope)


class Transaction(_Block):
    """``async with db.transaction():`` -- kept at the end, undone on any exception, cancellation included.

    Inside a tool call or another transaction it is a savepoint.  It begins with its first statement.
    """

    async def __aenter__(self) -> None:
        self._enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._finish(failed=kind is not None)

    async def _finish(self, *, failed: bool) -> Changes:
        scope = self._leave()
        if scope is None:
            return Changes()
        cancelled: asyncio.CancelledError | None = None
        if not self._connection.turns.enter(scope, last=True):
            # a statement of the block still runs on a thread
            if failed:
                self._connection.stop_running()
            cancelled = await self._last_turn(scope)
        changes = self._end(scope, failed=failed or cancelled is not None)
        if cancelled is not None:
            raise cancelled
        return changes

    async def _last_turn(self, scope: Scope) -> asyncio.CancelledError | None:
        """Wait for the last turn even if the task is cancelled meanwhile; returns that cancellation."""
        cancelled: asyncio.CancelledError | None = None
        while (error := await self._wait(scope)) is not None:
            cancelled = error
            self._connection.stop_running()
        return cancelled

    async def _wait(self, scope: Scope) -> asyncio.CancelledError | None:
        try:
            await self._connection.turns.wait(scope, last=True)
        except asyncio.CancelledError as error:
            return error
        return None


async def break_off(connection: Connection) -> None:
    """Undo the tool call or transaction that owns the connection; whoever is still in it can do no more.

    Of a statement outside of any, in a thread that was left behind, this stops the run and sees its end.
    """
    innermost = connection.turns.owner
    if innermost is None:
        if not connection.turns.are_free:
            connection.stop_running()
            await connection.turns.wait(None)
            connection.turns.leave()
        return
    for scope in innermost.chain():
        scope.over = True
    left = Transaction(connection)
    left._scope = innermost.root  # noqa: SLF001 - the class is this module's own
    await left._finish(failed=True)  # noqa: SLF001


class ToolCall(Transaction):
    """``async with db.tool_call() as call:`` -- the transaction of one tool call.

    Calls that run at the same time take turns: each has the database to itself from its first statement (in
    mode "file": from its start) to its end.  After a clean end ``changes`` are the rows that it changed.
    """

    recorded = True

    def __init__(self, connection: Connection, call: Scope | None = None) -> None:
        super().__init__(connection, call)
        self.changes = Changes()

    @property
    def scope(self) -> Scope:
        """What the statements of the call belong to, once it was entered."""
        assert self._scope is not None, "it was entered"
        return self._scope

    async def __aenter__(self) -> ToolCall:  # type: ignore[override]  # hands out more than a transaction does
        scope = self._enter()
        if scope.outer is None:
            self._connection.is_played_on = True
        if self._connection.eager:
            try:
                await self._own(scope)
            except BaseException:
                await self._finish(failed=True)
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.changes = await self._finish(failed=kind is not None)

    async def _own(self, scope: Scope) -> None:
        turns = self._connection.turns
        if not turns.enter(scope):
            await turns.wait(scope)
        try:
            self._connection.start(scope)
        finally:
            turns.leave()


class BlockingTransaction(_Block):
    """``with db.transaction():`` -- a ``Transaction`` for code that runs in a thread."""

    def __enter__(self) -> None:
        self._enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        scope = self._leave()
        if scope is None:
            return
        if not self._connection.turns.enter(scope, last=True):
            self._connection.turns.wait_blocking(scope, last=True)
        self._end(scope, failed=kind is not None)
