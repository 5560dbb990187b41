"""Whatever comes in from outside, what comes out is a value or one clear fault."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from small_task import SEED, airline, play, small_task
from stub_server import Answer, StubServer
from thorough import often

from reward_kit.agent import load_agent
from reward_kit.agent.database import Database
from reward_kit.agent.models.openai_http import OpenAIModel
from reward_kit.agent.models.providers import find_endpoint

UNCHECKED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
BOUNDED = settings(max_examples=often(60), suppress_health_check=UNCHECKED)
TEXT = st.text(max_size=12) | st.sampled_from(
    ["\ud800", "\0", "", "file:", "###STOP###", "a" * 3000, "{}", "null"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
NESTED = ["[" * 5000, "[" * 300 + "]" * 300, '{"a":' * 120 + "1" + "}" * 120]
DEEP = st.sampled_from([*NESTED, '{"a": 1e999}', "NaN"])


# -- arguments of tools

AT_ONCE = ("search_flights", "create_booking", "pay_booking", "ping")
NAMES = ["flight_id", "passenger", "booking_id", "db", "rollout", "self"]
ARGUMENTS = st.one_of(
    TEXT,
    DEEP,
    st.binary(max_size=30),
    VALUES,
    st.dictionaries(st.sampled_from(NAMES), VALUES),
    VALUES.map(json.dumps),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with Database.seed(tmp_path_factory.mktemp("fuzz") / "base.db", SEED) as base:
        yield base


@BOUNDED
@example(name="search_flights", arguments=["\ud800"])
@example(name="\ud800", arguments={})
@given(name=st.sampled_from(AT_ONCE) | TEXT, arguments=ARGUMENTS)
def test_a_call_answers_with_text_and_a_fault_changes_nothing(base: Any, name: str, arguments: Any) -> None:
    with base.fork(seed=1) as fork:
        content = asyncio.run(airline().execute_tool(name, arguments, db=fork))
        assert isinstance(content, str)
        content.encode()
        assert len(content) < 5000
        if content.startswith("Error:"):
            assert not fork.changes()


# -- answers of models


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with some of these fields, each of which may hold anything else."""
    return st.fixed_dictionaries({}, optional={name: one | VALUES for name, one in fields.items()})


FUNCTION = some(name=st.sampled_from(["ping", "create_booking"]), arguments=DEEP)
CALL = some(id=VALUES, type=st.just("function"), function=FUNCTION)
MESSAGE = some(
    role=st.just("assistant"),
    content=st.sampled_from(["No.", "Action:\n" + "[" * 3000, 'Action: {"name": 3}', "<think>"]),
    tool_calls=st.lists(CALL, max_size=2),
    **dict.fromkeys(("reasoning_content", "refusal", "function_call"), VALUES),
)
COUNTS = st.sampled_from(["prompt_tokens", "completion_tokens", "total_tokens"])
ANSWER = some(
    choices=st.lists(some(message=MESSAGE, finish_reason=VALUES) | VALUES, max_size=2),
    usage=st.dictionaries(COUNTS, VALUES),
    **dict.fromkeys(("model", "error", "id"), VALUES),
)
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
BODIES = st.one_of(
    MESSAGE.map(
        lambda message: {
            "id": "c", "object": "chat.completion", "created": 1, "model": "m", "usage": USAGE,
            "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}],
        }
    ).map(lambda answer: json.dumps(answer).encode()),
    ANSWER.map(lambda answer: json.dumps(answer).encode()),
    VALUES.map(lambda value: json.dumps(value).encode()),
    DEEP.map(str.encode),
    st.binary(max_size=50),
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[StubServer]:
    stub = StubServer()
    yield stub
    stub.close()


@settings(BOUNDED, max_examples=often(40))
@given(st.lists(BODIES, min_size=1, max_size=3), st.sampled_from(["tool-calling", "react", "act"]))
def test_a_rollout_ends_with_a_reason_whatever_the_model_answers(
    tmp_path_factory: pytest.TempPathFactory, server: StubServer, bodies: list[bytes], agent: str
) -> None:
    server.script("fuzz", [Answer(body=body) for body in bodies])
    endpoint = find_endpoint("openai/fuzz", None, {"api_base": server.url, "api_key": "none"})
    assert endpoint is not None
    model = OpenAIModel("openai/fuzz", endpoint, retries=0, timeout=30)
    folder = tmp_path_factory.mktemp("rollout")

    async def run() -> Any:
        try:
            return await play(small_task(folder, max_steps=4), load_agent(agent)(), models={"agent": model})
        finally:
            await model.close()

    finished = asyncio.run(run())
    with finished.database:
        ends = {"agent_done", "max_steps", "agent_error", "infrastructure_error"}
        assert finished.trace.stop_reason in ends
        assert "Traceback" not in (finished.trace.stop_detail or "")
        json.dumps(finished.trace.messages).encode()
