"""One tool call: arguments checked, function run in a transaction with a time limit, outcome as text."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from reward_kit.agent.base.deadline import OutOfTimeError, TimeLimit
from reward_kit.agent.base.places import MissingAwaitError, ends_task, fault_line
from reward_kit.agent.base.redaction import redact
from reward_kit.agent.base.text import did_you_mean, foreign_name, foreign_text
from reward_kit.agent.base.types import RolloutStopped
from reward_kit.agent.base.worker_thread import in_thread
from reward_kit.agent.tools.values import MAX_CHARACTERS, ArgumentError, content_of, read_arguments
from reward_kit.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from reward_kit.agent.base.places import PendingLog
    from reward_kit.agent.database import Changes, Database
    from reward_kit.agent.rollout.rollout import Rollout
    from reward_kit.agent.tools.registry import ToolRegistry

logger = logging.getLogger(__name__)

ToolStatus = Literal["ok", "refused", "failed", "invalid_arguments", "unknown_tool"]


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
    terminal: bool | Literal["always"] = False
    place: str = ""
    undescribed: tuple[str, ...] = ()


@dataclass(slots=True)
class ToolResult:
    """The outcome of a tool call.

    ``content`` is what the model sees, ``value`` what the function returned. ``status`` is ``ok``;
    ``refused`` for a ``ToolError``; ``failed`` for any other exception or the time limit;
    ``invalid_arguments``; or ``unknown_tool``. Every status but ``ok`` has left the database unchanged,
    unless the registry says ``rollback=False``. ``arguments`` is None if they were not a JSON object.
    ``terminal`` is true if the call ends the rollout. ``error`` is a traceback for logs, never for the model;
    ``raised`` is one line for the tool's author: the exception with its place, or that the tool blocked the
    event loop.
    """

    content: str
    status: ToolStatus
    arguments: dict[str, Any] | None = None
    value: Any = None
    terminal: bool = False
    changes: Changes | None = None
    error: str | None = None
    raised: str | None = None


def call_tool(
    registry: ToolRegistry,
    name: str,
    arguments: dict[str, Any] | str | bytes | None,
    *,
    db: Database | None = None,
    rollout: Rollout | None = None,
    pending: PendingLog | None = None,
    on_overrun: Callable[[str], None] | None = None,
    after: Iterable[Tool] | None = None,
) -> Coroutine[Any, Any, ToolResult]:
    """Run a tool with the arguments that a model wrote; faults of both are in the result.

    ``after`` runs after it, by default the registry's own ``after_call`` functions.
    ``pending`` is the log of what was made on ``rollout`` and is not awaited.
    ``on_overrun`` is called with a message if the tool ignores the cancellation at its time limit.
    """
    tool = registry.tools.get(name) or registry.unlisted.get(name)
    after = tuple(registry.functions["after_call"].values() if after is None else after)
    if tool is None:
        return registry.unknown(name, list(registry.tools), db, () if registry.rollback else after)
    return run_tool(
        tool,
        arguments,
        db=db,
        rollout=rollout,
        timeout=registry.tool_timeout,
        pending=pending,
        on_overrun=on_overrun,
        after=after,
        rollback=registry.rollback,
    )


async def run_tool(
    tool: Tool,
    arguments: Any,
    *,
    db: Any,
    rollout: Any,
    timeout: float | None,
    pending: PendingLog | None = None,
    on_overrun: Callable[[str], None] | None = None,
    after: Sequence[Tool] = (),
    rollback: bool = True,
) -> ToolResult:
    """Call ``tool`` in one transaction of ``db``, rolled back unless the call succeeds.

    The functions of ``after`` are called in the same transaction. Without ``rollback``, a call that raises
    keeps what it has changed, and they are called after it, too; one that runs out of time or is cancelled
    changes nothing.

    ``timeout`` is in seconds. ``pending`` holds what was made on ``rollout`` and is not awaited.
    ``on_overrun`` is called with a message if the tool keeps running after its time is over and it was
    cancelled. Exceptions of the tool, ``SystemExit`` and the like included, end up in the result; only
    ``RolloutStopped``, the cancellation of the caller and a Ctrl-C pass through.
    """
    given: dict[str, Any] | None = None
    handle, call, log, changes = db, None, None, None
    limit = TimeLimit(timeout, on_overrun, tool.name)
    failed, is_done, in_after = True, False, False
    try:
        takes_db = "db" in tool.injected
        if (takes_db or after) and hasattr(db, "tool_call"):
            call = db.tool_call()
            handle = db.of_call(call)
            if (waiting := call.begin()) is not None:
                await waiting
        log = getattr(handle, "pending_log", None) if takes_db else None
        try:
            with limit:
                try:
                    given, text = read_arguments(arguments)
                    values = tool.check(text)
                    _inject(tool, values, handle, rollout)
                    if tool.is_async:
                        value, content = _answer(tool, await tool.function(**values), log, pending)
                    else:
                        value, content = await _in_thread(tool, values, log, pending)
                    is_done = True
                finally:
                    if after and (is_done or (not rollback and _is_kept(sys.exc_info()[1]))):
                        in_after = True
                        await _run_after(after, handle)
                        in_after = False
            failed = False
        finally:
            if call is not None:
                undone = failed and (rollback or not _is_kept(sys.exc_info()[1]))
                if (waiting := call.finish(failed=undone)) is not None:
                    await waiting
                changes = None if undone else call.changes
    except BaseException as error:  # noqa: BLE001 - the border to the tool's own code
        try:
            if log:
                log.check(error)
        except MissingAwaitError as missing:
            error = missing
        result = replace(_failed(tool, error, given, limit, db), changes=changes)
        if in_after:  # the other side's functions run after it, too: their words are not for this one
            result.status, result.content = "failed", "Error: the call could not be completed"
            result.raised = redact(fault_line(error))
        return result
    raised = _blocked(tool, limit) if limit.late else None
    return ToolResult(content, "ok", given, value, tool.terminal is not False, changes, None, raised)


async def unknown_tool(
    name: str, known: Sequence[str], db: Any, timeout: float | None, after: Sequence[Tool]
) -> ToolResult:
    """The result of a call of a tool that is not among the ``known``; the functions of ``after`` run."""
    name = foreign_name(name)
    available = ", ".join(known) or "none"
    content = f"Error: unknown tool {name!r}{did_you_mean(name, known)}; available: {available}"
    result = ToolResult(content_of(content), "unknown_tool")
    if after:
        ran = await run_tool(_NOTHING, None, db=db, rollout=None, timeout=timeout, after=after)
        result = replace(result, changes=ran.changes) if ran.status == "ok" else ran
    return result


_NOTHING = Tool("nothing", "", {}, lambda: None, False, frozenset(), frozenset(), lambda _: {})


async def _run_after(after: Sequence[Tool], db: Any) -> None:
    def run() -> None:
        for function in after:
            function.function(**({"db": getattr(db, "sync", db)} if "db" in function.injected else {}))

    if db is not None:
        await in_thread(run)


def _is_kept(error: BaseException | None) -> bool:
    """True if a call that raised ``error`` keeps its changes without ``rollback``."""
    return isinstance(error, Exception) and not isinstance(error, OutOfTimeError | MissingAwaitError)


def _failed(
    tool: Tool, error: BaseException, given: dict[str, Any] | None, limit: TimeLimit, db: Any
) -> ToolResult:
    """The result of a call that has raised ``error``; raises it anew if it is no fault of the tool's."""
    result = ToolResult("", "failed", given, terminal=tool.terminal == "always")
    if isinstance(error, ArgumentError):
        result.content = content_of(f"Error: invalid arguments for tool {tool.name!r}: {error}")
        result.status = "invalid_arguments"
    elif isinstance(error, ToolError):
        result.content, result.status, result.raised = _error_text(error), "refused", _blocked(tool, limit)
    elif isinstance(error, OutOfTimeError):
        result.content = f"Error: tool {tool.name!r} did not finish within {limit.seconds:g} s"
        result.error = _traceback(tool, error)
    elif isinstance(error, RolloutStopped) or ends_task(error):
        raise error
    else:
        if hasattr(db, "note_fault"):
            db.note_fault(error)
        result.raised = redact(fault_line(error))
        result.content, result.error = _error_text(error), _traceback(tool, error)
    return result


