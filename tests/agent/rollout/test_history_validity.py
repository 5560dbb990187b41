"""Whatever models and agents do, the messages stay valid for the strictest provider."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_task import InProcessModel, ScriptedUser, play, seeded, small_task
from thorough import often

from reward_kit.agent.base.history import History
from reward_kit.agent.database import Database
from reward_kit.agent.players.agents.tool_calling import ToolCallingAgent


def check_valid(messages: list[dict[str, Any]], *, whole: bool) -> None:
    """A state machine of a strict provider's rules; ``whole`` asks for every call to be answered."""
    waiting: list[str] = []
    used: set[str] = set()
    for position, message in enumerate(messages):
        role = message["role"]
        assert role in {"system", "user", "assistant", "tool"}
        assert role != "system" or position == 0
        json.dumps(message).encode()
        if role == "tool":
            assert message["tool_call_id"] in waiting
            waiting.remove(message["tool_call_id"])
            assert isinstance(message["content"], str)
            message["content"].encode()
            continue
        assert not waiting, f"{waiting} unanswered before {message}"
        calls = message.get("tool_calls")
        assert calls is None or role == "assistant"
        if calls is None:
            assert isinstance(message["content"], str)
            assert message["content"].strip()
            message["content"].encode()
            continue
        assert calls
        assert message["content"] is None or message["content"]
        for call in calls:
            assert call["type"] == "function"
            assert isinstance(call["id"], str)
            assert call["id"] not in used
            used.add(call["id"])
            waiting.append(call["id"])
            assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", call["function"]["name"])
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            call["function"]["arguments"].encode()
    assert not (whole and waiting)


class CheckingModel(InProcessModel):
    """Refuses a history that a strict provider would refuse."""

    async def complete(self, messages: list[dict[str, Any]], **options: Any) -> Any:
        check_valid(messages, whole=True)
        return await super().complete(messages, **options)


def test_a_long_id_names_its_call_in_both_spellings() -> None:
    history = History([])
    given = "call_" + "x" * 300
    call = {"id": given, "type": "function", "function": {"name": "ping", "arguments": "{}"}}
    recorded = history.announce({"role": "assistant", "content": None, "tool_calls": [call]})
    assert history.answer(given, "ping", "{}", "pong") == recorded["tool_calls"][0]["id"]
    check_valid(history.messages, whole=True)
    assert len(history.messages) == 2


names = st.sampled_from(["ping", "transfer", "search_flights", "no such tool", "", None, "a.b/c", "x" * 90])
arguments = st.one_of(
    st.sampled_from(["", "{", "null", "[1]", '"x"', "NaN", '{"a": 1e999}', "{}", " ", '{"a": "\\ud800"}']),
    st.text(max_size=8),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2).map(json.dumps),
    st.just(json.dumps({"origin": "SFO", "dest": "JFK"})),
)
ids = st.one_of(st.none(), st.sampled_from(["", "call_0", "call_1", "call00001"]), st.text(max_size=4))
function = st.fixed_dictionaries({"name": names, "arguments": arguments})
tool_call = st.fixed_dictionaries({"id": ids, "type": st.just("function"), "function": function})
odd_arguments = st.sampled_from([None, 5, ["a"], {"origin": "SFO"}, {1}, b"\xff", object()])
odd_calls = st.one_of(
    st.sampled_from(["x", None, 7, {}, {"function": None}, {"id": 5, "function": {"name": 3}}]),
    st.builds(lambda given: {"function": {"name": "ping", "arguments": given}}, odd_arguments),
)
tool_calls = st.lists(st.one_of(tool_call, odd_calls), min_size=1, max_size=3)
texts = st.one_of(st.none(), st.just(""), st.just("  "), st.text(max_size=6), st.just("\ud800 half"))
answers = st.one_of(
    st.builds(lambda text: {"role": "assistant", "content": text}, texts),
    st.builds(
        lambda text, it: {"role": "assistant", "content": text, "tool_calls": it, "reasoning_content": "hm"},
        texts,
        tool_calls,
    ),
)


