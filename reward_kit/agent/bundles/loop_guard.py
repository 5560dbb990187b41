"""What code of a bundle cannot do to the event loop that others need as well: stop it, or end their tasks."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from reward_kit.agent.bundles.awaits import note_task

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")

_player: ContextVar[object | None] = ContextVar("_player", default=None)
"""For whom the present code runs: a rollout's episode, its reward; None for this package's own."""


class loop_kept_running:  # noqa: N801 - a context manager; one made of a generator takes a microsecond more
    """What is done meanwhile, by this task and those that it starts, cannot stop the event loop, nor cancel
    the guarded tasks of others. Methods of the loop that were replaced are put back.

    Where nobody's code ran yet, the present task is that of whoever comes: ``asyncio.timeout`` cancels it.
    """

    __slots__ = ("_loop", "_own", "_task", "_token")

    def __enter__(self) -> None:
        loop: Any = asyncio.get_running_loop()
        if "stop" not in getattr(loop, "__dict__", {"stop": None}):  # a loop written in C has none
            loop.stop = _stop_unless_playing(loop.stop)
        player, self._task = _player.get(), None
        if player is None:
            player, task = object(), asyncio.current_task()
            if isinstance(task, GuardedTask) and task.owner is None:
                self._task, task.owner = task, player
        self._token = _player.set(player)
        self._loop, self._own = loop, len(getattr(loop, "__dict__", ()))

    def __exit__(self, *_: object) -> None:
        try:  # noqa: SIM105 - suppress() takes half a microsecond
            _player.reset(self._token)
        except ValueError:  # it is closed from outside, where another context is current
            pass
        if self._task is not None:
            self._task.owner = None
        added = getattr(self._loop, "__dict__", ())
        if len(added) == self._own:
            return
        for name in list(added)[self._own :]:
            if hasattr(type(self._loop), name):  # it stands before a method
                delattr(self._loop, name)


def _stop_unless_playing(stop: Callable[[], None]) -> Callable[[], None]:
    def stop_unless_playing() -> None:
        if _player.get() is not None:
            raise RuntimeError("a rollout cannot stop the event loop, which others need")
        stop()

    return stop_unless_playing


class GuardedTask(asyncio.Task[T]):
    """Only those for whom it runs, and this package's own code, can cancel it.

    It runs for whoever makes it, its ``owner``: inside ``loop_kept_running`` the one whose code runs there.
    ``is_cancelled`` says whether one of them did.
    """

    def __init__(self, work: Coroutine[Any, Any, T], **options: Any) -> None:
        self.owner = _player.get()
        self.is_cancelled = False
        super().__init__(work, **options)

    def cancel(self, msg: Any = None) -> bool:
        _refuse_others(self.owner)
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
    """Tasks of this package's own that are made meanwhile are guarded, those of a call are noted by its
    ``Awaits``.
    """
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()

    def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        if _player.get() is None:
            return GuardedTask(work, loop=loop, **options)
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        note_task(task)
        return task

    if before is None:  # somebody else's is left alone
        loop.set_task_factory(make)
    try:
        yield
    finally:
        loop.set_task_factory(before)
