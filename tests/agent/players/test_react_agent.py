"""The agents whose models write an action as text, with a thought before it or without."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from small_task import airline, play_answers, small_task, wants

from reward_kit.agent import TaskView, load_agent
from reward_kit.errors import BundleError


def act(name: str, /, **arguments: Any) -> str:
    return f"Action:\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}"


def action(name: str, thought: str = "I go on.", /, **arguments: Any) -> str:
    """An answer in the form that is asked for."""
    return f"Thought:\n{thought}\n{act(name, **arguments)}"


def reply(content: str, thought: str = "I say it.") -> str:
    return action("respond", thought, content=content)


talk = partial(play_answers, "react", row={"system_prompt": "Sell flights."})


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
    assert (observed["role"], observed["content"]) == ("tool", "pong")
    assert observed["tool_call_id"] == called["tool_calls"][0]["id"]
    assert said == {"role": "assistant", "content": "It is.", "reasoning_content": "It answers."}
    assert rollout.models["agent"].seen[1][2:] == [
        {"role": "assistant", "content": action("ping", "Is it there?")},
        {"role": "user", "content": "API output: pong"},
    ]
    assert (rollout.steps, rollout.turns, rollout.stop_reason) == (2, 1, "user_stop")


async def test_an_agent_without_thoughts_writes_actions_alone(tmp_path: Path) -> None:
    answers = [act("respond", content="Shall I?"), act("ping"), act("respond", content="It answers.")]
    rollout = await play_answers("act", tmp_path, answers, lines=["Yes"])
    assert "Thought" not in rollout.models["agent"].seen[0][0]["content"]
    assert [line.text for line in rollout.lines if line.speaker == "agent"] == ["Shall I?", "It answers."]
    assert [call.name for call in rollout.tool_calls] == ["ping"]
    assert rollout.messages[-2] == {"role": "assistant", "content": "It answers."}


async def test_a_thought_never_reaches_the_user(tmp_path: Path) -> None:
    answers = [
        {"role": "assistant", "content": reply("One", "secret"), "reasoning_content": "secret too"},
        f"<think>secret</think>{reply('Two')}",
        "Three\nThought: secret",
        act("respond", content="<think>secret</think>Four"),
    ]
    rollout = await talk(tmp_path, answers, lines=["a", "b", "c"])
    assert [line.text for line in rollout.lines if line.speaker == "agent"] == ["One", "Two", "Three", "Four"]
    assert rollout.messages[2]["reasoning_content"] == "secret too\nsecret"


async def test_a_conversation_that_has_begun_is_told_as_text(tmp_path: Path) -> None:
    opening = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!", "reasoning_content": "Greet."},
        {"role": "user", "content": "Book"},
        wants(("ping", {}), ("search_flights", {"origin": "é", "dest": "JFK"}), content="Two things."),
        {"role": "tool", "tool_call_id": "c1", "content": "[]"},
        {"role": "tool", "tool_call_id": "c0", "content": "pong"},
    ]
    rollout = await talk(tmp_path, [reply("No")], row={"initial_messages": opening})
    assert rollout.models["agent"].seen[0][1:] == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": reply("Hello!", "Greet.")},
        {"role": "user", "content": "Book"},
        {"role": "assistant", "content": action("ping", "Two things.")},
        {"role": "user", "content": "API output: pong"},
        {"role": "assistant", "content": act("search_flights", origin="é", dest="JFK")},
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
        "Action: " + "long " * 100,
        {"role": "assistant", "content": None, "reasoning_content": "all of it"},
        wants(("respond", {})),
    ],
)
async def test_unusable_answers_in_a_row_are_the_agents_error(tmp_path: Path, text: Any) -> None:
    rollout = await talk(tmp_path, [action("ping"), text])
    assert (rollout.stop_reason, rollout.steps) == ("agent_error", 4)
    assert "3 answers in a row could not be used" in rollout.stop_detail
    assert len(rollout.stop_detail) < 500
    assert [message["role"] for message in rollout.messages[2:]] == ["assistant", "tool"]


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


async def test_a_tool_called_respond_is_refused_before_the_run(tmp_path: Path) -> None:
    registry = airline()

    @registry.tool(description="Speak", parameters={})
    async def respond() -> str:
        return ""

    agent: Any = load_agent("react")()
    with pytest.raises(BundleError, match="tool-calling"):
        agent.check(TaskView(small_task(tmp_path, registry=registry)))
