"""The agent as a rollout sees it: what is said, what is called, what it costs, how it ends."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from small_task import play, small_task


def use(*calls: Any) -> str:
    """A line that makes the fake worker call tools: (name, arguments)."""
    return f"use {json.dumps(calls)}"


async def test_what_the_user_says_is_answered_by_fastworkflow(opened: Any, talk: Any) -> None:
    finished = await talk(await opened(), "say Hello", "ask Which seat?", "say Goodbye")
    said = [line.text for line in finished.trace.lines if line.speaker == "agent"]
    assert said == ["Hello", "Which seat?", "Goodbye"]
    assert finished.trace.stop_reason == "user_stop"
    assert finished.trace.turns == 3


async def test_its_commands_act_on_the_rollouts_database(opened: Any, talk: Any) -> None:
    book = use(("create_booking", {"flight_id": 1, "passenger": "Alice"}))
    finished = await talk(await opened(), book, "say Done")
    (call,) = finished.trace.tool_calls
    assert (call.name, call.status) == ("create_booking", "ok")
    assert call.arguments == {"flight_id": 1, "passenger": "Alice"}
    assert [(change["table"], change["op"]) for change in call.changes] == [("bookings", "insert")]
    roles = [message["role"] for message in finished.trace.messages[:4]]
    assert roles == ["user", "assistant", "tool", "assistant"]


async def test_model_calls_are_counted_with_tokens_and_cost_or_as_unpriced(opened: Any, talk: Any) -> None:
    finished = await talk(await opened(), "say Hello", "say Again")
    usage = finished.trace.usage["agent"]
    assert (usage.calls, usage.input_tokens, usage.cached_tokens) == (4, 400, 60)
    assert (usage.output_tokens, usage.reasoning_tokens) == (40, 4)
    assert (usage.cost, usage.unpriced_calls) == (0.5, 2)
    made = [(call.turn, call.model, call.seconds) for call in finished.trace.model_calls]
    assert made == [(n, name, 0.5) for n in (1, 2) for name in ("openai/gpt-4o-mini", "hosted_vllm/mine")]


async def test_a_terminal_tool_ends_the_rollout_and_nothing_more_is_said(opened: Any, talk: Any) -> None:
    finished = await talk(await opened(), use(("transfer", {})), "say Never")
    assert finished.trace.stop_reason == "terminal_tool"
    assert [line.speaker for line in finished.trace.lines] == ["user"]


async def test_the_steps_of_a_row_end_a_turn_from_within(opened: Any, talk: Any) -> None:
    finished = await talk(await opened(), use(*[("ping", {})] * 5), max_steps=3)
    assert finished.trace.stop_reason == "max_steps"
    assert len(finished.trace.tool_calls) == 3


async def test_fastworkflows_steps_are_kept_where_the_user_does_not_hear_them(opened: Any, talk: Any) -> None:
    finished = await talk(await opened(), "think First this, then that.")
    reply = finished.trace.messages[1]
    assert reply["reasoning_content"] == "First this, then that."
    assert finished.trace.lines[1].text == "Thought about it."


async def test_no_answer_is_the_agents_error(opened: Any, talk: Any) -> None:
    finished = await talk(await opened(), "exhausted ")
    assert finished.trace.stop_reason == "agent_error"
    assert finished.trace.stop_detail == "FastWorkflow gave no answer (max_iters_exhausted)"
    assert finished.trace.reward == 0.0


@pytest.mark.parametrize(
    ("fault", "reason", "setup"),
    [
        ("model LMRateLimitError 429", "infrastructure_error", False),
        ("model ContextWindowExceededError 400", "agent_error", False),
        ("model LMAuthError 401", "infrastructure_error", True),
        ("tools URLError 0", "infrastructure_error", False),
        ("agent TypeError 0", "agent_error", False),
    ],
)
async def test_faults_are_blamed_right(opened: Any, talk: Any, fault: str, reason: str, setup: bool) -> None:
    finished = await talk(await opened(), f"fail {fault}")
    assert finished.trace.stop_reason == reason
    assert (finished.refused is not None) == setup
    assert fault.split()[1] in finished.trace.stop_detail
    assert "sk-0123456789ab" not in finished.trace.stop_detail


async def test_rollouts_at_once_keep_to_themselves_in_one_process(opened: Any, talk: Any) -> None:
    factory = await opened()
    booked, other = await asyncio.gather(
        talk(factory, use(("create_booking", {"flight_id": 1, "passenger": "Alice"})), "count ."),
        talk(factory, "say Hello", "say Hello", "count ."),
    )
    assert len(booked.database.changes()) == 1
    assert len(other.database.changes()) == 0
    turns = [finished.trace.lines[-2].text for finished in (booked, other)]
    (pid,) = [worker.process.pid for worker in factory.workers]
    assert turns == [f"turn 2 in process {pid}", f"turn 3 in process {pid}"]


@pytest.mark.parametrize(("policy", "seen"), [("none", "null"), ("insights", '"Sell only seats."')])
async def test_the_policy_reaches_a_planner_if_asked(opened: Any, talk: Any, policy: str, seen: str) -> None:
    factory = await opened(fastworkflow_policy=policy)
    finished = await talk(factory, "tell policy", system_prompt="Sell only seats.")
    assert finished.trace.lines[1].text == seen


async def test_what_was_said_before_the_first_turn_is_handed_over_too(opened: Any, tmp_path: Path) -> None:
    factory = await opened()
    lines = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "What is it?"},
        {"role": "user", "content": "A seat"},
    ]
    finished = await play(small_task(tmp_path, initial_messages=lines), factory())
    assert finished.trace.lines[-1].text == "user: Hello\nagent: What is it?\nuser: A seat"


async def test_model_and_arguments_go_to_the_worker_by_its_environment(opened: Any, talk: Any) -> None:
    given = {"model": "gpt-4o", "provider": "openai", "temperature": 0.0, "retries": 1}
    factory = await opened(**given, model_args={"seed": 7, "api_key": "0123456789abcdef"})
    told = {}
    for name in ("LLM_AGENT", "LLM_PLANNER", "LLM_PARAM_EXTRACTION", "REWARD_KIT_FASTWORKFLOW_MODEL_ARGS"):
        told[name] = json.loads((await talk(factory, f"tell {name}")).trace.lines[1].text)
    arguments = json.loads(told.pop("REWARD_KIT_FASTWORKFLOW_MODEL_ARGS"))
    assert {f"LLM_{role}": model for role, model in factory.models.items()} == told
    planning = {"LLM_AGENT": "openai/gpt-4o", "LLM_PLANNER": "openai/gpt-4o"}
    assert told == {**planning, "LLM_PARAM_EXTRACTION": "openai/param_extraction"}
    assert arguments == {"num_retries": 1, "temperature": 0.0, "seed": 7, "api_key": "[hidden]"}
