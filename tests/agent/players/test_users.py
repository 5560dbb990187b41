"""Simulated users, and finding agents and users by name."""

from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle
from small_task import InProcessModel, ScriptedUser, small_task, wants

from reward_kit.agent import TaskBundle, agent_eval, load_agent
from reward_kit.agent.players.names import user_of
from reward_kit.errors import BundleError, UsageError

USER = "llm"
GREETING = "Hello! What can I do for you today?"
PLAYERS = "nothing = 3"
ROWS = [{"id": "talk", "actions": GOLD}, {"id": "single", "sim_user_prompt": None, "actions": GOLD}]


async def test_the_user_speaks_first_as_if_it_had_been_greeted(conversation: Any) -> None:
    rollout, model = await conversation(["Where to?"], ["I want a seat", "###STOP###"], initial_messages=[])
    system, greeting = model.seen[0]
    assert system["role"] == "system"
    assert "You are Alice {and} you want a seat." in system["content"]
    assert "###STOP###" in system["content"]
    assert greeting == {"role": "user", "content": GREETING}
    assert rollout.messages[0] == {"role": "user", "content": "I want a seat"}


async def test_the_user_hears_what_is_said_aloud_and_nothing_else(conversation: Any) -> None:
    thinking = {**wants(("ping", {}), content="aside"), "reasoning_content": "secret"}
    reply = {"role": "assistant", "content": "Where to?", "reasoning_content": "secret"}
    _, model = await conversation([thinking, reply, "Done"], ["JFK", "###STOP###"], system_prompt="policy")
    assert [(message["role"], message["content"]) for message in model.seen[1][1:]] == [
        ("user", GREETING),
        ("assistant", "Book me a flight"),
        ("user", "Where to?"),
        ("assistant", "JFK"),
        ("user", "Done"),
    ]
    assert all(message.keys() == {"role", "content"} for message in model.seen[1])
    assert "policy" not in str(model.seen)


async def test_an_empty_line_is_asked_for_again(conversation: Any) -> None:
    rollout, model = await conversation(["Done"], ["", "  ###STOP###  "])
    assert rollout.stop_reason == "user_stop"
    assert rollout.messages[-1]["content"] == "###STOP###"
    assert len(model.seen) == 2


@pytest.mark.parametrize(
    ("agent", "prompt", "expected"),
    [
        ("tool-calling", "You are Alice.", "llm"),
        ("tool-calling", None, "none"),
        ("my_agents:make", "You are Alice.", "llm"),
        ("gold", "You are Alice.", "none"),
        ("replay:runs", "You are Alice.", "replay:runs"),
    ],
)
def test_an_agent_gets_its_user(tmp_path: Path, agent: str, prompt: str | None, expected: str) -> None:
    assert user_of(small_task(tmp_path, sim_user_prompt=prompt).row, agent) == expected


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ("tool-caling", "there is no agent 'tool-caling'"),
        ("missing_module:make", "missing_module cannot be imported"),
        ("{own}:missing", "has no missing"),
        ("{own}:nothing", "is int"),
    ],
)
def test_an_agent_that_cannot_be_found_is_told(bundle: Bundle, spec: str, fault: str) -> None:
    with pytest.raises(BundleError, match=fault):
        load_agent(spec.format(own=bundle.players))


@pytest.mark.parametrize("strategy", ["react", "verify"])
def test_a_user_that_a_model_plays_asks_for_one(bundle: Bundle, strategy: str) -> None:
    with pytest.raises(UsageError, match=rf"the simulated user \({strategy}\) needs a model of its own"):
        agent_eval(bundle.dataset, agent="gold", user=strategy)


@pytest.mark.parametrize("strategy", ["llm", "verify"])
def test_a_user_that_a_model_plays_is_not_in_rows_without_a_prompt(bundle: Bundle, strategy: str) -> None:
    models = {"agent": InProcessModel(["Where to?"]), "user": InProcessModel(["true ###STOP###"])}
    result = agent_eval(bundle.dataset, user=strategy, models=models, n_rollouts=1)
    ends = {outcome.row_id: (outcome.stop_reason, "user" in outcome.usage) for outcome in result.outcomes}
    assert ends == {"talk": ("user_stop", True), "single": ("agent_done", False)}


@pytest.mark.parametrize("strategy", ["llm", "verify"])
def test_a_user_with_no_part_in_any_row_is_an_error(bundle: Bundle, strategy: str) -> None:
    models = {"agent": InProcessModel(["Where to?"]), "user": InProcessModel(["###STOP###"])}
    with pytest.raises(UsageError, match=f"--user {strategy} has no effect: none of the selected rows"):
        agent_eval(bundle.dataset, user=strategy, models=models, task_ids="single")
    assert models["agent"].seen == []


@pytest.mark.parametrize(("line", "ends"), [("I CALL about seat 2.", False), ("Bye. CALL ENDED", True)])
async def test_a_line_of_stop_txt_is_one_token(bundle: Bundle, line: str, ends: bool) -> None:
    bundle.write("prompts/stop.txt", "CALL ENDED\n\nHANGS UP\n")
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0, user=ScriptedUser([line])) as episode:
        await episode.say("Hello")
        assert (episode.stop_reason == "user_stop") is ends
