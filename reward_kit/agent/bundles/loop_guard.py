"""What code of a bundle cannot do to the event loop that others need as well: stop it, or end their tasks."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

T = TypeVar("T")

_player: ContextVar[object | None] = ContextVar("_player", default=None)
"""For whom the present code runs: a rollout's episode, its reward; None for this package's own."""


@contextmanager
def loop_kept_running() -> Iterator[None]:
    """What is done meanwhile, by this task and those that it starts, cannot stop the event loop, nor cancel
    the guarded tasks of others. Methods of the loop that were replaced are put back.
    """
    loop: Any = asyncio.get_running_loop()
    if "stop" not in getattr(loop, "__dict__", {"stop": None}):  # a loop written in C has none
        stop = loop.stop

        def stop_unless_playing() -> None:
            if _player.get() is not None:
                raise RuntimeError("a rollout cannot stop the event loop, which others need")
            stop()

        loop.stop = stop_unless_playing
    player = _player.get()
    token = _player.set(object() if player is None else player)
    own = len(getattr(loop, "__dict__", ()))
    try:
        yield
    finally:
        _player.reset(token)
        for name in list(getattr(loop, "__dict__", ()))[own:]:  # those that were added since
            if hasattr(type(loop), name):  # it stands before a method
                delattr(loop, name)


class GuardedTask(asyncio.Task[T]):
    """Only those for whom it runs, and this package's own code, can cancel it.

    It runs for whoever makes it: inside ``loop_kept_running`` for the one whose code runs there.
    ``is_cancelled`` says whether one of them did.
    """

    def __init__(self, work: Coroutine[Any, Any, T], **options: Any) -> None:
        self._owner = _player.get()
        self.is_cancelled = False
        super().__init__(work, **options)

    def cancel(self, msg: Any = None) -> bool:
        _refuse_others(self._owner)
        self.is_cancelled = True
        return super().cancel(msg)


class GuardedFuture(asyncio.Future[None]):
    """A task that waits for it is guarded meanwhile, whoever made that task."""

    def cancel(self, msg: Any = None) -> bool:
        _refuse_others(None)
        return super().cancel(msg)

    def end(self, _: object = None) -> None:
        """Let whoever waits go on; may be called again."""
        if not self.done():
            self.set_result(None)


def _refuse_others(owner: object | None) -> None:
    player = _player.get()
    if player is not None and player is not owner:
        raise RuntimeError("a rollout cannot cancel the tasks of others")


def guarded_task(work: Coroutine[Any, Any, T]) -> GuardedTask[T]:
    """``asyncio.create_task``, guarded."""
    return GuardedTask(work, loop=asyncio.get_running_loop())


@contextmanager
def own_tasks_guarded() -> Iterator[None]:
    """Tasks of this package's own that are made meanwhile are guarded."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()

    def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        kind = GuardedTask if _player.get() is None else asyncio.Task
        return kind(work, loop=loop, **options)

    if before is None:  # somebody else's is left alone
        loop.set_task_factory(make)
    try:
        yield
    finally:
        loop.set_task_factory(before)
