"""A plain function in the place of an agent or user: ``--agent module:function``."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

from reward_kit.agent.worker_thread import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from reward_kit.agent.rollout import Rollout


class FunctionPlayer:
    """Answers each turn with ``function(rollout)``.

    An ``async def`` function gets the rollout itself. A ``def`` function runs in a thread and gets a
    ``BlockingRollout``.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    async def respond(self, rollout: Rollout) -> Any:
        """What the function returned."""
        if inspect.iscoroutinefunction(self._function):
            return await self._function(rollout)
        blocking = BlockingRollout(rollout)
        return await in_thread(lambda: self._function(blocking))


class BlockingRollout:
    """A rollout for code that cannot await: ``call_tool`` and ``complete`` wait and give the result.

    Everything else is the rollout's own.
    """

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._loop = asyncio.get_running_loop()

    def call_tool(self, *args: Any, **kwargs: Any) -> str:
        """As ``Rollout.call_tool``."""
        return str(self._wait(self._rollout.call_tool(*args, **kwargs)))

    def complete(self, *args: Any, **kwargs: Any) -> Any:
        """As ``Rollout.complete``."""
        return self._wait(self._rollout.complete(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rollout, name)

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def takes_a_rollout(found: Any) -> bool:
    """Whether ``found`` is a function of one argument, and so answers turns itself.

    A factory is a class, or takes none.
    """
    if not inspect.isfunction(found) and not inspect.ismethod(found):
        return False
    required = [
        parameter
        for parameter in inspect.signature(found).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 1
