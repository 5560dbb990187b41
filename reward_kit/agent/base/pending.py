"""Awaitables that know if they were awaited, so that a forgotten ``await`` is named with its line.

A method is marked with ``pending("db")``; calling it gives a ``Pending`` in place of a coroutine. Those that
are not awaited yet are in the ``PendingLog`` of the call, tool, reward or turn that made them::

    log = PendingLog()          # given to the object whose methods are marked
    with log:                   # explains an error that comes of an awaitable used as its result
        await tool(db)
    log.check()                 # raises MissingAwaitError if one was forgotten
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar

from reward_kit.agent.base.text import excerpt
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Generator

T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")

LONGEST_ARGUMENT = 60
"""Characters of a call's first argument in a message."""


class MissingAwaitError(RewardKitError, AttributeError):
    """The result of a method was not awaited, or used as if it had been.

    An ``AttributeError`` for ``hasattr`` and other code that expects one.
    """

    def __init__(self, work: Pending[Any], used: str | None = None) -> None:
        name = work.called
        remedy = f"Put `await` before {name}." if used is None else f"Write `(await {name}(...)){used}`."
        super().__init__(f"{work} was never awaited: an await is missing", place=work.place, remedy=remedy)


class PendingLog(dict["Pending[Any]", None]):
    """The awaitables that one call has made and not awaited, in the order of making."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.check(error)

    def check(self, error: BaseException | None = None) -> None:
        """Raise ``MissingAwaitError`` for the first awaitable that was forgotten.

        With the ``error`` that the call raised, only if that comes of using an awaitable as its result.
        """
        if isinstance(error, MissingAwaitError):
            raise error
        first = next(iter(self), None)
        if first is None:
            return
        if error is None:
            raise MissingAwaitError(first)
        if isinstance(error, TypeError) and Pending.__name__ in str(error):
            raise MissingAwaitError(first, used="") from error


class Pending(Coroutine[Any, Any, T], Generic[T]):
    """A coroutine that begins when it is awaited; until then it is in its log.

    It can be awaited, gathered and made a task like any coroutine, once. Used as if it were the result (in a
    condition, indexed, iterated, an attribute of it) it raises ``MissingAwaitError``.
    """

    __slots__ = ("_arguments", "_file", "_function", "_keywords", "_line", "_log", "_running", "called")

    def __init__(
        self,
        called: str,
        log: PendingLog | None,
        function: Callable[..., Coroutine[Any, Any, T]],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:
        caller = sys._getframe(2)  # noqa: SLF001 - the line that called the method
        self._file, self._line = caller.f_code.co_filename, caller.f_lineno
        self._function = function
        self._arguments = arguments
        self._keywords = keywords
        self._running: Coroutine[Any, Any, T] | None = None
        self._log = log
        self.called = called
        if log is not None:
            log[self] = None

    def _begun(self) -> Coroutine[Any, Any, T]:
        if self._running is None:
            if self._log is not None:
                del self._log[self]
            self._running = self._function(*self._arguments, **self._keywords)
        return self._running

    def __await__(self) -> Generator[Any, Any, T]:
        return self._begun().__await__()

    def send(self, value: Any) -> Any:
        """Begin or continue, as a coroutine does."""
        return self._begun().send(value)

    def throw(self, *error: Any) -> Any:
        """Raise ``error`` at the point where it waits."""
        return self._begun().throw(*error)

    def close(self) -> None:
        """End it; one that has not begun never runs."""
        self._begun().close()

    def __str__(self) -> str:
        """``db.execute('UPDATE …')``: the call, with its first argument if that is text."""
        first = next(iter([*self._arguments[1:], *self._keywords.values()]), None)
        return f"{self.called}({repr(excerpt(first, LONGEST_ARGUMENT)) if isinstance(first, str) else ''})"

    @property
    def place(self) -> str:
        """``tools.py:12``: the line that made it."""
        return f"{Path(self._file).name}:{self._line}"

    def _refuse(self, *_: Any) -> NoReturn:
        raise MissingAwaitError(self, used="")

    __bool__ = __len__ = __iter__ = __getitem__ = __contains__ = __float__ = __int__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or name[:3] in ("cr_", "gi_", "ag_"):  # a library asks for its kind
            raise AttributeError(name)
        raise MissingAwaitError(self, used=f".{name}")


def pending(
    owner: str, log: Callable[[Any], PendingLog | None] = attrgetter("pending_log")
) -> Callable[[Callable[Concatenate[S, P], Coroutine[Any, Any, T]]], Callable[Concatenate[S, P], Pending[T]]]:
    """Mark an ``async def`` method whose result must be awaited.

    ``owner`` is the name by which people know the object: ``db``. ``log`` finds the object's ``PendingLog``,
    or None outside of calls.
    """

    def mark(
        method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
    ) -> Callable[Concatenate[S, P], Pending[T]]:
        called = f"{owner}.{method.__name__}"

        @wraps(method)
        def begin(*arguments: Any, **keywords: Any) -> Pending[T]:
            return Pending(called, log(arguments[0]), method, arguments, keywords)

        return begin

    return mark
