"""Wrappers of custom agents and users: functions, shared objects, and factories."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.worker_thread import in_thread
from reward_kit.errors import BundleError, RewardKitError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.rollout.rollout import Rollout

CANNOT_RESPOND = "which has no `async def respond(self, rollout)`"


def can_respond(player: Any) -> bool:
    """Return True for an object that can answer turns."""
    return inspect.iscoroutinefunction(getattr(player, "respond", None))


def is_async(function: Callable[..., Any]) -> bool:
    """Return True for an ``async def`` function, or an object that is called like one."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


class FunctionPlayer:
    """Answers each turn with ``function(rollout)``; a ``def`` function runs in a thread.

    An ``async def`` function gets the rollout itself, a ``def`` function a ``BlockingRollout``. One that
    returns the coroutine of another (a ``lambda``, a decorator's wrapper) counts as ``async def``.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function, self._is_async = function, is_async(function)

    async def respond(self, rollout: Rollout) -> Any:
        """Return the function's result."""
        if not self._is_async:
            blocking = BlockingRollout(rollout)
            said = await in_thread(lambda: self._function(blocking))
            if not inspect.iscoroutine(said):
                return said
            said.close()  # it has not begun, with a rollout that it cannot await
            self._is_async = True
        return await self._function(rollout)

    def fork(self) -> FunctionPlayer:
        """Return itself: the function plays all rollouts."""
        return self


class BlockingRollout:
    """A rollout for code that cannot await: ``call_tool`` and ``complete`` wait and give the result."""

    __slots__ = ("__weakref__", "_rollout")
    _rollout: Rollout

    def __init__(self, rollout: Rollout) -> None:
        object.__setattr__(self, "_rollout", rollout)
        _loops[self] = asyncio.get_running_loop()

    def call_tool(self, *args: Any, **kwargs: Any) -> str:
        """As ``Rollout.call_tool``."""
        return str(self._wait(self._rollout.call_tool(*args, **kwargs)))

    def complete(self, *args: Any, **kwargs: Any) -> Any:
        """As ``Rollout.complete``."""
        return self._wait(self._rollout.complete(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rollout, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._rollout, name, value)

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, _loops[self]).result()


_loops: WeakKeyDictionary[BlockingRollout, asyncio.AbstractEventLoop] = WeakKeyDictionary()
"""The loop of each; not an attribute, for the tasks of a loop lead to the state of all rollouts."""


class OwnFactory:
    """A custom factory, or object that plays all rollouts: errors name it, and it can respond.

    ``trial`` makes a product to be checked before the first rollout gets it: it may be costly to make.
    """

    def __init__(self, found: Any, spec: str, place: str) -> None:
        self._found = found
        self._spec = spec
        self._place = place
        self._trial: Any = None
        self._is_shared = not inspect.isclass(found) and hasattr(found, "respond")
        self.sees_answers = bool(getattr(found, "sees_answers", False))

    def __call__(self) -> Any:
        made, self._trial = self.trial(), None
        return made

    def trial(self) -> Any:
        """Return the product that the next call returns."""
        if self._is_shared and self.sees_answers:
            fault = "one object cannot play all rollouts, since it sees the answers of each"
            raise BundleError(fault, place=self._place, remedy="Name its class instead.")
        if self._trial is None:
            with foreign_code(f"{self._spec}() raised", self._place):
                made = _Lent(self._found) if self._is_shared else self._found()
            if inspect.iscoroutine(made):
                made.close()
            if not can_respond(made):
                fault = f"{self._spec}() gave {type(made).__name__}, {CANNOT_RESPOND}"
                raise BundleError(fault, place=self._place)
            self._trial = made
        return self._trial

    def configured(self, config: EvaluationConfig, tasks: Sequence[Any]) -> OwnFactory:
        """Return the factory that its own ``configured`` gives, if it has one."""
        configured = getattr(self._found, "configured", None)
        if configured is None or self._is_shared:
            return self
        with foreign_code(f"{self._spec}.configured() raised", self._place):
            made = configured(config, tasks)
        if not (callable(made) or hasattr(made, "respond")):
            fault = f"{self._spec}.configured() gave {type(made).__name__}, not a class or function"
            raise BundleError(fault, place=self._place, remedy="It is a `def` that returns the factory.")
        return OwnFactory(made, self._spec, self._place)

    async def open(self) -> None:
        """Call the factory's ``open``; that of a class belongs to its products."""
        if not inspect.isclass(self._found):
            with foreign_code(f"{self._spec} cannot be opened:", self._place):
                await call_hook(self._found, "open")

    async def close(self) -> None:
        """Call the factory's ``close``, and that of a product that no rollout got."""
        try:
            await call_hook(self._trial, "close")
        finally:  # what its products share is closed even if one of them cannot be
            if not inspect.isclass(self._found):
                await call_hook(self._found, "close")


@contextmanager
def foreign_code(doing: str, place: str | None) -> Iterator[None]:
    """Turn exceptions of custom code into a ``BundleError`` that begins with ``doing``."""
    try:
        yield
    except RewardKitError:
        raise
    except (Exception, SystemExit) as error:  # the border to that code
        raise BundleError(f"{doing} {fault_line(error)}", place=place) from error


async def call_hook(held: Any, hook: str, *given: Any) -> None:
    """Call a method of an object, such as ``open`` or ``close``, sync or async, if it has that."""
    method = getattr(held, hook, None)
    if callable(method):
        result = method(*given)
        if inspect.isawaitable(result):
            await result


class _Lent:
    """A shared player as one rollout has it: all of it but ``open`` and ``close``."""

    def __init__(self, player: Any) -> None:
        object.__setattr__(self, "_player", player)

    async def respond(self, rollout: Rollout) -> Any:
        return await self._player.respond(rollout)

    def __getattr__(self, name: str) -> Any:
        if name in ("open", "close", "_player"):  # a copy asks for the last before it has it
            raise AttributeError(name)
        return getattr(self._player, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._player, name, value)
