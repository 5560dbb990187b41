"""Simulated users, and finding agents and users by name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, flight_bundle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_task import InProcessModel, play, small_task, wants
from stub_server import StubServer

from reward_kit.agent import agent_eval
from reward_kit.agent.agents import BUILT_IN as AGENTS
from reward_kit.agent.agents import load_agent
from reward_kit.agent.agents.tool_calling import ToolCallingAgent
from reward_kit.agent.users import default_user, load_user
from reward_kit.agent.users.llm import GREETING, LLMUser
from reward_kit.errors import BundleError, UsageError


async def conversation(
    folder: Path, agent: list[Any], user: list[Any], **fields: Any
) -> tuple[Any, InProcessModel]:
    """Play agent and user on in-process models; the rollout, and the user's model."""
    models = {"agent": InProcessModel(agent), "user": InProcessModel(user)}
    task = small_task(folder, **{"sim_user_prompt": "You are Alice {and} you want a seat.", **fields})
    finished = await play(task, ToolCallingAgent(), user=load_user("llm")(), models=models)
    return finished.rollout, models["user"]


async def test_the_user_speaks_first_as_if_it_had_been_greeted(tmp_path: Path) -> None:
    rollout, model = await conversation(
        tmp_path, ["Where to?"], ["I want a seat", "###STOP###"], initial_messages=[]
    )
    system, greeting = model.seen[0]
    assert system["role"] == "system"
    assert "You are Alice {and} you want a seat." in system["content"]
    assert "###STOP###" in system["content"]
    assert greeting == {"role": "user", "content": GREETING}
    assert rollout.messages[0] == {"role": "user", "content": "I want a seat"}


async def test_the_user_hears_what_is_said_aloud_and_nothing_else(tmp_path: Path) -> None:
    thinking = {**wants(("ping", {}), content="aside"), "reasoning_content": "secret"}
    reply = {"role": "assistant", "content": "Where to?", "reasoning_content": "secret"}
    _, model = await conversation(
        tmp_path, [thinking, reply, "Done"], ["JFK", "###STOP###"], system_prompt="policy"
    )
    assert [(message["role"], message["content"]) for message in model.seen[1][1:]] == [
        ("user", GREETING),
        ("assistant", "Book me a flight"),
        ("user", "Where to?"),
        ("assistant", "JFK"),
        ("user", "Done"),
    ]
    assert all(message.keys() == {"role", "content"} for message in model.seen[1])
    assert "policy" not in str(model.seen)


async def test_an_agent_that_greets_takes_the_place_of_the_greeting(tmp_path: Path) -> None:
    opening = [{"role": "assistant", "content": "Welcome!"}]
    _, model = await conversation(tmp_path, ["Done"], ["A seat", "###STOP###"], initial_messages=opening)
    assert [message["content"] for message in model.seen[0][1:]] == ["Welcome!"]


async def test_lines_of_the_same_speaker_are_one_message(tmp_path: Path) -> None:
    opening = [{"role": "user", "content": "Hello"}, {"role": "user", "content": "Anybody?"}]
    _, model = await conversation(tmp_path, ["Yes"], ["###STOP###"], initial_messages=opening)
    assert [message["content"] for message in model.seen[0][1:]] == [GREETING, "Hello\n\nAnybody?", "Yes"]


async def test_the_users_model_has_no_tools(tmp_path: Path) -> None:
    _, model = await conversation(tmp_path, ["Done"], ["###STOP###"])
    assert model.tools == [None]


async def test_an_empty_line_is_asked_for_again(tmp_path: Path) -> None:
    rollout, model = await conversation(tmp_path, ["Done"], ["", "  ###STOP###  "])
    assert rollout.stop_reason == "user_stop"
    assert rollout.messages[-1]["content"] == "###STOP###"
    assert len(model.seen) == 2


async def test_a_user_that_keeps_silent_is_at_fault(tmp_path: Path) -> None:
    rollout, model = await conversation(tmp_path, ["Done"], [""])
    assert rollout.stop_reason == "user_error"
    assert "empty" in rollout.stop_detail
    assert len(model.seen) == 3
    assert rollout.usage["user"].calls == 3


def test_no_user_is_made_by_none() -> None:
    assert load_user("none")() is None


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
def test_each_agent_gets_the_user_that_fits(
    tmp_path: Path, agent: str, prompt: str | None, expected: str
) -> None:
    assert default_user(small_task(tmp_path, sim_user_prompt=prompt).row, agent) == expected


OWN = """
class Polite:
    async def respond(self, rollout):
        return "Please"

def make():
    return Polite()

ready = Polite()
nothing = 3

class Mute:
    pass

def broken():
    raise ValueError("out of order")
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with agents in the working directory."""
    name = f"own_agents_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize("attribute", ["Polite", "make", "ready"])
async def test_an_agent_of_ones_own_is_found_in_the_working_directory(
    tmp_path: Path, own_module: str, attribute: str
) -> None:
    agent = load_agent(f"{own_module}:{attribute}")()
    assert (await play(small_task(tmp_path), agent)).rollout.lines[-1].text == "Please"


