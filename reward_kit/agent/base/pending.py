"""A log of coroutines, so that a forgotten ``await`` is named with its line.

Methods of an object that is given to foreign code return ``log.noted(coroutine, ...)``. After the call that
the log belongs to::

    log = PendingLog()
    with log:               # raises MissingAwaitError if a coroutine was used as if it were its result
        await tool(db)      # db.pending_log is log
    log.check()             # raises MissingAwaitError if one was never awaited
"""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from reward_kit.agent.base.text import excerpt
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from types import CodeType

T = TypeVar("T")

LONGEST_ARGUMENT = 60
"""Characters of a call's first argument in a message."""


Made = tuple[Coroutine[Any, Any, Any], str, Any, "CodeType", int]
"""A coroutine, the method that made it, the first argument, and the line that called the method."""


class MissingAwaitError(RewardKitError):
    """The result of a method was not awaited, or used as if it had been."""

    def __init__(self, made: Made, error: BaseException | None = None) -> None:
        _, called, first, code, line = made
        remedy = f"Put `await` before {called}."
        if error is not None:
            used = f".{error.name}" if isinstance(error, AttributeError) else ""
            remedy = f"Write `(await {called}(...)){used}`."
        shown = repr(excerpt(first, LONGEST_ARGUMENT)) if isinstance(first, str) else ""
        fault = f"{called}({shown}) was never awaited: an await is missing"
        super().__init__(fault, place=f"{_file_of(code)}:{line}", remedy=remedy)


class PendingLog(list[Made]):
    """The coroutines that one call has made, in the order of making."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self:
            self.check(error)

    def noted(self, work: Coroutine[Any, Any, T], called: str, first: Any) -> Coroutine[Any, Any, T]:
        """``work``, noted as made by the line that called the caller."""
        caller = sys._getframe(2)  # noqa: SLF001 - the line to name
        self.append((work, called, first, caller.f_code, caller.f_lineno))
        return work

    def check(self, error: BaseException | None = None, file: str | None = None) -> None:
        """Raise ``MissingAwaitError`` for the first coroutine, of ``file`` if given, that was forgotten.

        With the ``error`` that the call raised, only if that comes from using a coroutine as its result. The
        log is empty afterwards, but for coroutines of other files.
        """
        work: Any
        for work, *_ in self:
            if work.cr_frame is not None and not work.cr_running and not work.cr_suspended:
                break
        else:  # all were awaited, as usual
            self.clear()
            return
        kept = []
        forgotten = []
        for made in self:
            work = made[0]
            if work.cr_frame is None or work.cr_running or work.cr_suspended:
                continue
            if file is not None and file != _file_of(made[3]):
                kept.append(made)
                continue
            work.close()
            forgotten.append(made)
        self[:] = kept
        if forgotten and error is None:
            raise MissingAwaitError(forgotten[0])
        if isinstance(error, TypeError | AttributeError) and "coroutine" in str(error):
            wrong = getattr(error, "obj", None)
            for made in forgotten:
                if wrong in (None, made[0]):
                    raise MissingAwaitError(made, error) from error


def _file_of(code: CodeType) -> str:
    return Path(code.co_filename).name
