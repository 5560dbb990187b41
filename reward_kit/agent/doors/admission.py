"""One rollout behind the door: its calls, made one by one for whoever holds the token."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.rollout import RolloutStopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.rollout import Rollout, StopReason
    from reward_kit.agent.tools.execution import ToolStatus

MAX_KEY = 256
"""Characters of an ``Idempotency-Key``."""


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """What a call through the door gives back.

    ``result`` is what a model sees. ``stopped`` is set where the rollout is over: the call was its last one
    (a terminal tool), or came too late and was not made (``status`` is then ``refused``).
    """

    result: str
    status: ToolStatus
    stopped: StopReason | None

    def to_json(self) -> dict[str, Any]:
        """The body of the HTTP answer."""
        return {"result": self.result, "status": self.status, "stopped": self.stopped}


class KeyReusedError(Exception):
    """An idempotency key came back with another call than its first."""


class _Keyed(NamedTuple):
    name: str
    arguments: dict[str, Any] | str
    answer: asyncio.Task[CallAnswer]


@dataclass(slots=True, eq=False)
class Admission:
    """A rollout that may be acted on from outside. ``on_stop`` is told of each answer that says it is over.

    A call runs in a task of its own and to its end, whatever becomes of the request that brought it: a client
    that hangs up never leaves half a call. ``Rollout.finish`` is what ends a call early.
    """

    rollout: Rollout
    on_stop: Callable[[], None] | None = None
    _running: set[asyncio.Task[CallAnswer]] = field(default_factory=set)
    _keyed: dict[str, _Keyed] = field(default_factory=dict)

    async def call(self, name: str, arguments: dict[str, Any] | str, *, key: str | None = None) -> CallAnswer:
        """Make the call, or give the answer that the call with this ``key`` had.

        Never raises for what the tool or the rollout does; ``KeyReusedError`` where ``key`` belongs to
        another call.
        """
        known = self._keyed.get(key) if key is not None else None
        if known is not None and known[:2] != (name, arguments):
            raise KeyReusedError
        if known is None and self.rollout.stop_reason is not None:
            return self._told(self._too_late())
        answer = known.answer if known is not None else self._begin(name, arguments)
        if key is not None and known is None:
            self._keyed[key] = _Keyed(name, arguments, answer)
        return self._told(await asyncio.shield(answer))

    async def cancel(self) -> None:
        """End the calls that are still running."""
        running = set(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _begin(self, name: str, arguments: dict[str, Any] | str) -> asyncio.Task[CallAnswer]:
        task = asyncio.ensure_future(self._made(name, arguments))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _made(self, name: str, arguments: dict[str, Any] | str) -> CallAnswer:
        calls = self.rollout.tool_calls
        before = calls[-1] if calls else None
        try:
            await self.rollout.call_tool(name, arguments)
        except RolloutStopped:
            pass  # over before the call (nothing recorded), or with it (a terminal tool, another call's end)
        except asyncio.CancelledError:
            pass  # the end of the rollout or of the door; the call is recorded as interrupted
        # A call that was made is recorded last: nothing is awaited between that and this line. One that was
        # refused was so before anything was awaited, so that no other call can have come between either.
        if not calls or calls[-1] is before:
            return self._too_late()
        status: ToolStatus = calls[-1].status  # type: ignore[assignment]  # a record's is any text
        return CallAnswer(calls[-1].content, status, self.rollout.stop_reason)

    def _too_late(self) -> CallAnswer:
        reason = self.rollout.stop_reason
        text = f"Error: not run, the conversation is over ({reason}). Make no more calls."
        return CallAnswer(text, "refused", reason)

    def _told(self, answer: CallAnswer) -> CallAnswer:
        if answer.stopped is not None and self.on_stop is not None:
            self.on_stop()
        return answer
