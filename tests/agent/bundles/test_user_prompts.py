"""The prompts of simulated users: the built-in ones, those of a bundle, and those of a row."""

import json

import pytest
from flight_bundle import TOOLS, Bundle
from hypothesis import given
from hypothesis import strategies as st
from stub_server import StubServer, calls

from reward_kit.agent import TaskBundle, agent_eval
from reward_kit.agent.base.history import Line
from reward_kit.agent.base.text import filled
from reward_kit.agent.players.users.llm import labelled, prompt, swap_roles
from reward_kit.errors import BundleError


def prompt_of(bundle: Bundle, name: str = "user", **parts: str) -> str:
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0) as episode:
        return prompt(episode.user_rollout, name, **parts)


def test_a_rows_prompt_goes_before_the_bundles_and_that_before_the_built_in(bundle: Bundle) -> None:
    assert "You are Alice, a traveller." in prompt_of(bundle)
    bundle.write("prompts/user.txt", "Play this: {instruction}\n")
    assert prompt_of(bundle) == "Play this: You are Alice, a traveller."
    bundle.rows({"sim_user_template": "Be {instruction}"})
    assert prompt_of(bundle) == "Be You are Alice, a traveller."


def test_each_prompt_of_a_strategy_can_be_replaced(bundle: Bundle) -> None:
    bundle.write("prompts/user_verify.txt", "{line}? {conversation}! {instruction}")
    assert prompt_of(bundle, "user_verify", line="{conversation}", conversation="C") == (
        "{conversation}? C! You are Alice, a traveller."
    )
    assert "User Response:" in prompt_of(bundle, "user_react")


@pytest.mark.parametrize("template", ["Be yourself", "", "{Instruction}", "{ instruction }"])
def test_a_rows_prompt_without_a_place_for_the_instruction_is_refused(bundle: Bundle, template: str) -> None:
    bundle.rows({"id": "a", "sim_user_template": template}, {"id": "b", "sim_user_template": template})
    with pytest.raises(BundleError) as raised:
        TaskBundle.load(bundle.dataset)
    assert str(raised.value) == (
        "task.jsonl:1: row 'a', field 'sim_user_template': has no {instruction}; write it where the text "
        "belongs that takes its place (also in 1 more row)"
    )


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("act.txt", "{tools}", r"^prompts/act\.txt: has no \{policy\}; write it"),
        ("greetings.txt", "Hi", r"^prompts/greetings\.txt: nobody reads this prompt"),
        ("user.txt", "Hello", r"^prompts/user\.txt: has no \{instruction\}; write it"),
        ("user_verify.txt", "{line}", r"^prompts/user_verify\.txt: has no \{conversation\}; write it"),
        ("user_reflect.txt", "", r"has no \{conversation\} and no \{line\}"),
        ("user_llm.txt", "{instruction}", r"^prompts/user_llm\.txt: nobody reads .*user\.txt, user_re"),
    ],
)
def test_a_faulty_prompt_of_a_bundle_is_told(bundle: Bundle, name: str, text: str, fault: str) -> None:
    bundle.write(f"prompts/{name}", text)
    with pytest.raises(BundleError, match=fault):
        TaskBundle.load(bundle.dataset)


def test_models_see_the_prompts_of_the_bundle_as_they_stand(bundle: Bundle, stub_llm: StubServer) -> None:
    bundle.write("policy.md", "The policy.\n")
    bundle.write("tools.py", f"{TOOLS}\nR.parallel_tool_calls = False\n")
    silent = {"initial_messages": [], "n_rollouts": 1}
    bundle.rows({"system_prompt": "file:policy.md", "sim_user_prompt": "You are Bob. ", **silent})
    prompts = {
        "user_react": "<{instruction}>\n",
        "greeting": "Yes?",
        "stop": "###TRANSFER###\n###LEAVE###",
        "react": "{policy}#Tools\n{tools}\n",
    }
    for name, text in prompts.items():
        bundle.write(f"prompts/{name}.txt", f"{text}\n")
    stub_llm.script("gpt-4o", ['Action:\n{"name": "respond", "arguments": {"content": "Where to?"}}'])
    stub_llm.script("gpt-4o-mini", ["Thought:\nx\n\nUser Response:\nHi", "User Response:\n###LEAVE### Bye"])
    models = {"model": "openai/gpt-4o", "sim_model": "openai/gpt-4o-mini"}
    result = agent_eval(bundle.dataset, agent="react", user="react", **models)
    assert [outcome.stop_reason for outcome in result.outcomes] == ["user_stop"]
    (agent,), (user, _) = map(stub_llm.requests_for, ("gpt-4o", "gpt-4o-mini"))
    with TaskBundle.load(bundle.dataset) as loaded:
        tools = json.dumps(loaded.tasks[0].registry.get_openai_tools())
    assert agent["messages"][0]["content"] == f"The policy.\n#Tools\n{tools}\n"
    assert [message["content"] for message in user["messages"]] == ["<You are Bob. >\n", "Yes?"]
    stub_llm.script("gpt-4o", [calls(("ping", {}), ("ping", {})), "Done."])
    again = agent_eval(bundle.dataset, user="none", **models)
    assert [len(record.tool_calls) for record in again.records()] == [1]
    assert "parallel_tool_calls" not in stub_llm.requests_for("gpt-4o")[-1]


def test_verify_can_show_the_messages_as_tau_bench_does(bundle: Bundle) -> None:
    bundle.write("prompts/user_verify.txt", "{messages} / {line}")
    lines = [Line("user", "Hi"), Line("agent", "Where to?")]
    messages = [{"role": "system", "content": "S"}, *swap_roles(lines, "Yes?")]
    said = "System: S\nCustomer: Yes?\nAgent: Hi\nCustomer: Where to?"
    assert prompt_of(bundle, "user_verify", line="Oh", messages=labelled(messages)) == f"{said} / Oh"


@given(st.text(), st.text())
def test_what_is_filled_in_is_not_filled_again(instruction: str, line: str) -> None:
    text = filled("<{instruction}|{line}|{other}>", instruction=instruction, line=line)
    assert text == f"<{instruction}|{line}|{{other}}>"
