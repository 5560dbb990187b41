"""The agent whose model writes a thought and an action as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_task import InProcessModel, ScriptedUser, airline, play, small_task, wants
from stub_server import Answer, StubServer, calls

from reward_kit.agent import EvaluationConfig, load_rollout, run_evaluation
from reward_kit.agent.agents import load_agent
from reward_kit.agent.llm import LiteLLMModel
from reward_kit.errors import BundleError

ROOT = Path(__file__).parents[2]
AGENT = "gpt-4o-mini"
USER = "gpt-3.5-turbo"


def action(name: str, thought: str = "I go on.", /, **arguments: Any) -> str:
    """An answer in the form that is asked for."""
    return f"Thought:\n{thought}\nAction:\n{json.dumps({'name': name, 'arguments': arguments})}"


def reply(content: str, thought: str = "I say it.") -> str:
    return action("respond", thought, content=content)


async def talk(folder: Path, answers: list[Any], *, lines: list[str] | None = None, **options: Any) -> Any:
    """Play the answers; the model is at ``.models["agent"]`` of the rollout that comes back."""
    task = options.pop("task", None) or small_task(folder, system_prompt="Sell flights.")
    user = ScriptedUser(lines) if lines is not None else None
    model = InProcessModel(answers)
    agent = load_agent("react")()
    return (await play(task, agent, user=user, models={"agent": model}, **options)).rollout


async def test_the_model_is_told_the_policy_the_tools_and_how_to_answer(tmp_path: Path) -> None:
    rollout = await talk(tmp_path, [reply("Hello")])
    model = rollout.models["agent"]
    system, user = model.seen[0]
    policy, tools, form = system["content"].split("\n\n# ")
    assert policy == "Sell flights."
    assert json.loads(tools.removeprefix("Available tools\n\n")) == airline().get_openai_tools()
    assert "Thought:" in form
    assert '"respond"' in form
    assert user == {"role": "user", "content": "Book me a flight"}
    assert model.tools == [None]


async def test_an_action_is_a_tool_call_and_its_result_comes_as_text(tmp_path: Path) -> None:
    rollout = await talk(tmp_path, [action("ping", "Is it there?"), reply("It is.", "It answers.")], lines=[])
    called, observed, said = rollout.messages[2:5]
    assert called["content"] == "Is it there?"
    assert called["tool_calls"][0]["function"] == {"name": "ping", "arguments": "{}"}
    assert (observed["role"], observed["tool_call_id"], observed["content"]) == (
        "tool",
        called["tool_calls"][0]["id"],
        "pong",
    )
    assert said == {"role": "assistant", "content": "It is.", "reasoning_content": "It answers."}
    assert rollout.models["agent"].seen[1][2:] == [
        {"role": "assistant", "content": action("ping", "Is it there?")},
        {"role": "user", "content": "API output: pong"},
    ]
    assert (rollout.steps, rollout.turns, rollout.stop_reason) == (2, 1, "user_stop")


async def test_a_thought_never_reaches_the_user(tmp_path: Path) -> None:
    answers = [
        {"role": "assistant", "content": reply("One", "secret"), "reasoning_content": "secret too"},
        f"<think>secret</think>{reply('Two')}",
        "Three\nThought: secret",
        "Action: " + json.dumps({"name": "respond", "arguments": {"content": "<think>secret</think>Four"}}),
    ]
    rollout = await talk(tmp_path, answers, lines=["a", "b", "c"])
    assert [line.text for line in rollout.lines if line.speaker == "agent"] == ["One", "Two", "Three", "Four"]
    assert rollout.messages[2]["reasoning_content"] == "secret too\nsecret"


async def test_the_transcript_goes_on_over_the_turns(tmp_path: Path) -> None:
    rollout = await talk(tmp_path, [reply("Where to?"), action("ping"), reply("Done")], lines=["JFK"])
    seen = rollout.models["agent"].seen
    assert [message["role"] for message in seen[2]] == [
        "system",
        *("user", "assistant", "user", "assistant", "user"),
    ]
    assert seen[2][:4] == seen[1]
    assert seen[1][3] == {"role": "user", "content": "JFK"}


async def test_a_conversation_that_has_begun_is_told_as_text(tmp_path: Path) -> None:
    opening = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!", "reasoning_content": "Greet."},
        {"role": "user", "content": "Book"},
        wants(("ping", {}), ("search_flights", {"origin": "é", "dest": "JFK"}), content="Two things."),
        {"role": "tool", "tool_call_id": "c1", "content": "[]"},
        {"role": "tool", "tool_call_id": "c0", "content": "pong"},
    ]
    rollout = await talk(tmp_path, [reply("No")], task=small_task(tmp_path, initial_messages=opening))
    assert rollout.models["agent"].seen[0][1:] == [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": 'Thought:\nGreet.\nAction:\n{"name": "respond", "arguments": {"content": "Hello!"}}',
        },
        {"role": "user", "content": "Book"},
        {
            "role": "assistant",
            "content": 'Thought:\nTwo things.\nAction:\n{"name": "ping", "arguments": {}}',
        },
        {"role": "user", "content": "API output: pong"},
        {
            "role": "assistant",
            "content": 'Action:\n{"name": "search_flights", "arguments": {"origin": "é", "dest": "JFK"}}',
        },
        {"role": "user", "content": "API output: []"},
    ]


async def test_an_unusable_answer_is_told_to_the_model_and_costs_a_step(tmp_path: Path) -> None:
    rollout = await talk(tmp_path, ["Action: {'name': ", "", action("ping"), "Action:", reply("Done")])
    seen = rollout.models["agent"].seen
    assert seen[1][-2] == {"role": "assistant", "content": "Action: {'name':"}
    assert "could not be used: the JSON object is not closed" in seen[1][-1]["content"]
    assert "it is empty" in seen[2][-1]["content"]
    assert all(message["content"] for message in seen[4])
    assert (rollout.steps, rollout.stop_reason) == (5, "agent_done")
    assert [message["role"] for message in rollout.messages[2:]] == ["assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Thought: only this",
        "<think>only this",
        "Action:",
        "Action: " + "long " * 100,
        "Action: {'name': 'ping', 'arg",
        "Action: [1]",
        '{"status": "ok"}',
        '{"name": "respond", "arguments": {}}',
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": None, "reasoning_content": "all of it"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": None}]},
        wants(("", {})),
        wants(("respond", {})),
    ],
)
async def test_unusable_answers_in_a_row_are_the_agents_error(tmp_path: Path, text: Any) -> None:
    rollout = await talk(tmp_path, [action("ping"), text])
    assert (rollout.stop_reason, rollout.steps) == ("agent_error", 4)
    assert "3 answers in a row could not be used" in rollout.stop_detail
    assert len(rollout.stop_detail) < 500
    assert [message["role"] for message in rollout.messages[2:]] == ["assistant", "tool"]


async def test_the_error_shows_the_beginning_of_the_answer(tmp_path: Path) -> None:
    rollout = await talk(tmp_path, ["Action: I would rather not"])
    assert "Action: I would rather not" in rollout.stop_detail
    assert 'no JSON object after "Action:"' in rollout.stop_detail


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [
        ('Action: {"name": "serch_flights", "arguments": {}}', "unknown_tool", "search_flights"),
        ('Action: {"name": "two words!", "arguments": {}}', "unknown_tool", "unknown tool"),
        ('Action: {"name": "pay_booking", "arguments": {}}', "invalid_arguments", "booking_id"),
        ('Action: {"name": "pay_booking", "arguments": [1]}', "invalid_arguments", "Error: "),
        ('Action: {"name": "pay_booking", "arguments": "B1"}', "invalid_arguments", "JSON"),
        ('Action: {"name": "pay_booking", "arguments": {"booking_id": "\\ud83d"}}', "refused", "no such"),
        ("Action: ping", "ok", "pong"),
        ({"role": "assistant", "content": None, **wants(("ping", None))}, "ok", "pong"),
    ],
)
async def test_a_call_that_fails_is_told_to_the_model(
    tmp_path: Path, text: Any, status: str, told: str
) -> None:
    rollout = await talk(tmp_path, [text, reply("Done")])
    assert [call.status for call in rollout.tool_calls] == [status]
    assert told in rollout.models["agent"].seen[1][-1]["content"]
    assert rollout.stop_reason == "agent_done"
    json.dumps(rollout.messages, ensure_ascii=False).encode()


async def test_native_tool_calls_are_taken_as_actions(tmp_path: Path) -> None:
    native = wants(("ping", {}), ("transfer", {}), content="Let me see")
    spoken = wants(("respond", {"content": "Done"}), content="<think>hm</think>")
    rollout = await talk(tmp_path, [native, spoken], lines=[])
    assert [call.name for call in rollout.tool_calls] == ["ping"]
    assert len(rollout.messages[2]["tool_calls"]) == 1
    assert rollout.models["agent"].seen[1][2]["content"] == (
        'Thought:\nLet me see\nAction:\n{"name": "ping", "arguments": {}}'
    )
    assert rollout.lines[1].text == "Done"
    assert rollout.messages[-2] == {"role": "assistant", "content": "Done", "reasoning_content": "hm"}


async def test_a_made_up_result_is_never_seen_again(tmp_path: Path) -> None:
    made_up = f"{action('ping')}\nAPI output: gnop\n{reply('It says gnop')}"
    rollout = await talk(tmp_path, [made_up, reply("Done")], lines=[])
    assert "gnop" not in str(rollout.models["agent"].seen[1])
    assert [line.text for line in rollout.lines] == ["Book me a flight", "Done", "###STOP###"]


async def test_a_refusal_is_said_in_the_models_words(tmp_path: Path) -> None:
    refusal = {"role": "assistant", "content": None, "provider_specific_fields": {"refusal": "I must not."}}
    assert (await talk(tmp_path, [refusal])).lines[-1].text == "I must not."


async def test_a_terminal_tool_and_the_last_step_end_it(tmp_path: Path) -> None:
    assert (await talk(tmp_path, [action("transfer")])).stop_reason == "terminal_tool"
    rollout = await talk(tmp_path, [action("ping")], max_steps=4)
    assert (rollout.stop_reason, len(rollout.tool_calls)) == ("max_steps", 4)


async def test_a_tool_called_respond_is_refused_before_the_run(tmp_path: Path) -> None:
    registry = airline()

    @registry.tool(description="Speak", parameters={})
    async def respond() -> str:
        return ""

    with pytest.raises(BundleError, match="tool-calling"):
        load_agent("react")().check(small_task(tmp_path, registry=registry))  # type: ignore[attr-defined]


HOSTILE = [
    'Action: {"name": "ping", "arguments": {}}',
    "Action: {'name': 'pay_booking', 'arguments': {'booking_id': 'it's'}}",
    calls(("ping", "{"), ("ping", "[1]")),
    calls(("pay_booking", '{"booking_id": "\\ud83d"}')),
    "no action at all",
    Answer(content=None),
    Answer(content="<think>hm", finish_reason="length"),
    Answer(content="Action: \ud800", finish_reason="length"),
    Answer(content=None, message={"refusal": "I cannot help with that"}),
    Answer(content="Thought: x\nAction:\n```json\n", finish_reason="content_filter"),
]


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("agent", ["react", "act", "tool-calling"])
async def test_whatever_a_model_answers_over_http_ends_in_a_reason(
    tmp_path: Path, stub_llm: StubServer, agent: str, hostile: Any
) -> None:
    stub_llm.script(AGENT, [hostile])
    model = LiteLLMModel(f"openai/{AGENT}", temperature=0.25, retries=0)
    finished = await play(
        small_task(tmp_path), load_agent(agent)(), user=ScriptedUser(["Go on"]), models={"agent": model}
    )
    assert finished.rollout.stop_reason in {"user_stop", "agent_error", "max_steps"}
    assert "Traceback" not in (finished.rollout.stop_detail or "")
    assert finished.reward == 0.0
    assert {request["temperature"] for request in stub_llm.requests} == {0.25}
    assert all(("tools" in request) == (agent == "tool-calling") for request in stub_llm.requests)
    assert all("<think>" not in line.text for line in finished.rollout.lines)


async def test_a_retail_task_is_solved_with_actions_as_text(tmp_path: Path, stub_llm: StubServer) -> None:
    rows = [json.loads(line) for line in (ROOT / "tau_retail_task" / "task.jsonl").open(encoding="utf-8")]
    row = next(row for row in rows if row["id"] == "retail.test.002")
    gold = [action(call["name"], **call["arguments"]) for call in row["actions"]]
    gold[3] = gold[3].replace("Action:\n", "Action:\n```json\n") + "\n```"
    gold[4] = 'I look at the order.\nAction: get_order_details\nAction Input: {"order_id": "#W6247578"}'
    gold[5] = "Thought: next\nAction: {'name': 'get_order_details', 'arguments': {'order_id': '#W9711842'}}"
    said = " and ".join(row["outputs"])
    stub_llm.script(AGENT, [reply("Who are you?"), *gold, reply(f"There are {said}, and it is done.")])
    stub_llm.script(USER, ["I want to return things", "Yusuf Rossi, 19122", "Thanks ###STOP###"])
    config = EvaluationConfig(
        dataset=str(ROOT / "tau_retail_task"),
        task_ids=("retail.test.002",),
        agent="react",
        model=AGENT,
        provider="openai",
        temperature=0,
        model_args={"top_p": 0.5},
        sim_model=f"openai/{USER}",
        output_dir=str(tmp_path),
    )
    (outcome,) = (await run_evaluation(config)).outcomes
    assert (outcome.reward, outcome.stop_reason) == (1.0, "user_stop")
    first = stub_llm.requests_for(AGENT)[0]
    assert (first["temperature"], first["top_p"]) == (0, 0.5)
    assert "tools" not in first
    (path,) = tmp_path.glob("*/roll_*.json")
    assert [made.name for made in load_rollout(path).tool_calls] == [call["name"] for call in row["actions"]]
    again = EvaluationConfig(
        dataset=config.dataset,
        task_ids=config.task_ids,
        agent=f"replay:{path}",
        user=f"replay:{path}",
        output_dir=str(tmp_path / "again"),
    )
    assert [played.reward for played in (await run_evaluation(again)).outcomes] == [1.0]
