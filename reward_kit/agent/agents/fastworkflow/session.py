"""A rollout's place in a worker."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from reward_kit.agent.agents.fastworkflow.model_faults import raise_fault
from reward_kit.agent.completion import Usage
from reward_kit.errors import ModelError

if TYPE_CHECKING:
    from reward_kit.agent.agents.fastworkflow.workers import Patience, Worker, WorkerPool
    from reward_kit.agent.doors import ToolDoor
    from reward_kit.agent.rollout import Rollout


class Session:
    """A rollout's place in a worker: its admission to the tools, and its turns."""

    def __init__(self, rollout: Rollout, pool: WorkerPool, worker: Worker, patience: Patience) -> None:
        self._rollout = rollout
        self._pool = pool
        self._worker = worker
        self._patience = patience
        self._admission = contextlib.ExitStack()
        self._asked: asyncio.Task[dict[str, Any]] | None = None
        worker.rollouts[rollout.id] = self._count

    async def begin(self, door: ToolDoor, policy: str | None) -> None:
        """Admit the worker to the rollout's tools; ``policy`` is for the planner to see."""
        token = self._admission.enter_context(door.admit(self._rollout))
        try:
            self._begin("open", door=door.url, token=token, policy=policy)
            answer = await self._answer()
        except BaseException:
            await self.close()
            raise
        if "error" in answer:
            await self.close()
            raise_fault(answer["error"])

    async def turn(self, text: str) -> dict[str, Any]:
        """What the worker answers; ``ModelError`` where nothing happens for too long (``close`` ends it)."""
        self._begin("turn", text=text)
        return await self._answer()

    def _begin(self, op: str, **fields: Any) -> None:
        self._asked = asyncio.ensure_future(self._worker.ask(op, rollout=self._rollout.id, **fields))
        self._asked.add_done_callback(_seen)

    async def _answer(self) -> dict[str, Any]:
        assert self._asked is not None, "_begin comes first"
        happened = -1
        while not self._asked.done():
            if happened == self._happened:
                limit = self._patience.turn
                raise ModelError(
                    f"no model call and no tool call of a turn ended within {limit:g} s",
                    place="FastWorkflow",
                    retryable=True,
                )
            happened = self._happened
            # not cancelled with its waiter: what was begun is called off in good order
            await asyncio.wait({self._asked}, timeout=self._patience.turn)
        return self._asked.result()

    @property
    def _happened(self) -> int:
        """Grows with each model call and tool call."""
        return len(self._rollout.model_calls) + len(self._rollout.tool_calls)

    async def close(self) -> None:
        """Take the rollout from the worker at once; a turn that is running is called off beside that."""
        self._worker.rollouts.pop(self._rollout.id, None)
        self._admission.close()
        self._pool.later(self._leave())

    async def _leave(self) -> None:
        """Call off a turn that is still running, and end a worker in which it does not end."""
        with contextlib.suppress(ModelError):  # the worker is gone, and the rollout with it
            if self._asked is not None and not self._asked.done():
                self._worker.called_off += 1
                await self._worker.ask("cancel", rollout=self._rollout.id)
                await asyncio.wait({self._asked}, timeout=self._patience.farewell)
                self._worker.called_off -= 1
                if not self._asked.done():
                    limit = self._patience.farewell
                    await self._worker.end(
                        f"a turn of another rollout had hung, {limit:g} s after it was called off"
                    )
            await self._worker.ask("close", rollout=self._rollout.id)

    def _count(self, event: dict[str, Any]) -> None:
        """Count a model call that the worker tells of."""
        if event["event"] != "model_call":
            return
        cost = event["cost"]
        usage = Usage(
            calls=1,
            input_tokens=event["input_tokens"],
            cached_tokens=event["cached_tokens"],
            output_tokens=event["output_tokens"],
            reasoning_tokens=event["reasoning_tokens"],
            cost=cost or 0.0,
            unpriced_calls=1 if cost is None else 0,
        )
        self._rollout.count_usage(
            usage,
            model=event["model"],
            seconds=event["seconds"],
            started=event["started"],
            finish_reason=event["finish_reason"],
        )


def _seen(asked: asyncio.Task[dict[str, Any]]) -> None:
    """Nobody may be waiting for the answer any more; then nobody is to hear that there was none."""
    if not asked.cancelled():
        asked.exception()
