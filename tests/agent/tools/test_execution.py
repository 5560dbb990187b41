"""One call of a tool: what the model sees of its result, its faults, its time limit."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import threading
import time
from typing import Any

import pytest

from reward_kit.agent.base.types import RolloutStopped
from reward_kit.agent.tools.execution import ToolResult
from reward_kit.agent.tools.registry import ToolRegistry
from reward_kit.errors import ToolError


async def call(function: Any, arguments: Any = None, *, timeout: float = 60, **options: Any) -> ToolResult:
    """The result of a tool named ``book``."""
    registry = ToolRegistry("tools", tool_timeout=timeout)
    registry.tool(name="book", terminal=options.pop("terminal", False))(function)
    return await registry.call("book", arguments, **options)


@pytest.mark.parametrize(
    ("error", "status", "content"),
    [
        (ToolError("seat taken"), "refused", "Error: seat taken"),
        (ToolError("seat taken", remedy="Take another."), "refused", "Error: seat taken. Take another."),
        (ValueError("no such flight"), "failed", "Error: no such flight"),
        (ValueError(), "failed", "Error: ValueError"),
        (KeyError("SFO"), "failed", "Error: KeyError: 'SFO'"),
        (SystemExit(3), "failed", "Error: the tool tried to exit"),
        (asyncio.CancelledError(), "failed", "Error: CancelledError"),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_whatever_a_tool_raises_becomes_an_error_text(
    error: BaseException, status: str, content: str | None, is_async: bool
) -> None:
    def sync_tool():
        raise error

    async def async_tool():
        raise error

    result = await call(async_tool if is_async else sync_tool)
    assert result.status == status
    assert result.content.startswith("Error: ")
    assert content is None or result.content == content


async def test_the_traceback_is_for_logs_and_never_for_the_model(caplog: pytest.LogCaptureFixture) -> None:
    async def fails():
        raise ValueError("boom")

    async def refuses():
        raise ToolError("no")

    with caplog.at_level(logging.DEBUG, "reward_kit"):
        result = await call(fails)
    assert result.error is not None
    assert "test_execution.py" in result.error
    assert "Traceback" not in result.content
    assert "test_execution.py" in caplog.text
    assert (await call(refuses)).error is None


async def test_the_end_of_the_rollout_passes_through() -> None:
    def stop():
        raise RolloutStopped

    with pytest.raises(RolloutStopped):
        await call(stop)


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, SystemExit])
async def test_other_exceptions_that_end_programs_cost_the_call(error: type[BaseException]) -> None:
    def ends():
        raise error

    assert (await call(ends)).status == "failed"


async def test_ctrl_c_passes_through_where_nobody_handles_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.default_int_handler)

    async def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await call(interrupted)


@pytest.mark.parametrize(
    "text", ['{"a": "x\\ud83d"}', '{"a": "x\\uD83D"}', '{"a": "x\ud83d"}', {"a": "x\ud83d"}]
)
async def test_half_a_surrogate_pair_is_replaced_before_the_tool_sees_it(text: Any) -> None:
    seen = []

    async def take(a: str):
        seen.append(a)

    result = await call(take, text)
    assert (result.status, seen, result.arguments) == ("ok", ["x?"], {"a": "x?"})


@pytest.mark.parametrize("arguments", [None, "", "  ", "null", "{}", {}, b"{}"])
async def test_models_have_many_ways_to_write_no_arguments(arguments: Any) -> None:
    assert (await call(lambda: "pong", arguments)).content == "pong"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ('{"a": ', "the arguments are not valid JSON (Expecting value: line 1 column 7 (char 6))"),
        ('{"a": 1} and more', "the arguments are not valid JSON (Extra data"),
        ("[1]", "the arguments must be a JSON object, got [1] (array)"),
        (5, "the arguments must be a JSON object, got 5 (number)"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        (f'{{"a": 1{"0" * 400}.0}}', "is not a JSON number"),
        ("[" * 100_000, "the arguments are not valid JSON (nested too deeply)"),
    ],
)
async def test_what_is_no_json_object_is_refused_before_the_tool_runs(arguments: Any, fault: str) -> None:
    ran = []

    async def take(a: Any):
        ran.append(a)

    result = await call(take, arguments)
    assert result.status == "invalid_arguments"
    assert result.content.startswith("Error: invalid arguments for tool 'book': ")
    assert fault in result.content
    assert not ran


@pytest.mark.parametrize("terminal", [True, "always"])
async def test_a_terminal_tool_ends_the_rollout_when_it_ran_or_always(terminal: Any) -> None:
    async def transfer(summary: str):
        if not summary:
            raise ToolError("say why")
        return "done"

    results = [
        await call(transfer, arguments, terminal=terminal)
        for arguments in ({"summary": "x"}, {"summary": ""}, {})
    ]
    assert [result.status for result in results] == ["ok", "refused", "invalid_arguments"]
    assert [result.terminal for result in results] == [True, terminal == "always", terminal == "always"]


async def test_a_tool_that_needs_a_database_says_so_when_there_is_none() -> None:
    async def needs(db):
        return "ran"

    async def copes(db=None):
        return f"got {db}"

    assert (await call(needs)).content == "Error: tool 'book' needs a database and none was given"
    assert (await call(copes)).content == "got None"


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_that_hangs_is_a_failed_call(is_async: bool) -> None:
    async def async_tool():
        await asyncio.Event().wait()

    def sync_tool():
        time.sleep(5)

    result = await call(async_tool if is_async else sync_tool, timeout=0.05)
    assert (result.status, result.content) == ("failed", "Error: tool 'book' did not finish within 0.05 s")


@pytest.mark.parametrize("is_async", [True, False])
async def test_cancelling_the_caller_cancels_the_call(is_async: bool) -> None:
    started = threading.Event()
    release = threading.Event()

    async def async_tool():
        started.set()
        await asyncio.Event().wait()

    def sync_tool():
        started.set()
        release.wait(30)

    running = asyncio.create_task(call(async_tool if is_async else sync_tool))
    assert await asyncio.to_thread(started.wait, 30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    release.set()


async def test_a_tool_that_blocks_past_its_limit_is_named_as_one_that_held_up_all() -> None:
    async def blocks(refuses: bool = False):
        time.sleep(0.4)  # noqa: ASYNC251 - the very mistake that is tested
        if refuses:
            raise ToolError("no")
        return "done"

    result, refused = await call(blocks, timeout=0.1), await call(blocks, {"refuses": True}, timeout=0.1)

    assert (result.status, result.content) == ("ok", "done")
    assert (refused.status, refused.content) == ("refused", "Error: no")
    for raised in (result.raised, refused.raised):
        assert raised is not None
        assert re.fullmatch(
            r"took \d+\.\d s, past its limit of 0\.1 s, and blocked the event loop, "
            r"which all rollouts share, for \d+\.\d s or more: "
            "write it as def, or await what takes long",
            raised,
        )


@pytest.mark.parametrize("error", [ToolError, ValueError])
async def test_a_key_of_the_environment_is_hidden(monkeypatch: Any, error: type[Exception]) -> None:
    monkeypatch.setenv("AIRLINE_API_KEY", "canary-4711-canary")

    async def asks():
        raise error("the airline refused canary-4711-canary")

    result = await call(asks)
    assert result.content == "Error: the airline refused [hidden]"
    assert "canary" not in f"{result.error} {result.raised}"
