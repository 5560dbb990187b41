"""What code of a bundle has begun and never awaited: it did nothing, and a coroutine passes for true."""

from __future__ import annotations

import gc
import inspect
import sys
import warnings
from collections import OrderedDict
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.bundles.unawaited import (
    MissingAwaitError,
    close_what_libraries_left,
    door_of,
    is_over_coroutine,
    said,
    taken_for_result,
)
from reward_kit.agent.faults import is_own_code, is_package_code, line_of, place_of
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from contextvars import Token
    from types import FrameType

_present: ContextVar[Awaits | None] = ContextVar("_present", default=None)


class Awaits:
    """``with Awaits() as awaits:`` around a call of ``function``; then ``awaits.check(function)``.

    In the place of an error that comes of a coroutine used as its result it raises ``MissingAwaitError``;
    what the call has broken of the language must be put back by then.

    Costs next to nothing as long as nothing is forgotten: Python itself tells of a coroutine that goes
    unawaited. Without ``all_of_it`` only what a rollout's own methods gave counts: what tools have left in
    exceptions goes in an agent's turn, too.
    """

    __slots__ = ("_token", "all_of_it", "forgotten", "is_over", "tasks")

    def __init__(self, *, all_of_it: bool = True) -> None:
        self.all_of_it = all_of_it
        self.is_over = False
        self.forgotten: list[MissingAwaitError] = []
        self.tasks: list[asyncio.Task[Any]] = []

    def __enter__(self) -> Awaits:
        if warnings.__dict__.get(_HOOK) is not _note:
            setattr(warnings, _HOOK, _note)
        self._token: Token[Awaits | None] = _present.set(self)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.is_over = True  # tasks that were left behind are still in its context
        try:  # noqa: SIM105 - suppress() takes half a microsecond
            _present.reset(self._token)
        except ValueError:  # it is closed from outside, where another context is current
            pass
        if isinstance(error, Exception):
            self._explain(error)

    def _explain(self, error: Exception) -> None:
        """Raise ``MissingAwaitError`` if that is what ``error`` comes of."""
        close_what_libraries_left(error)
        if type(error) is not AttributeError and type(error) is not TypeError:
            return
        work = taken_for_result(error)
        if work is not None:
            used = f".{error.name}" if type(error) is AttributeError else ""
            told = MissingAwaitError(work, place=line_of(error), used=used)
            work.close()
            raise told from error
        if self.forgotten and is_over_coroutine(error):
            first = self.forgotten[0]
            first.place = first.place or line_of(error)
            first.note_use()
            raise first from error

    def check(self, function: Callable[..., Any]) -> None:
        """Raise ``RewardKitError`` if something was forgotten: with its line, else that of ``function``."""
        left = self._left_tasks() if self.tasks else None
        if self.forgotten or left:
            first = [*self.forgotten, *(left or ())][0]
            first.place = first.place or _place(function)
            raise first

    def _left_tasks(self) -> list[RewardKitError]:
        """A task that has not begun yet can do nothing with a database whose call is over."""
        left = []
        for task in self.tasks:
            work: Any = task.get_coro()
            ended = task.done() or getattr(task, "_must_cancel", False)
            if not ended and inspect.iscoroutine(work) and _is_to_use_a_database(work):
                task.cancel()
                fault = f"the task of {said(work)} was never awaited: an await is missing"
                left.append(RewardKitError(fault, remedy="Await the task before the end."))
        self.tasks.clear()
        return left


def _place(function: Callable[..., Any]) -> str | None:
    """Where a person wrote it; None for what stands in for theirs."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is not None and is_package_code(code.co_filename) else place_of(function)


def note_task(task: asyncio.Task[Any]) -> None:
    """``task`` was made, perhaps by the code of a call."""
    awaits = _present.get()
    if awaits is not None and awaits.all_of_it and not awaits.is_over:
        awaits.tasks.append(task)


def _note(work: Coroutine[Any, Any, Any]) -> None:
    """Stands in for the function of ``warnings`` that Python calls with a coroutine nobody awaited."""
    awaits = _present.get()
    # what a garbage collection finds may be that of another call
    if awaits is None or awaits.is_over or _is_collecting():
        _warn(work)
        return
    code = sys._getframe(1)  # noqa: SLF001 - the line that let go of it
    if not _is_of_bundle(work, code, awaits):
        _warn(work)
        return
    file = Path(code.f_code.co_filename)
    place = f"{file.name}:{code.f_lineno}" if is_own_code(str(file)) else None
    awaits.forgotten.append(MissingAwaitError(work, place=place))


_HOOK = "_warn_unawaited_coroutine"
_warn = getattr(warnings, _HOOK, lambda _: None)
_phases = OrderedDict.fromkeys(("start", "stop"))
"""Of garbage collections, the one that was entered last at the end."""
# No function in Python: the KeyboardInterrupt that Ctrl-C raises at the beginning of one would be lost.
gc.callbacks.append(_phases.move_to_end)  # type: ignore[arg-type]  # what tells of it passes for True


def _is_collecting() -> bool:
    return next(reversed(_phases)) == "start"


def _is_of_bundle(work: Any, code: FrameType, awaits: Awaits) -> bool:
    """Whether the call's own code forgot it, and not a library that it uses."""
    door = door_of(work)
    if door is not None or not awaits.all_of_it:
        return door == "rollout" or awaits.all_of_it
    return is_own_code(work.cr_code.co_filename) or is_own_code(code.f_code.co_filename)


def _is_to_use_a_database(work: Any) -> bool:
    from reward_kit.agent.database import Database
    from reward_kit.agent.database.database import ReadOnlyAsyncDatabase

    if inspect.getcoroutinestate(work) != inspect.CORO_CREATED:
        return False
    given = work.cr_frame.f_locals.values()
    return any(isinstance(value, Database | ReadOnlyAsyncDatabase) for value in given)
