"""The agents of ``examples/own_agents`` that bring a framework along: they play, count, and end when told."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_task import ScriptedUser, play, small_task
from stub_server import StubServer, book_and_pay, call, calls

EXAMPLES = Path(__file__).parents[2] / "examples" / "own_agents"
FRAMEWORKS = {"openai_agents_example": ("agents",), "langgraph_example": ("langgraph", "langchain_openai")}
MODEL = "gpt-4o-mini"


Example = Callable[[], Any]


@pytest.fixture(params=FRAMEWORKS)
def example(request: Any, stub_llm: StubServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Example]:
    """The class of an example's agent, its framework pointed at the stub."""
    for package in FRAMEWORKS[request.param]:
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.setenv("OPENAI_BASE_URL", stub_llm.url)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module(request.param).Agent
    sys.modules.pop(request.param)


async def test_it_solves_a_task(example: Example, stub_llm: StubServer, tmp_path: Path) -> None:
    stub_llm.script(MODEL, book_and_pay)
    finished = await play(small_task(tmp_path, system_prompt="Be kind."), example(), seed=7)
    rollout = finished
    assert (finished.trace.reward, rollout.stop_reason) == (1.0, "agent_done")
    assert [found.name for found in rollout.tool_calls] == ["create_booking", "pay_booking"]
    assert rollout.lines[-1].text == "Booked and paid."
    usage = rollout.usage["agent"]
    assert (rollout.steps, usage.calls, usage.unpriced_calls) == (3, 3, 3)
    assert (usage.input_tokens, usage.output_tokens) == (300, 30)
    first = stub_llm.requests[0]
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert first["messages"][0]["content"] == "Be kind."
    assert first["seed"] == 7
    for given, offered in zip(first["tools"], rollout.tools, strict=True):
        assert given["function"]["parameters"] == offered["function"]["parameters"]


async def test_it_remembers_the_turns_before(example: Example, stub_llm: StubServer, tmp_path: Path) -> None:
    stub_llm.script(MODEL, [call("ping"), "First answer.", "Second answer."])
    finished = await play(small_task(tmp_path), example(), user=ScriptedUser(["And now?"]))
    spoken = ["Book me a flight", "First answer.", "And now?", "Second answer.", "###STOP###"]
    assert [line.text for line in finished.lines] == spoken
    last = stub_llm.requests[-1]["messages"]
    assert [message["role"] for message in last] == ["user", "assistant", "tool", "assistant", "user"]
    assert last[2]["content"] == "pong"
    assert finished.turns == 2


async def test_a_terminal_tool_ends_it(example: Example, stub_llm: StubServer, tmp_path: Path) -> None:
    stub_llm.script(MODEL, [calls(("ping", {}), ("transfer", {})), "Never said."])
    finished = await play(small_task(tmp_path), example())
    assert finished.stop_reason == "terminal_tool"
    assert [found.name for found in finished.tool_calls] == ["ping", "transfer"]
    assert len(stub_llm.requests) == 1
