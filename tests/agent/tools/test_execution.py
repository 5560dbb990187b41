from __future__ import annotations

import asyncio
import functools
import logging
import re
import threading
import time
from typing import Any

import pytest

from reward_kit.agent.tools.registry import ToolRegistry
from reward_kit.errors import ToolError


class Stop(BaseException):
    """Stands for whatever ends a rollout from inside a tool."""


# What comes of a call


@pytest.mark.parametrize(
    ("error", "status", "content"),
    [
        (ToolError("seat taken"), "refused", "Error: seat taken"),
        (ToolError("seat taken", remedy="Take another."), "refused", "Error: seat taken. Take another."),
        (ToolError("Error: seat taken"), "refused", "Error: seat taken"),
        (ValueError("no such flight"), "failed", "Error: no such flight"),
        (ValueError(), "failed", "Error: ValueError"),
        (KeyError("SFO"), "failed", "Error: KeyError: 'SFO'"),
        (TimeoutError("the airline does not answer"), "failed", "Error: the airline does not answer"),
        (SystemExit(3), "failed", "Error: the tool tried to exit"),
        (StopIteration(), "failed", None),
        (asyncio.CancelledError(), "failed", "Error: CancelledError"),
    ],
)
@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_whatever_a_tool_raises_becomes_an_error_text(
    error: BaseException, status: str, content: str | None, kind: str
) -> None:
    registry = ToolRegistry("tools")

    def sync_tool():
        raise error

    async def async_tool():
        raise error

    registry.tool(name="book")(async_tool if kind == "async def" else sync_tool)

    result = await registry.call("book", {})

    assert result.status == status
    assert result.content.startswith("Error: ")
    assert content is None or result.content == content


async def test_the_traceback_is_for_logs_and_never_for_the_model(caplog: pytest.LogCaptureFixture) -> None:
    registry = ToolRegistry("tools")

    @registry.tool
    async def book():
        raise ValueError("boom")

    @registry.tool
    async def refuse():
        raise ToolError("no")

    with caplog.at_level(logging.DEBUG, "reward_kit"):
        result = await registry.call("book", {})

    assert result.error is not None
    assert "test_execution.py" in result.error
    assert "Traceback" not in result.content
    assert "test_execution.py" in caplog.text
    assert (await registry.call("refuse", {})).error is None


async def test_the_end_of_the_rollout_and_ctrl_c_pass_through() -> None:
    registry = ToolRegistry("tools")

    @registry.tool
    async def stop():
        raise Stop

    @registry.tool
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(Stop):
        await registry.call("stop", {})
    with pytest.raises(KeyboardInterrupt):
        await registry.call("interrupt", {})


@pytest.mark.parametrize("arguments", [None, "", "  ", "null", "{}", {}, b"{}"])
async def test_models_have_many_ways_to_write_no_arguments(arguments: Any) -> None:
    registry = ToolRegistry("tools")

    @registry.tool
    async def ping():
        return "pong"

    assert await registry.execute_tool("ping", arguments) == "pong"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ('{"a": ', "the arguments are not valid JSON (Expecting value: line 1 column 7 (char 6))"),
        ("call me", "the arguments are not valid JSON"),
        ('{"a": 1} and more', "the arguments are not valid JSON (Extra data"),
        ("[1]", "the arguments must be a JSON object, got [1] (array)"),
        ('"{}"', 'the arguments must be a JSON object, got "{}" (string)'),
        (5, "the arguments must be a JSON object, got 5 (number)"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": Infinity}', "Infinity is not a JSON number"),
        ({"a": float("nan")}, "cannot be written as JSON"),
        ('{"a": "\\ud83d"}', "the arguments are not valid JSON"),
        ("[" * 100_000, "the arguments are not valid JSON (nested too deeply)"),
        (b"\xff\xfe\xfd", "the arguments are not valid JSON"),
    ],
)
async def test_what_is_no_json_object_is_refused_before_the_tool_runs(arguments: Any, fault: str) -> None:
    registry = ToolRegistry("tools")
    ran = []

    @registry.tool
    async def take(a: Any):
        ran.append(a)

    result = await registry.call("take", arguments)

    assert result.status == "invalid_arguments"
    assert result.content.startswith("Error: invalid arguments for tool 'take': ")
    assert fault in result.content
    assert not ran


