"""The prompts of simulated users: the built-in ones, those of a bundle, and those of a row."""

import pytest
from flight_bundle import Bundle
from hypothesis import given
from hypothesis import strategies as st

from reward_kit.agent import TaskBundle
from reward_kit.agent.users.llm import filled, prompt
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
        ("user.txt", "Hello", r"^prompts/user\.txt: has no \{instruction\}; write it"),
        ("user_verify.txt", "{line}", r"^prompts/user_verify\.txt: has no \{conversation\}; write it"),
        ("user_reflect.txt", "", r"has no \{conversation\} and no \{line\}"),
        ("user_llm.txt", "{instruction}", r"^prompts/user_llm\.txt: no simulated user reads .*user\.txt"),
    ],
)
def test_a_faulty_prompt_of_a_bundle_is_told(bundle: Bundle, name: str, text: str, fault: str) -> None:
    bundle.write(f"prompts/{name}", text)
    with pytest.raises(BundleError, match=fault):
        TaskBundle.load(bundle.dataset)


@given(st.text(), st.text())
def test_what_is_filled_in_is_not_filled_again(instruction: str, line: str) -> None:
    text = filled("<{instruction}|{line}|{other}>", instruction=instruction, line=line)
    assert text == f"<{instruction}|{line}|{{other}}>"