def _inject(tool: Tool, values: dict[str, Any], db: Any, rollout: Any) -> None:
    """Give the function the database (or a stand-in for one) and the rollout, if it takes them."""
    if "db" in tool.injected:
        if db is not None:
            values["db"] = db if tool.is_async else getattr(db, "sync", db)
        elif "db" in tool.needed:
            raise RuntimeError(f"tool {tool.name!r} needs a database and none was given")
    if "rollout" in tool.injected and (rollout is not None or "rollout" in tool.needed):
        values["rollout"] = rollout


def _answer(
    tool: Tool, value: Any, on_db: PendingLog | None, on_rollout: PendingLog | None
) -> tuple[Any, str]:
    """The value of a tool, and its text; raises ``MissingAwaitError`` if it has forgotten an ``await``."""
    if on_db:
        on_db.check()
    if on_rollout and "rollout" in tool.injected:  # the agent has calls of its own in there
        on_rollout.check(file=Path(tool.place.rpartition(":")[0]).name)
    return _with_text(value)


async def _in_thread(
    tool: Tool, values: dict[str, Any], on_db: PendingLog | None, on_rollout: PendingLog | None
) -> tuple[Any, str]:
    """``_answer`` of a ``def`` tool, whose text is made in the thread; it may wrap an async function."""

    def called() -> tuple[Any, str | None]:
        value = tool.function(**values)
        return (value, None) if inspect.isawaitable(value) else _with_text(value)

    value, content = await in_thread(called)
    if content is None:
        return _answer(tool, await value, on_db, on_rollout)
    _answer(tool, content, on_db, on_rollout)
    return value, content


