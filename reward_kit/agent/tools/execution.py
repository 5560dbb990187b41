"""One tool call: checked, run in a transaction with a time limit, and told to the model as text."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from reward_kit.agent.bundles.awaits import Awaits
from reward_kit.agent.bundles.footing import footing, put_back
from reward_kit.agent.bundles.loop_guard import loop_kept_running
from reward_kit.agent.faults import fault_line
from reward_kit.agent.interruption import is_ctrl_c
from reward_kit.agent.tools.arguments import ArgumentError, read_arguments
from reward_kit.agent.tools.content import MAX_CHARACTERS, content_of
from reward_kit.agent.tools.time_limit import LATE_SECONDS, OutOfTimeError, TimeLimit
from reward_kit.agent.worker_thread import InterruptedInThread, Pace, in_thread
from reward_kit.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reward_kit.agent.database import Changes
    from reward_kit.agent.tools.check import Check

logger = logging.getLogger(__name__)

ToolStatus = Literal["ok", "refused", "failed", "invalid_arguments", "unknown_tool"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A registered function. ``schema`` is the JSON schema of its arguments; ``place`` is where it was
    registered; ``untold`` is what a model should know of it and is not told.
    """

    name: str
    description: str
    schema: dict[str, Any]
    function: Callable[..., Any]
    is_async: bool
    injected: frozenset[str]
    needed: frozenset[str]
    check: Check
    terminal: bool = False
    place: str = ""
    untold: tuple[str, ...] = ()
    pace: Pace = field(default_factory=Pace, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of a tool call.

    ``content`` is what the model sees, ``value`` what the function returned. ``status``: ``ok``; ``refused``
    by a ``ToolError``; ``failed`` by any other exception or the time limit; ``invalid_arguments``;
    ``unknown_tool``. All but ``ok`` have left the database as it was. ``arguments`` is None where they were
    no JSON object. ``terminal`` says that the call was made and ends the rollout. ``error`` is a traceback
    for logs, never for the model; ``raised`` is its last word in one line, where the tool itself raised, or
    says what of the process it has broken, or that it held up all rollouts.
    """

    content: str
    status: ToolStatus
    arguments: dict[str, Any] | None = None
    value: Any = None
    terminal: bool = False
    changes: Changes | None = None
    error: str | None = None
    raised: str | None = None


async def run_tool(tool: Tool, arguments: Any, *, db: Any, rollout: Any, timeout: float | None) -> ToolResult:
    """Call ``tool``; the call is one transaction of ``db``, undone whatever goes wrong.

    ``timeout`` is in seconds. Raises nothing that a tool raises but ``BaseException`` that is not its to
    decide on: cancellation, the end of the rollout, Ctrl-C.
    """
    given: dict[str, Any] | None = None
    task = asyncio.current_task()
    broken: list[str] = []
    limit = TimeLimit(timeout, tool.name)
    try:
        given, text = read_arguments(arguments)
        check = tool.check
        values = await _checked_beside(tool, text, timeout) if check.runs_own_code else check(text)
        async with _transaction(tool, db) as call, limit:
            if tool.injected:
                values.update(_injections(tool, db if call is None else db.of_call(call), rollout))
            value, content = await _returned(tool, values, broken)
    except ArgumentError as error:
        content = f"Error: invalid arguments for tool {tool.name!r}: {error}"
        return ToolResult(content_of(content), "invalid_arguments", given)
    except _ToldError as told:
        _note_fault(db, told.__cause__)
        return replace(told.result, arguments=given)
    except ToolError as error:
        harm = _harm(tool, broken, limit)
        return ToolResult(content_of(_error_text(error)), "refused", given, raised=harm)
    except OutOfTimeError as error:
        content = f"Error: tool {tool.name!r} did not finish within {timeout:g} s"
        return ToolResult(content, "failed", given, error=_traceback(tool, error))
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        return _failed(tool, given, error)
    except GeneratorExit as error:
        if is_closed(task):
            raise
        return _failed(tool, given, error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the border to the tool's own code
        _note_fault(db, error)
        return _failed(tool, given, error)
    changes = None if call is None else call.changes
    harm = _harm(tool, broken, limit)
    return ToolResult(content, "ok", given, value, tool.terminal, changes, raised=harm)


def _harm(tool: Tool, broken: list[str], limit: TimeLimit) -> str | None:
    """What the call has done to others, though it did its work."""
    told = [f"it broke {', '.join(broken)} (put back)"] if broken else []
    if tool.is_async and limit.late > LATE_SECONDS and (held_up := limit.held_up) is not None:
        told.append(held_up)
    return "; ".join(told) or None


async def _checked_beside(tool: Tool, text: str, timeout: float | None) -> dict[str, Any]:
    """The arguments, by a check that may take any time: in a thread, and within the time of the call."""
    async with TimeLimit(timeout, tool.name):
        return await in_thread(lambda: tool.check(text), pace=tool.check.pace)


async def _returned(tool: Tool, values: dict[str, Any], broken: list[str]) -> tuple[Any, str]:
    """What the tool returned, and its text, which is made by the tool's own code too (``__str__``).

    What it has ``broken`` of the process is put back before anybody needs it.
    """
    before = footing(f"the tool {tool.name}")
    if tool.is_async:
        with Awaits() as awaits:
            try:
                with loop_kept_running():
                    value = _listed(await tool.function(**values))
            finally:
                broken += put_back(before)
        value = _awaited(value)
        awaits.check(tool.function)
        return value, content_of(value)

    def call() -> tuple[Any, str | None]:
        try:
            with Awaits() as awaits:
                try:
                    returned = _listed(tool.function(**values))
                finally:
                    broken.extend(put_back(before))
            awaits.check(tool.function)
        except (Exception, SystemExit) as error:
            raise _ToldError(_told(tool, error)) from error
        return returned, None if inspect.isawaitable(returned) else content_of(_awaited(returned))

    value, content = await in_thread(call, pace=tool.pace)
    if content is None:
        with Awaits() as awaits:
            value = _awaited(_listed(await value))
        awaits.check(tool.function)
        content = content_of(value)
    return value, content


def _awaited(value: Any) -> Any:
    """``value``, unless it is a coroutine or the like: what that should do was not done."""
    if inspect.isasyncgen(value):
        raise TypeError(f"the tool returned the async generator {value.__qualname__}: return a list")
    if inspect.isawaitable(value):
        kind, name = type(value).__name__.lower(), getattr(value, "__qualname__", "")
        if inspect.iscoroutine(value):
            value.close()
        elif isinstance(value, asyncio.Future):
            value.cancel()
        raise TypeError(f"the tool returned the {kind} {name}".rstrip() + ": is an await missing?")
    return value


def _listed(value: Any) -> Any:
    """What an iterator gives, which is run here once, in the tool's time; other values as they are."""
    if isinstance(value, Iterator) and getattr(value, "returns_rows", True):  # else a statement only wrote
        return list(islice(value, MAX_CHARACTERS))
    return value


def _injections(tool: Tool, db: Any, rollout: Any) -> dict[str, Any]:
    """``db`` and ``rollout`` as the tool takes them; its own defaults stand for what is not there."""
    injections: dict[str, Any] = {}
    if "db" in tool.injected:
        if db is not None:
            injections["db"] = db if tool.is_async else getattr(db, "sync", db)
        elif "db" in tool.needed:
            raise RuntimeError(f"tool {tool.name!r} needs a database and none was given")
    if "rollout" in tool.injected and (rollout is not None or "rollout" in tool.needed):
        injections["rollout"] = rollout
    return injections


def _transaction(tool: Tool, db: Any) -> contextlib.AbstractAsyncContextManager[Any]:
    """The transaction of the call; none where the tool has no way to the database, or where ``db`` is a
    stand-in.
    """
    if not tool.injected or not hasattr(db, "tool_call"):
        return contextlib.nullcontext()
    transaction: contextlib.AbstractAsyncContextManager[Any] = db.tool_call()
    return transaction


def is_cancelled() -> bool:
    """Whether somebody has cancelled this task; else its own code raised ``CancelledError`` (Python 3.10 can
    only tell for guarded tasks).
    """
    task: Any = asyncio.current_task()
    return bool(task.cancelling()) if hasattr(task, "cancelling") else getattr(task, "is_cancelled", True)


def is_closed(task: asyncio.Task[Any] | None) -> bool:
    """Whether a ``GeneratorExit`` closes the coroutine of ``task`` from outside; else its own code raised
    it.
    """
    try:
        return asyncio.current_task() is not task
    except RuntimeError:  # no event loop runs any more
        return True


async def result_of(call: Awaitable[ToolResult]) -> ToolResult:
    """What comes of a call that ``run_tool`` makes, whatever the tool raised; see ``broke_off``."""
    try:
        return await call
    except BaseException as error:  # noqa: BLE001 - the border to the tool's own code
        return broke_off(error)


def broke_off(error: BaseException) -> ToolResult:
    """The result of a call that raised what ``run_tool`` lets pass, if that was the tool's own doing.

    Raises ``error`` again where it is not: cancellation, Ctrl-C.
    """
    if isinstance(error, asyncio.CancelledError | GeneratorExit) or is_ctrl_c(error):
        raise error
    name = "KeyboardInterrupt" if isinstance(error, InterruptedInThread) else type(error).__name__
    return ToolResult(f"Error: {name}", "failed", error=_formatted(error), raised=fault_line(error))


class _ToldError(Exception):
    """What a ``def`` tool raised is told already, in its thread and time: its ``__str__`` is foreign code."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__(result.content)
        self.result = result


def _told(tool: Tool, error: BaseException) -> ToolResult:
    if isinstance(error, ToolError):
        return ToolResult(content_of(_error_text(error)), "refused")
    return _failed(tool, None, error)


def _note_fault(db: Any, error: BaseException | None) -> None:
    note = getattr(db, "note_fault", None)
    if note is not None and error is not None:
        note(error)


def _failed(tool: Tool, given: dict[str, Any] | None, error: BaseException) -> ToolResult:
    trace = _traceback(tool, error)
    content = content_of(_error_text(error))
    return ToolResult(content, "failed", given, error=trace, raised=fault_line(error))


def _traceback(tool: Tool, error: BaseException) -> str:
    trace = _formatted(error)
    logger.debug("tool %r failed\n%s", tool.name, trace)
    return trace


def _formatted(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except (Exception, SystemExit):  # noqa: BLE001 - the exception's class is the tool's own code as well
        return fault_line(error)


def _error_text(error: BaseException) -> str:
    """``Error: `` and the exception's text, with its type where the text alone says nothing."""
    if isinstance(error, RecursionError):
        text = "recursion too deep"
    elif isinstance(error, SystemExit):
        text = "the tool tried to exit"
    else:
        try:
            text = str(error).strip()
        except (Exception, SystemExit):  # noqa: BLE001 - the border to the tool's own code
            text = ""
        if isinstance(error, KeyError | StopIteration) or not text:
            text = f"{type(error).__name__}: {text}".removesuffix(": ")
    return text if text.startswith("Error:") else f"Error: {text}"
