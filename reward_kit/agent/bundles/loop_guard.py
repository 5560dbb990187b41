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


class _Player:
    """For whom code runs on a loop: a rollout's episode, its reward.

    What runs in a thread of its own may have a loop of its own, as an evaluation does that an agent plays.
    """

    __slots__ = ("loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop


_player: ContextVar[_Player | None] = ContextVar("_player", default=None)
"""For whom the present code runs; None for this package's own."""


def _player_on(loop: asyncio.AbstractEventLoop) -> _Player | None:
    player = _player.get()
    return player if player is not None and player.loop is loop else None


class loop_kept_running:  # noqa: N801 - a context manager; one made of a generator takes a microsecond more
    """What is done meanwhile, by this task and those that it starts, cannot stop the event loop, nor cancel
    the guarded tasks of others. Methods of the loop that were replaced are put back, so is its debug mode.

    Where nobody's code ran yet, the present task is that of whoever comes: ``asyncio.timeout`` cancels it.
    """

    __slots__ = ("_debug", "_loop", "_own", "_task", "_token")

    def __enter__(self) -> None:
        loop: Any = asyncio.get_running_loop()
        if "stop" not in getattr(loop, "__dict__", {"stop": None}):  # a loop written in C has none
            loop.stop = _stop_unless_playing(loop)
        player, self._task = _player_on(loop), None
        if player is None:
            player, task = _Player(loop), asyncio.current_task()
            if isinstance(task, GuardedTask) and task.owner is None:
                self._task, task.owner = task, player
        self._token = _player.set(player)
        self._loop, self._own = loop, len(getattr(loop, "__dict__", ()))
        self._debug = loop.get_debug()

    def __exit__(self, *_: object) -> None:
        try:  # noqa: SIM105 - suppress() takes half a microsecond
            _player.reset(self._token)
        except ValueError:  # it is closed from outside, where another context is current
            pass
        if self._task is not None:
            self._task.owner = None
        if self._loop.get_debug() and not self._debug:  # it would tell of each call that takes a while
            self._loop.set_debug(False)
        added = getattr(self._loop, "__dict__", ())
        if len(added) == self._own:
            return
        for name in list(added)[self._own :]:
            if hasattr(type(self._loop), name):  # it stands before a method
                delattr(self._loop, name)


def _stop_unless_playing(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    stop = loop.stop

    def stop_unless_playing() -> None:
        if _player_on(loop) is not None:
            raise RuntimeError("a rollout cannot stop the event loop, which others need")
        stop()

    return stop_unless_playing


class GuardedTask(asyncio.Task[T]):
    """Only those for whom it runs, and this package's own code, can cancel it.

    It runs for whoever makes it, its ``owner``: inside ``loop_kept_running`` the one whose code runs there.
    ``is_cancelled`` says whether one of them did.
    """

    __slots__ = ("is_cancelled", "owner")

    def __init__(
        self, work: Coroutine[Any, Any, T], *, loop: asyncio.AbstractEventLoop, **options: Any
    ) -> None:
        self.owner = _player_on(loop)
        self.is_cancelled = False
        super().__init__(work, loop=loop, **options)

    def cancel(self, msg: Any = None) -> bool:
        _refuse_others(self.owner, self.get_loop())
        self.is_cancelled = True
        return super().cancel(msg)


class GuardedFuture(asyncio.Future[None]):
    """A task that waits for it is guarded meanwhile, whoever made that task."""

    def cancel(self, msg: Any = None) -> bool:
        _refuse_others(None, self.get_loop())
        return super().cancel(msg)

    def end(self, _: object = None) -> None:
        """Let whoever waits go on; may be called again."""
        if not self.done():
            self.set_result(None)


def _refuse_others(owner: _Player | None, loop: asyncio.AbstractEventLoop) -> None:
    player = _player_on(loop)
    if player is not None and player is not owner:
        raise RuntimeError("a rollout cannot cancel the tasks of others")


def guarded_task(work: Coroutine[Any, Any, T]) -> GuardedTask[T]:
    """``asyncio.create_task``, guarded."""
    return GuardedTask(work, loop=asyncio.get_running_loop())


class _TaskFactory:
    """Of a loop on which evaluations run: one or several that overlap."""

    def __init__(self) -> None:
        self.evaluations = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        if _player_on(loop) is None:
            return GuardedTask(work, loop=loop, **options)
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        note_task(task)
        return task


@contextmanager
def own_tasks_guarded() -> Iterator[None]:
    """Tasks of this package's own that are made meanwhile are guarded, those of a call are noted by its
    ``Awaits``.
    """
    loop = asyncio.get_running_loop()
    factory: Any = loop.get_task_factory()
    if factory is None:
        factory = _TaskFactory()
        loop.set_task_factory(factory)
    if not isinstance(factory, _TaskFactory):  # somebody else's is left alone
        yield
        return
    factory.evaluations += 1
    try:
        yield
    finally:
        factory.evaluations -= 1
        if factory.evaluations == 0 and loop.get_task_factory() is factory:
            loop.set_task_factory(None)
