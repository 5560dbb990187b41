"""Trajectories of tau-bench, read in each of the forms that its agents write."""

import json
from typing import Any

from tau_bench_file import native, text

from reward_kit.agent.base.history import NOT_RUN
from reward_kit.agent.base.types import Message
from reward_kit.agent.tau.results.tau_bench import messages_of

ROW = {
    "actions": [
        {"name": "get_order_details", "arguments": {"order_id": "#W1"}},
        {"name": "cancel_pending_order", "arguments": {"order_id": "#W1", "reason": "no longer needed"}},
    ]
}
RESULTS = ['{"order_id": "#W1"}', "Error: order not found"]


def calls_of(messages: list[Message]) -> list[tuple[str, Any]]:
    """The calls that were run."""
    results = {each["tool_call_id"]: each["content"] for each in messages if each["role"] == "tool"}
    return [
        (call["function"]["name"], call["function"]["arguments"])
        for message in messages
        for call in message.get("tool_calls") or ()
        if results.get(call["id"]) != NOT_RUN
    ]


def texts_of(messages: list[Message], role: str) -> list[Any]:
    return [one["content"] for one in messages if one["role"] == role and not one.get("tool_calls")]


def assistant(content: str | None, *names: str) -> dict[str, Any]:
    calls = [{"id": it, "type": "function", "function": {"name": it, "arguments": "{}"}} for it in names]
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


def tool(content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "x", "name": "x", "content": content}


def test_native_calls_and_text_actions_are_the_same_conversation() -> None:
    by_tools = messages_of(native(ROW, RESULTS))
    by_react = messages_of(text(ROW, RESULTS))
    by_act = messages_of(text(ROW, RESULTS, thought=""))
    wanted = [(action["name"], action["arguments"]) for action in ROW["actions"]]
    for messages in (by_tools, by_react, by_act):
        assert [(name, json.loads(arguments)) for name, arguments in calls_of(messages)] == wanted
        assert texts_of(messages, "tool") == RESULTS
        assert texts_of(messages, "assistant") == ["Done."]
        assert texts_of(messages, "user") == ["Hi, I need help.", "###STOP###"]
        ids = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
        assert ids == [message["tool_call_id"] for message in messages if message["role"] == "tool"]
        assert len(set(ids)) == 2
    assert by_react[1]["content"] == "Thought:\nHm."


def test_an_answer_that_is_no_action_was_said_as_it_stands_behind_the_last_action() -> None:
    traj = text(ROW, RESULTS)
    traj[2:2] = [
        {"role": "assistant", "content": "Thought:\nI ask.\nAction:\nWhat is your zip code?"},
        {"role": "user", "content": "19122"},
        {"role": "assistant", "content": "No action at all"},
        {"role": "user", "content": "Go on."},
    ]
    found = messages_of(traj)
    assert texts_of(found, "assistant") == ["What is your zip code?", "No action at all", "Done."]
    assert texts_of(found, "user") == ["Hi, I need help.", "19122", "Go on.", "###STOP###"]


def test_of_several_calls_those_with_a_result_were_run() -> None:
    found = messages_of([assistant("Let me see", "first", "second"), tool("one"), assistant("Well.")])
    assert [name for name, _ in calls_of(found)] == ["first"]
    assert len(found[0]["tool_calls"]) == 2
    asked = assistant(None, "first", "second")
    for traj in ([asked, tool("one"), tool("two"), assistant("Well.")], [asked]):  # or it ends there
        assert [name for name, _ in calls_of(messages_of(traj))] == ["first", "second"]


def test_calls_that_the_user_answered_were_never_run() -> None:
    found = messages_of([assistant("One moment.", "look_up"), {"role": "user", "content": "Yes?"}])
    assert (calls_of(found), texts_of(found, "assistant")) == ([], ["One moment."])
