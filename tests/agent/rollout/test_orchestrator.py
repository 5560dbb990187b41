"""One rollout from start to reward, and what becomes of faults on the way."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from small_task import BOOKED, Speaker, play, small_task
from stub_server import StubServer, call

from reward_kit.agent.models.litellm import LiteLLMModel
from reward_kit.agent.players.agents.replay import GoldAgent
from reward_kit.agent.players.agents.tool_calling import ToolCallingAgent
from reward_kit.agent.players.users.llm import LLMUser
from reward_kit.agent.rollout.orchestrator import Episode
from reward_kit.errors import ModelError, ModelInputError, ModelSetupError

AGENT = "gpt-4o-mini"
USER = "gpt-3.5-turbo"


async def over_http(folder: Path, *, retries: int = 3, **options: Any) -> Episode:
    """Play with agent and user on the stub server."""
    models = {
        role: LiteLLMModel(f"openai/{name}", retries=retries, backoff=0.0, timeout=20.0)
        for role, name in (("agent", AGENT), ("user", USER))
    }
    task = small_task(folder, sim_user_prompt="You are Alice.", system_prompt="Sell flights.")
    return await play(task, ToolCallingAgent(), user=LLMUser(), models=models, **options)


def book_and_pay(request: dict[str, Any], place: int) -> Any:
    """The agent's part: look, book, ask, pay with the id that the tool gave, say goodbye."""
    if place == 3:
        observation = next(m for m in request["messages"] if m.get("name") == "create_booking")["content"]
        return call("pay_booking", booking_id=observation.split('"')[3])
    return [
        call("search_flights", origin="SFO", dest="JFK"),
        call("create_booking", flight_id=1, passenger="Alice"),
        "Flight 1 is reserved. Shall I take the payment?",
        None,
        "It is paid.",
    ][place]


async def test_a_booking_is_made_and_paid_over_several_turns(tmp_path: Path, stub_llm: StubServer) -> None:
    stub_llm.script(AGENT, book_and_pay)
    stub_llm.script(USER, ["Yes, please pay", "Thank you ###STOP###"])
    finished = await over_http(tmp_path)
    rollout = finished.trace
    assert (finished.trace.reward, finished.trace.error, rollout.stop_reason) == (1.0, None, "user_stop")
    assert [call_.name for call_ in rollout.tool_calls] == ["search_flights", "create_booking", "pay_booking"]
    assert (rollout.steps, rollout.turns) == (5, 2)
    assert rollout.usage["agent"].calls == 5
    assert rollout.usage["user"].calls == 2
    assert rollout.usage["agent"].cost > 0.0
    heard = stub_llm.requests_for(USER)[0]["messages"]
    assert [message["role"] for message in heard] == ["system", "user", "assistant", "user"]
    assert "You are Alice." in heard[0]["content"]
    assert heard[2]["content"] == "Book me a flight"
    assert "tools" not in stub_llm.requests_for(USER)[0]
    assert finished.database.changes().to_json()[0]["table"] == "bookings"


@pytest.mark.parametrize("fault", [{"status": 500}, {"body": b"not json"}, {"drop": True}, {"status": 429}])
@pytest.mark.parametrize("name", [AGENT, USER])
async def test_a_server_that_stays_broken_is_nobodys_fault(
    tmp_path: Path, stub_llm: StubServer, fault: Any, name: str
) -> None:
    stub_llm.script(AGENT, ["Hello"])
    stub_llm.script(USER, ["Go on"])
    stub_llm.script(name, [fault])
    finished = await over_http(tmp_path, retries=1)
    assert finished.trace.stop_reason == "infrastructure_error"
    assert finished.refused is None
    assert (finished.trace.reward, finished.trace.error) == (None, None)
    assert len(stub_llm.requests_for(name)) == 2


@pytest.mark.parametrize(
    ("error", "agents", "users"),
    [
        (ModelError("busy", retryable=True), "infrastructure_error", "infrastructure_error"),
        (ModelSetupError("no key"), "infrastructure_error", "infrastructure_error"),
        (ModelInputError("too long"), "agent_error", "user_error"),
        (KeyError("x"), "agent_error", "user_error"),
        (SystemExit(3), "agent_error", "user_error"),
        (TimeoutError(), "agent_error", "user_error"),
        (asyncio.CancelledError(), "agent_error", "user_error"),
    ],
)
async def test_a_fault_is_blamed_on_the_one_who_made_it(
    tmp_path: Path, error: BaseException, agents: str, users: str
) -> None:
    task = small_task(tmp_path)
    by_agent = await play(task, Speaker(error), user=Speaker("Hello"))
    by_user = await play(task, Speaker("Hello"), user=Speaker(error))
    assert (by_agent.trace.stop_reason, by_user.trace.stop_reason) == (agents, users)
    assert by_user.trace.reward is None
    assert by_agent.trace.reward == (0.0 if agents == "agent_error" else None)
    assert (by_agent.refused is not None) == isinstance(error, ModelSetupError)


async def test_an_agent_without_its_model_says_which_option_is_missing(tmp_path: Path) -> None:
    finished = await play(small_task(tmp_path), ToolCallingAgent())
    assert "--model" in str(finished.refused)


async def test_the_gold_state_has_the_same_random_ids_as_the_rollout(tmp_path: Path) -> None:
    def same_rows(messages: Any, *, db: Any, gold_db: Any, **kwargs: Any) -> dict[str, Any]:
        return {"score": float(db.equals(gold_db)), "reason": ""}

    finished = await play(small_task(tmp_path, reward=same_rows, actions=BOOKED), GoldAgent(), seed=5)
    assert (finished.trace.reward, finished.trace.error) == (1.0, None)
    lazy = await play(small_task(tmp_path, reward=same_rows, actions=BOOKED), Speaker("Done"), seed=5)
    assert lazy.trace.reward == 0.0


async def test_no_actions_at_all_and_no_action_needed_are_different(tmp_path: Path) -> None:
    given: list[Any] = []

    def remember(messages: Any, *, gold_db: Any, **kwargs: Any) -> dict[str, Any]:
        given.append(gold_db)
        return {"score": 1.0, "reason": ""}

    await play(small_task(tmp_path, reward=remember), Speaker("Hi"))
    await play(small_task(tmp_path, reward=remember, actions=[]), Speaker("Hi"))
    assert given[0] is None
    assert given[1] is not None
