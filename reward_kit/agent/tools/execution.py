"""One tool call: arguments checked, function run in a transaction with a time limit, outcome as text."""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from reward_kit.agent.base import deadline
from reward_kit.agent.base.pending import MissingAwaitError
from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.redaction import redact
from reward_kit.agent.base.worker_thread import in_thread
from reward_kit.agent.tools.arguments import ArgumentError, read_arguments
from reward_kit.agent.tools.content import MAX_CHARACTERS, content_of
from reward_kit.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from reward_kit.agent.base.pending import PendingLog
    from reward_kit.agent.database import Changes

logger = logging.getLogger(__name__)

ToolStatus = Literal["ok", "refused", "failed", "invalid_arguments", "unknown_tool"]

LATE_SECONDS = 0.1
"""A timer that fires later than this shows that something blocked the event loop."""
NOTABLE_SECONDS = 1.0
"""Blocking for longer than this is reported even within the tool's time limit."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A registered function.

    ``schema`` is the JSON schema of its arguments, ``injected`` those of ``db`` and ``rollout`` that it
    takes, ``needed`` those of them without a default. ``place`` is the file and line of its registration.
    ``undescribed`` lists what a model should know about the tool but is not given, for warnings.
    """

    name: str
    description: str
    schema: dict[str, Any]
    function: Callable[..., Any]
    is_async: bool
    injected: frozenset[str]
    needed: frozenset[str]
    check: Callable[[str], dict[str, Any]]
    terminal: bool = False
    place: str = ""
    undescribed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The outcome of a tool call.

    ``content`` is what the model sees, ``value`` what the function returned. ``status`` is ``ok``;
    ``refused`` for a ``ToolError``; ``failed`` for any other exception or the time limit;
    ``invalid_arguments``; or ``unknown_tool``. Every status but ``ok`` has left the database unchanged.
    ``arguments`` is None if they were not a JSON object. ``terminal`` is true if the call ran and ends the
    rollout. ``error`` is a traceback for logs, never for the model; ``raised`` is one line for the tool's
    author: the exception with its place, or that the tool blocked the event loop.
    """

    content: str
    status: ToolStatus
    arguments: dict[str, Any] | None = None
    value: Any = None
    terminal: bool = False
    changes: Changes | None = None
    error: str | None = None
    raised: str | None = None


async def run_tool(
    tool: Tool,
    arguments: Any,
    *,
    db: Any,
    rollout: Any,
    timeout: float | None,
    pending: PendingLog | None = None,
    on_overrun: Callable[[str], None] | None = None,
) -> ToolResult:
    """Call ``tool`` in one transaction of ``db``, rolled back unless the call succeeds.

    ``timeout`` is in seconds. ``pending`` holds what was made on ``rollout`` and is not awaited.
    ``on_overrun`` is called with a message if the tool keeps running after its time is over and it was
    cancelled. Exceptions of the tool, ``SystemExit`` included, end up in the result;
    only the cancellation of the caller and other ``BaseException`` pass through.
    """
    given: dict[str, Any] | None = None
    limit = _TimeLimit(timeout, tool.name, on_overrun)
    call = None
    try:
        given, text = read_arguments(arguments)
        values = tool.check(text)
        if not tool.injected or not hasattr(db, "tool_call"):  # without a database, or with a stand-in
            with limit:
                value, content = await _returned(tool, values, db, rollout, pending)
        else:
            async with db.tool_call() as call:
                handle = db.of_call(call)
                with limit:
                    value, content = await _returned(tool, values, handle, rollout, pending)
    except ArgumentError as error:
        content = f"Error: invalid arguments for tool {tool.name!r}: {error}"
        return ToolResult(content_of(content), "invalid_arguments", given)
    except ToolError as error:
        return ToolResult(_error_text(error), "refused", given, raised=limit.blocked(tool))
    except _OutOfTimeError as error:
        content = f"Error: tool {tool.name!r} did not finish within {timeout:g} s"
        return ToolResult(content, "failed", given, error=_traceback(tool, error))
    except (Exception, SystemExit, asyncio.CancelledError) as error:  # the border to the tool's own code
        if isinstance(error, asyncio.CancelledError) and _current_task().cancelling():
            raise
        if hasattr(db, "note_fault"):
            db.note_fault(error)
        raised = redact(fault_line(error))
        return ToolResult(_error_text(error), "failed", given, error=_traceback(tool, error), raised=raised)
    changes = None if call is None else call.changes
    return ToolResult(content, "ok", given, value, tool.terminal, changes, raised=limit.blocked(tool))


async def _returned(
    tool: Tool, values: dict[str, Any], db: Any, rollout: Any, on_rollout: PendingLog | None
) -> tuple[Any, str]:
    """Call the function; return its value and the text for the model.

    Raises ``MissingAwaitError`` if something was made on ``db`` or ``rollout`` and not awaited.
    """
    if on_rollout is not None and "rollout" in tool.injected:
        before = set(on_rollout)
        returned = await _returned(tool, values, db, rollout, None)
        for work in on_rollout.keys() - before:
            if work.place and tool.place.rpartition(":")[0].endswith(work.place.partition(":")[0]):
                del on_rollout[work]  # the agent has calls of its own in there
                raise MissingAwaitError(work)
        return returned
    if "db" in tool.injected:
        if db is not None:
            values["db"] = db if tool.is_async else getattr(db, "sync", db)
        elif "db" in tool.needed:
            raise RuntimeError(f"tool {tool.name!r} needs a database and none was given")
    if "rollout" in tool.injected and (rollout is not None or "rollout" in tool.needed):
        values["rollout"] = rollout
    pending = getattr(db, "pending_log", None)
    if tool.is_async:
        value = await _awaited(tool.function(**values), pending)
        return value, content_of(value)

    def call() -> tuple[Any, str | None]:
        returned = _listed(tool.function(**values))
        return returned, None if inspect.isawaitable(returned) else content_of(returned)

    value, content = await in_thread(call)
    if content is None:  # a plain wrapper around an async function
        value = await _awaited(value, pending)
        content = content_of(value)
    return value, content


async def _awaited(work: Awaitable[Any], pending: PendingLog | None) -> Any:
    with nullcontext() if pending is None else pending:
        value = _listed(await work)
    if pending is not None:
        pending.check()
    if inspect.isawaitable(value):
        name = f"{type(value).__name__.lower()} {getattr(value, '__qualname__', '')}".rstrip()
        if inspect.iscoroutine(value):
            value.close()
        elif isinstance(value, asyncio.Future):
            value.cancel()
        raise TypeError(f"the tool returned the {name}: is an await missing?")
    return value


def _listed(value: Any) -> Any:
    """The items of an iterator, which is run here once, within the tool's time; other values unchanged."""
    if isinstance(value, Iterator) and getattr(value, "returns_rows", True):  # not the result of a write
        return list(islice(value, MAX_CHARACTERS))
    if inspect.isasyncgen(value):
        raise TypeError(f"the tool returned the async generator {value.__qualname__}: return a list")
    return value


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