async def test_a_terminal_tool_ends_the_rollout_only_when_it_ran() -> None:
    registry = ToolRegistry("tools")

    @registry.tool(terminal=True)
    async def transfer(summary: str):
        if not summary:
            raise ToolError("say why")
        return "done"

    assert (await registry.call("transfer", {"summary": "angry"})).terminal
    assert not (await registry.call("transfer", {"summary": ""})).terminal
    assert not (await registry.call("transfer", {})).terminal


# What is injected


async def test_a_tool_that_needs_a_database_says_so_when_there_is_none() -> None:
    registry = ToolRegistry("tools")

    @registry.tool
    async def needs(db):
        return "ran"

    @registry.tool
    async def copes(db=None):
        return f"got {db}"

    assert (
        await registry.execute_tool("needs", {}) == "Error: tool 'needs' needs a database and none was given"
    )
    assert await registry.execute_tool("copes", {}) == "got None"


# Functions that block


async def test_a_plain_wrapper_around_an_async_function_is_awaited() -> None:
    registry = ToolRegistry("tools")

    async def answer(n: int):
        return n

    @registry.tool
    def wrapped(n: int):
        return answer(n)

    class Negation:
        async def __call__(self, n: int):
            return -n

    registry.tool(name="object")(Negation())
    registry.tool(name="partial")(functools.partial(Negation.__call__, Negation()))

    assert await registry.execute_tool("wrapped", {"n": 1}) == "1"
    assert await registry.execute_tool("object", {"n": 1}) == "-1"
    assert await registry.execute_tool("partial", {"n": 1}) == "-1"


# Time limits and cancellation


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_a_tool_that_hangs_is_a_failed_call(kind: str) -> None:
    registry = ToolRegistry("tools", tool_timeout=0.05)

    async def async_tool():
        await asyncio.Event().wait()

    def sync_tool():
        time.sleep(5)

    registry.tool(name="hang")(async_tool if kind == "async def" else sync_tool)

    result = await registry.call("hang", {})

    assert (result.status, result.content) == ("failed", "Error: tool 'hang' did not finish within 0.05 s")


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_cancelling_the_caller_cancels_the_call(kind: str) -> None:
    registry = ToolRegistry("tools")
    started = threading.Event()
    release = threading.Event()

    async def async_tool():
        started.set()
        await asyncio.Event().wait()

    def sync_tool():
        started.set()
        release.wait(30)

    registry.tool(name="hang")(async_tool if kind == "async def" else sync_tool)
    call = asyncio.create_task(registry.call("hang", {}))
    assert await asyncio.to_thread(started.wait, 30)
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    release.set()


async def test_a_tool_that_cleans_up_when_out_of_time_may_take_a_moment_and_still_answer() -> None:
    registry = ToolRegistry("tools", tool_timeout=0.02)

    @registry.tool
    async def stubborn():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "late but whole"

    result = await registry.call("stubborn", {})

    assert (result.status, result.content) == ("ok", "late but whole")
    await asyncio.sleep(0)


# A tool that keeps the event loop to itself


def block(seconds: float) -> None:
    time.sleep(seconds)


async def test_a_tool_that_blocks_past_its_limit_is_told_as_one_that_held_up_all() -> None:
    registry = ToolRegistry("tools", tool_timeout=0.1)

    @registry.tool
    async def blocks():
        block(0.4)
        return "done"

    @registry.tool
    async def refuses():
        block(0.4)
        raise ToolError("no")

    result, refused = await registry.call("blocks", {}), await registry.call("refuses", {})

    assert (result.status, result.content) == ("ok", "done")
    assert (refused.status, refused.content) == ("refused", "Error: no")
    for raised in (result.raised, refused.raised):
        assert raised is not None
        assert re.fullmatch(
            r"took 0\.\d s, past its limit of 0\.1 s, and blocked the event loop, which all rollouts share, "
            r"for 0\.\d s or more: "
            "write it as def, or await what takes long",
            raised,
        )


@pytest.mark.parametrize("error", [ToolError, ValueError])
async def test_a_key_of_the_environment_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    monkeypatch.setenv("AIRLINE_API_KEY", "canary-4711-canary")
    registry = ToolRegistry("tools")

    @registry.tool
    async def asks():
        raise error("the airline refused canary-4711-canary")

    result = await registry.call("asks", {})

    assert result.content == "Error: the airline refused [hidden]"
    assert "canary" not in f"{result.error} {result.raised}"
