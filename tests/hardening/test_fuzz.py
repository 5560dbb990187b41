"""Whatever comes in from outside, what comes out is a value or one clear fault."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import ROW, Bundle, flight_bundle
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from small_task import SEED, airline, play, seeded, small_task
from stub_server import Answer, StubServer

from reward_kit.agent import load_agent
from reward_kit.agent.bundles.bundle import TaskBundle
from reward_kit.agent.database import Database
from reward_kit.agent.models.endpoint import find_endpoint
from reward_kit.agent.models.openai_http import OpenAIModel
from reward_kit.errors import BundleError

BOUNDED = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
TEXT = st.text(max_size=12) | st.sampled_from(
    ["\ud800", "\0", "", "file:", "###STOP###", "a" * 3000, "{}", "null"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
DEEP = st.sampled_from(
    ["[" * 5000, "[" * 300 + "]" * 300, '{"a":' * 120 + "1" + "}" * 120, '{"a": 1e999}', "NaN"]
)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return flight_bundle(tmp_path)


# -- datasets

LINES = st.dictionaries(
    st.sampled_from([*ROW, "actions", "outputs", "now", "max_steps", "metadata", "own"]), VALUES
)
BROKEN = st.one_of(
    st.binary(max_size=60),
    DEEP.map(str.encode),
    LINES.map(lambda row: json.dumps({**ROW, **row}).encode()),
    LINES.map(lambda row: b"\xef\xbb\xbf" + json.dumps({**ROW, **row}).encode() + b"\r"),
    LINES.map(lambda row: (json.dumps({**ROW, **row})[:-1] + ', "id": "again"}').encode()),
    DEEP.map(lambda text: (json.dumps(ROW)[:-1] + f', "own": {text}}}').encode()),
    st.just(json.dumps({**ROW, "own": "x" * 2_000_000}).encode()),
)


@BOUNDED
@given(lines=st.lists(BROKEN, max_size=4))
def test_a_dataset_is_a_bundle_or_faults_with_their_lines(bundle: Bundle, lines: list[bytes]) -> None:
    bundle.dataset.write_bytes(b"\n".join(lines))
    try:
        with TaskBundle.load(bundle.dataset) as loaded:
            assert loaded.tasks
            assert all(
                (Path("/runs") / task.row.id).resolve().parent == Path("/runs") for task in loaded.tasks
            )
    except BundleError as error:
        faults = str(error).splitlines()
        assert faults
        assert all("task.jsonl" in fault for fault in faults)
        str(error).encode()


# -- arguments of tools

ARGUMENTS = st.one_of(
    TEXT,
    DEEP,
    st.binary(max_size=30),
    VALUES,
    st.dictionaries(
        st.sampled_from(["flight_id", "passenger", "booking_id", "db", "rollout", "self"]), VALUES
    ),
    VALUES.map(json.dumps),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with Database.seed(tmp_path_factory.mktemp("fuzz") / "base.db", SEED) as base:
        yield base


@BOUNDED
@example(name="search_flights", arguments=["\ud800"])
@example(name="\ud800", arguments={})
@given(
    name=st.sampled_from(["search_flights", "create_booking", "pay_booking", "ping"]) | TEXT,
    arguments=ARGUMENTS,
)
def test_a_call_answers_with_text_and_an_error_changes_nothing(
    base: Database, name: str, arguments: Any
) -> None:
    with base.fork(seed=1) as fork:
        content = asyncio.run(airline().execute_tool(name, arguments, db=fork))
        assert isinstance(content, str)
        content.encode()
        assert len(content) < 5000
        if content.startswith("Error:"):
            assert not fork.changes()


# -- answers of models

CALL = st.fixed_dictionaries(
    {},
    optional={
        "id": VALUES,
        "type": st.just("function") | VALUES,
        "function": st.fixed_dictionaries(
            {},
            optional={
                "name": st.sampled_from(["ping", "create_booking"]) | VALUES,
                "arguments": VALUES | DEEP,
            },
        )
        | VALUES,
    },
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.just("assistant") | VALUES,
        "content": st.sampled_from(["No.", "Action:\n" + "[" * 3000, 'Action: {"name": 3}', "<think>"])
        | VALUES,
        "tool_calls": st.lists(CALL, max_size=2) | VALUES,
        "reasoning_content": VALUES,
        "refusal": VALUES,
        "function_call": VALUES,
    },
)
ANSWER = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(
            st.fixed_dictionaries({}, optional={"message": MESSAGE | VALUES, "finish_reason": VALUES})
            | VALUES,
            max_size=2,
        )
        | VALUES,
        "usage": st.dictionaries(
            st.sampled_from(["prompt_tokens", "completion_tokens", "total_tokens"]), VALUES
        )
        | VALUES,
        "model": VALUES,
        "error": VALUES,
        "id": VALUES,
    },
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


@settings(BOUNDED, max_examples=80)
@given(
    bodies=st.lists(BODIES, min_size=1, max_size=3), agent=st.sampled_from(["tool-calling", "react", "act"])
)
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
            return await play(
                small_task(folder, max_steps=4),
                load_agent(agent)(),
                models={"agent": model},
                base=seeded(folder),
            )
        finally:
            await model.close()

    finished = asyncio.run(run())
    with finished.database:
        assert finished.rollout.stop_reason in {
            "agent_done",
            "max_steps",
            "agent_error",
            "infrastructure_error",
        }
        assert "Traceback" not in (finished.rollout.stop_detail or "")
        json.dumps(finished.rollout.messages).encode()