def _with_text(value: Any) -> tuple[Any, str]:
    """The value of a tool, an iterator as the list of its items, and the text that the model sees."""
    if value.__class__ is not str and not isinstance(value, _PLAIN):
        value = _listed(value)
        if inspect.isawaitable(value):
            raise _returned_awaitable(value)
    return value, content_of(value)


def _returned_awaitable(value: Any) -> TypeError:
    name = f"{type(value).__name__.lower()} {getattr(value, '__qualname__', '')}".rstrip()
    if inspect.iscoroutine(value):
        value.close()
    elif isinstance(value, asyncio.Future):
        value.cancel()
    return TypeError(f"the tool returned the {name}: is an await missing?")


_PLAIN = (str, dict, list, tuple, int, float, type(None))


def _listed(value: Any) -> Any:
    """The items of an iterator, which is run here once, within the tool's time; other values unchanged."""
    if isinstance(value, Iterator) and getattr(value, "returns_rows", True):  # not the result of a write
        return list(islice(value, MAX_CHARACTERS))
    if inspect.isasyncgen(value):
        raise TypeError(f"the tool returned the async generator {value.__qualname__}: return a list")
    return value


def _blocked(tool: Tool, limit: TimeLimit) -> str | None:
    """The warning for an ``async def`` tool that blocked the event loop; None if it did not."""
    return limit.blocked("write it as def, or await what takes long") if tool.is_async else None


def _traceback(tool: Tool, error: BaseException) -> str:
    trace = redact(foreign_text("".join(traceback.format_exception(error))))
    logger.debug("tool %r failed\n%s", tool.name, trace)
    return trace


def _error_text(error: BaseException) -> str:
    """``Error: `` and the exception's text without secrets, with its type if the text alone is not enough."""
    text = ""
    with suppress(Exception):  # the exception's class is the tool's own code as well
        exits = isinstance(error, SystemExit)
        text = "the tool tried to exit" if exits else foreign_text(error)
        text = text if text.startswith("Error:") else text.strip()
    if isinstance(error, KeyError | StopIteration) or not text:
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    return content_of(redact(text if text.startswith("Error:") else f"Error: {text}"))