class _OutOfTimeError(Exception):
    """The tool exceeded its limit; distinct from a ``TimeoutError`` that the tool raises itself."""


class _TimeLimit:
    """``with`` block that cancels the current task after ``seconds``, as ``asyncio.timeout`` does.

    Its timer fires each second, and so shows whether the event loop was blocked: ``late`` is the number of
    seconds by which it is overdue at the end, ``took`` the duration of the block.
    """

    __slots__ = (
        *("_begun", "_cancelling", "_loop", "_on_overrun", "_task", "_timer", "_tool"),
        *("expired", "late", "seconds", "took"),
    )

    def __init__(self, seconds: float | None, tool: str, on_overrun: Callable[[str], None] | None) -> None:
        self.seconds = seconds
        self.expired = False
        self.late = self.took = 0.0
        self._tool = tool
        self._on_overrun = on_overrun
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        if self.seconds is None:
            return
        self._task = _current_task()
        self._cancelling = self._task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self._timer = self._loop.call_at(self._begun + min(self.seconds, NOTABLE_SECONDS), self._tick)

    def _tick(self) -> None:
        assert self._timer is not None
        assert self.seconds is not None
        end = self._begun + self.seconds
        if self._timer.when() < end:
            self._timer = self._loop.call_at(min(self._loop.time() + NOTABLE_SECONDS, end), self._tick)
            return
        self.expired = True
        self._task.cancel()
        self._timer = self._loop.call_later(deadline.CANCELLATION_GRACE, self._overrun)

    def _overrun(self) -> None:
        if self._on_overrun is not None:
            limit = f"within {self.seconds:g} s"
            self._on_overrun(f"tool {self._tool!r} did not finish {limit}, nor when it was cancelled")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is None:
            return
        now = self._loop.time()
        self.took, self.late = now - self._begun, now - self._timer.when()
        self._timer.cancel()
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise _OutOfTimeError from error

    def blocked(self, tool: Tool) -> str | None:
        """The warning for an ``async def`` tool that blocked the event loop; None if it did not."""
        is_past = self.seconds is not None and self.took > self.seconds
        if not tool.is_async or self.late <= (LATE_SECONDS if is_past else NOTABLE_SECONDS):
            return None
        past = f", past its limit of {self.seconds:g} s," if is_past else ""
        return (
            f"took {self.took:.1f} s{past} and blocked the event loop, which all rollouts share, for "
            f"{self.late:.1f} s or more: write it as def, or await what takes long"
        )


def _traceback(tool: Tool, error: BaseException) -> str:
    trace = redact("".join(traceback.format_exception(error)))
    logger.debug("tool %r failed\n%s", tool.name, trace)
    return trace


def _error_text(error: BaseException) -> str:
    """``Error: `` and the exception's text without secrets, with its type if the text alone is not enough."""
    if isinstance(error, RecursionError):
        text = "recursion too deep"
    elif isinstance(error, SystemExit):
        text = "the tool tried to exit"
    else:
        text = ""
        with suppress(Exception):  # the exception's class is the tool's own code as well
            text = str(error).strip()
        if isinstance(error, KeyError | StopIteration) or not text:
            text = f"{type(error).__name__}: {text}".removesuffix(": ")
    return content_of(redact(text if text.startswith("Error:") else f"Error: {text}"))
