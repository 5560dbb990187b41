"""Coroutines that nobody awaited: what the bundle's code calls them, and which of them an error comes of."""

from __future__ import annotations

import asyncio
import gc
import inspect
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from reward_kit.agent.cut_text import cut
from reward_kit.agent.faults import is_own_code, is_package_code
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DOORS = {"AsyncFace": "db", "Rollout": "rollout", "ShownRollout": "rollout"}
"""Classes whose methods are awaited, by the name of the argument that is one."""
_LONGEST_ARGUMENT = 60


class MissingAwaitError(RewardKitError):
    """A coroutine was let go of, or used as if it were its result."""

    def __init__(self, work: Any, *, place: str | None, used: str | None = None) -> None:
        self._name = name_of(work)
        super().__init__(
            f"{said(work)} was never awaited: an await is missing",
            place=place,
            remedy=f"Put `await` before {self._name}.",
        )
        if used is not None:
            self.note_use(used)

    def note_use(self, attribute: str = "") -> None:
        """It was used at once: in Python `await` comes after that unless there are brackets."""
        self.remedy = f"Write `(await {self._name}(...)){attribute}`."


def door_of(work: Any) -> str | None:
    """``db`` or ``rollout`` where it came of a method of theirs."""
    if not is_package_code(work.cr_code.co_filename):
        return None
    return _DOORS.get(work.__qualname__.partition(".")[0])


def name_of(work: Any) -> str:
    """``db.execute``: as the bundle's code calls it."""
    door = door_of(work)
    name: str = work.__qualname__
    return name.rpartition("<locals>.")[2] if door is None else f"{door}.{work.__name__}"


def said(work: Any) -> str:
    """``db.execute('UPDATE …')``: with what it was called, where that tells something."""
    given = {} if work.cr_frame is None or door_of(work) is None else work.cr_frame.f_locals
    first = next((value for name, value in given.items() if name != "self"), None)
    if type(first) is not str:
        return f"{name_of(work)}()"
    return f"{name_of(work)}({cut(' '.join(first.split()), _LONGEST_ARGUMENT)!r})"


def taken_for_result(error: TypeError | AttributeError) -> Any:
    """The coroutine that ``error`` comes of and still holds; None where there is none."""
    owner = getattr(error, "obj", None)  # of an AttributeError
    if owner is not None:
        return owner if _is_untouched(owner) else None
    if not is_over_coroutine(error):
        return None
    return next(filter(_is_untouched, _variables(error, is_own_code)), None)


def is_over_coroutine(error: BaseException) -> bool:
    """Whether Python says of a coroutine that it is not what it was used as."""
    return "coroutine" in next((text for text in error.args if type(text) is str), "")


def close_what_libraries_left(error: BaseException) -> None:
    """Close what code of libraries holds as it failed: the error tells of that, Python need not do so too.

    So does SQLAlchemy where a relation is loaded without ``await``.
    """
    values = [value for one in _with_its_causes(error) for value in _variables(one, _is_of_library)]
    left = [work for value in values for work in _in_awaitable(value) if _is_untouched(work)]
    if left:
        begun = _coroutines_of_tasks()
        for work in left:
            if work not in begun:
                work.close()


def _with_its_causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and not any(one is other for other in found):
            found.append(one)
            waiting += [one.__cause__, one.__context__]
    return found


def _variables(error: BaseException, is_wanted: Callable[[str], bool]) -> Iterator[Any]:
    """The values in the functions of these files that ``error`` went through, of the last called first."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        # the variables of a class's body may be in a mapping of its own
        if code.co_flags & inspect.CO_OPTIMIZED and is_wanted(code.co_filename):
            frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in reversed(frames):
        yield from [*frame.f_locals.values()]


def _is_of_library(filename: str) -> bool:
    return "site-packages" in filename and not is_package_code(filename)


def _in_awaitable(value: Any) -> list[Any]:
    """The coroutine that a value is, or those in it if it can be awaited (as what ``aiosqlite`` gives)."""
    if type(value) is CoroutineType:
        return [value]
    is_awaitable = any("__await__" in kind.__dict__ for kind in type(value).__mro__)
    return gc.get_referents(value) if is_awaitable else []


def _is_untouched(value: Any) -> bool:
    return type(value) is CoroutineType and inspect.getcoroutinestate(value) == inspect.CORO_CREATED


def _coroutines_of_tasks() -> list[Any]:
    try:
        return [task.get_coro() for task in asyncio.all_tasks()]
    except RuntimeError:  # a thread without a loop
        return []