@pytest.fixture
def base(tmp_path: Path) -> Database:
    return seeded(tmp_path)


@settings(max_examples=often(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(answers, min_size=1, max_size=8), steps=st.integers(1, 10), parallel=st.booleans())
def test_any_answers_of_a_model_leave_a_valid_history(
    tmp_path: Path, base: Database, script: list[Any], steps: int, parallel: bool
) -> None:
    task = small_task(tmp_path, system_prompt="Be kind", max_steps=steps)
    model = CheckingModel(script)
    options: Any = {"models": {"agent": model}, "parallel_tool_calls": parallel}
    user = ScriptedUser(["Go on", "And now"])
    finished = asyncio.run(play(task, ToolCallingAgent(), user=user, base=base, **options))
    rollout = finished.trace
    check_valid(rollout.messages, whole=True)
    assert rollout.stop_reason in {"user_stop", "terminal_tool", "max_steps", "agent_error"}
    assert rollout.steps <= steps
    if not parallel:
        assert all(len(message.get("tool_calls") or [0]) == 1 for message in rollout.messages)
    answered = [m for m in rollout.messages if m["role"] == "tool"]
    ran = [m for m in answered if m["content"] != "Error: not run, the rollout had ended."]
    assert len(ran) == len(rollout.tool_calls)
    finished.database.close()


def test_arguments_that_are_no_json_are_answered(tmp_path: Path, base: Database) -> None:
    asked = {"function": {"name": "ping", "arguments": {1}}}
    model = CheckingModel([{"content": None, "tool_calls": [asked]}, {"content": "Done"}])
    finished = asyncio.run(play(small_task(tmp_path), ToolCallingAgent(), base=base, models={"agent": model}))
    assert [call.status for call in finished.trace.tool_calls] == ["invalid_arguments"]
    assert finished.trace.stop_reason == "agent_done"
    finished.database.close()


class OwnLoop:
    """An agent of its own making: calls one by one, side by side, announced and not."""

    def __init__(self, plan: list[tuple[str, int]]) -> None:
        self.plan = plan

    async def respond(self, rollout: Any) -> str:
        for kind, number in self.plan:
            if kind == "one by one":
                for _ in range(number):
                    await rollout.call_tool("ping", {}, call_id="mine")
            elif kind == "side by side":
                await asyncio.gather(*(rollout.call_tool("ping", {}) for _ in range(number)))
            else:
                call = {"id": "same", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
                recorded = rollout.record({"role": "assistant", "content": "", "tool_calls": [call] * number})
                for announced in recorded["tool_calls"][1:]:
                    known = rollout.call_tool("ping", {}, call_id=announced["id"])
                    await asyncio.gather(known, rollout.call_tool("transfers", {}))
            check_valid(rollout.messages, whole=False)
        return "done"


WAYS = ["one by one", "side by side", "announced"]
plans = st.lists(st.tuples(st.sampled_from(WAYS), st.integers(1, 3)), max_size=4)


@settings(max_examples=often(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=plans, steps=st.integers(1, 30))
def test_any_order_of_calls_of_an_agent_leaves_a_valid_history(
    tmp_path: Path, base: Database, plan: list[tuple[str, int]], steps: int
) -> None:
    finished = asyncio.run(play(small_task(tmp_path, max_steps=steps), OwnLoop(plan), base=base))
    check_valid(finished.trace.messages, whole=True)
    assert finished.trace.stop_reason in {"agent_done", "max_steps"}
    finished.database.close()


def test_a_conversation_that_a_row_begins_with_stays_as_it_is() -> None:
    given = [
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "ping", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "pong"},
        {"role": "assistant", "content": "Pong, I hear"},
        {"role": "user", "content": "Fine"},
    ]
    history = History(given)
    assert history.messages == given
    said = [("user", "Hello"), ("agent", "Pong, I hear"), ("user", "Fine")]
    assert [(line.speaker, line.text) for line in history.lines] == said
    assert history.call("ping", {}, "c1") != "c1"
    assert len(history.call("ping", {}, "c" * 300)) == 9  # one that a provider takes back