def test_each_rollout_gets_an_agent_of_its_own(own_module: str) -> None:
    make = load_agent(f"{own_module}:Polite")
    assert make() is not make()
    assert isinstance(load_user("llm")(), LLMUser)


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ("tool-caling", "there is no agent 'tool-caling'"),
        ("missing_module:make", "missing_module cannot be imported"),
        ("{own}:missing", "has no missing"),
        ("{own}:nothing", "is int"),
    ],
)
def test_an_agent_that_cannot_be_found_is_told(own_module: str, spec: str, fault: str) -> None:
    with pytest.raises(BundleError, match=fault):
        load_agent(spec.format(own=own_module))


@pytest.mark.parametrize(
    ("attribute", "fault"),
    [("Mute", "async def respond"), ("broken", r"own_agents_.*py:\d+: ValueError: out of order")],
)
def test_an_agent_that_cannot_be_made_is_told(own_module: str, attribute: str, fault: str) -> None:
    with pytest.raises(BundleError, match=fault):
        load_agent(f"{own_module}:{attribute}")()


def test_the_names_of_built_in_agents_are_offered() -> None:
    with pytest.raises(BundleError, match=", ".join(["tool-calling", *list(AGENTS)[1:], "replay:PATH"])):
        load_agent("nonsense")


ANSWERS = st.sampled_from(
    [
        "",
        "###STOP###",
        "true",
        "false",
        "Thought: hm",
        "User Response: Hi",
        "<think>hm",
        "Hi",
        {"content": None},
    ]
) | st.text(max_size=30)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    strategy=st.sampled_from(["llm", "react", "verify", "reflection"]), answers=st.lists(ANSWERS, min_size=1)
)
def test_whatever_the_users_model_answers_the_rollout_ends_by_its_rules(
    tmp_path_factory: pytest.TempPathFactory, strategy: str, answers: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("play")
    models = {"agent": InProcessModel(["Where to?"]), "user": InProcessModel(answers)}
    task = small_task(folder, sim_user_prompt="You are {line}.", max_steps=4)
    finished = asyncio.run(play(task, ToolCallingAgent(), user=load_user(strategy)(), models=models))
    with finished.database:
        assert finished.rollout.stop_reason in {"user_stop", "max_steps", "user_error"}
        assert finished.rollout.usage["user"].calls == len(models["user"].seen)
        assert all(line.text.strip() for line in finished.rollout.lines)


@pytest.mark.parametrize("strategy", ["react", "verify", "reflection"])
def test_a_user_that_a_model_plays_asks_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.delenv("MODEL_SIM", raising=False)
    monkeypatch.chdir(tmp_path)
    bundle = flight_bundle(tmp_path)
    bundle.rows({"actions": GOLD})
    with pytest.raises(UsageError, match=rf"the simulated user \({strategy}\) needs a model of its own"):
        agent_eval(str(bundle.dataset), agent="gold", user=strategy, output_dir=str(tmp_path / "runs"))


@pytest.mark.parametrize("strategy", ["llm", "react", "verify", "reflection"])
def test_a_user_that_a_model_plays_is_not_in_rows_without_a_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = flight_bundle(tmp_path)
    bundle.rows({"id": "talk"}, {"id": "single", "sim_user_prompt": None})
    models = {"agent": InProcessModel(["Where to?"]), "user": InProcessModel(["true ###STOP###"])}
    result = agent_eval(str(bundle.dataset), user=strategy, models=models, n_rollouts=1)
    ends = {outcome.row_id: (outcome.stop_reason, "user" in outcome.usage) for outcome in result.outcomes}
    assert ends == {"talk": ("user_stop", True), "single": ("agent_done", False)}


def test_a_share_of_the_rows_may_have_no_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stub_llm: StubServer
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = flight_bundle(tmp_path)
    bundle.rows({"id": "talk"}, {"id": "single", "sim_user_prompt": None})
    stub_llm.script("gpt-4o-mini", ["Where to?"])
    stub_llm.script("gpt-3.5-turbo", ["###STOP###"])
    asked = {"model": "openai/gpt-4o-mini", "sim_model": "openai/gpt-3.5-turbo", "user": "llm"}
    result = agent_eval(str(bundle.dataset), **asked, workers=2, n_rollouts=1)
    assert {outcome.row_id: outcome.stop_reason for outcome in result.outcomes} == {
        "talk": "user_stop",
        "single": "agent_done",
    }


@pytest.mark.parametrize("strategy", ["llm", "react", "verify", "reflection"])
def test_a_user_with_no_part_in_any_row_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = flight_bundle(tmp_path)
    bundle.rows({"id": "talk"}, {"id": "single", "sim_user_prompt": None})
    models = {"agent": InProcessModel(["Where to?"]), "user": InProcessModel(["###STOP###"])}
    with pytest.raises(UsageError, match=f"--user {strategy} has no part to play: none of the chosen rows"):
        agent_eval(str(bundle.dataset), user=strategy, models=models, task_ids="single")
    assert models["agent"].seen == []


def test_the_names_of_built_in_users_are_offered() -> None:
    with pytest.raises(BundleError, match="llm, react, verify, reflection, human, none, replay:PATH"):
        load_user("nonsense")
