"""The line at which foreign code (a tool, reward, agent or user) failed, or has forgotten an ``await``.

Methods of an object that is given to foreign code return ``log.noted(coroutine, ...)``. After the call that
the log belongs to::

    log = PendingLog()
    with log:               # raises MissingAwaitError if a coroutine was used as if it were its result
        await tool(db)      # db.pending_log is log
    log.check()             # raises MissingAwaitError if one was never awaited
"""

from __future__ import annotations

import asyncio
import inspect
import re
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from reward_kit.agent.base.deadline import is_cancelled
from reward_kit.agent.base.redaction import hide, redact
from reward_kit.agent.base.text import LONGEST_TEXT, excerpt, foreign_text, one_line
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

LONGEST_MESSAGE = 2000
"""Characters of an exception's message that are kept."""
_PACKAGE = str(Path(__file__).parents[2])
_ADVERTISEMENT = "For further information visit https://errors.pydantic.dev"
_CIRCULAR = re.compile(r"cannot import name '(\w+)' from partially initialized module '([\w.]+)'")
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"]


def shown_line(text: str, limit: int = LONGEST_TEXT) -> str:
    """``one_line`` of foreign text without secrets: a part of one would not be recognised."""
    return one_line(hide(text, is_shown=True), limit)


def fault_line(error: BaseException) -> str:
    """``reward.py:12: KeyError: 'seat'``: the line of the foreign code, then the error, redacted.

    Errors of this package already say what is wrong, and some say where.
    """
    text = _message(error)
    if isinstance(error, RewardKitError) and error.place:
        return text
    line = _line_of(error)
    return f"{line}: {text}" if line else text


def ends_task(error: BaseException) -> bool:
    """True for a cancellation or a Ctrl-C from outside; foreign code may raise the same exceptions itself.

    While a run handles SIGINT, a Ctrl-C raises no ``KeyboardInterrupt`` in a task that is not cancelled.
    """
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return threading.current_thread() is threading.main_thread()
    return isinstance(error, asyncio.CancelledError | KeyboardInterrupt) and is_cancelled()


def import_fault(error: BaseException) -> str:
    """The line of a module that cannot be imported, and the error: ``tools.py:3: KeyError: 'seat'``."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}: {type(error).__name__}: {error.msg}"
    if circle := _CIRCULAR.search(str(error)) if isinstance(error, ImportError) else None:
        fault = (
            f"{_line_of(error)}: cannot import {circle[1]!r}: {circle[2]} and this module import each other"
        )
        return f"{fault}; move what both need into a third one"
    if isinstance(error, SystemExit):
        return f"{fault_line(error)} (code that is imported must not exit)"
    return fault_line(error)


def place_of(function: Callable[..., Any]) -> str:
    """``reward.py:5 evaluate``: the place where a function was written, seen through its decorators."""
    inner = inspect.unwrap(function)
    name = getattr(inner, "__qualname__", type(inner).__name__)
    code = getattr(inner, "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno} {name}" if code else name


def _message(error: BaseException) -> str:
    if isinstance(error, RewardKitError):
        return redact(foreign_text(error))
    said = foreign_text("".join(traceback.format_exception_only(error))).strip().splitlines()
    text = redact("\n".join(line for line in said if not line.strip().startswith(_ADVERTISEMENT)))
    return foreign_text(text, LONGEST_MESSAGE)


def _line_of(error: BaseException) -> str | None:
    """The innermost line of a person's own code; else the first of an installed library's."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_foreign(frame.filename)]
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    frame = own[-1] if own else frames[0] if frames else None
    return f"{Path(frame.filename).name}:{frame.lineno}" if frame else None


def _is_foreign(filename: str) -> bool:
    """True for lines of Python code; libraries in C (apsw) report their own as well."""
    if filename.startswith("<ipython"):
        return True
    if filename.startswith(_PACKAGE) or not filename.endswith(".py") or not Path(filename).is_absolute():
        return False  # code compiled from Python (SQLAlchemy's) names a place in its own source
    return "site-packages" in filename or not filename.startswith(_STANDARD_LIBRARY)


# -- forgotten awaits

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
