"""One rollout from start to reward, and what becomes of faults on the way."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from small_task import (
    BOOKED,
    airline,
    hanging,
    paid_reward,
    play,
    seeded,
    small_task,
)
from stub_server import Answer, StubServer, call

from reward_kit.agent.agents.gold import GoldAgent
from reward_kit.agent.agents.tool_calling import ToolCallingAgent
from reward_kit.agent.base import deadline
from reward_kit.agent.models.litellm import LiteLLMModel
from reward_kit.agent.rollout.gold import replay_gold_calls
from reward_kit.agent.rollout.orchestrator import FinishedRollout
from reward_kit.agent.rollout.rollout import episode_of
from reward_kit.agent.users.llm import LLMUser
from reward_kit.errors import DatabaseError, ModelError, ModelInputError, ModelSetupError

AGENT = "gpt-4o-mini"
USER = "gpt-3.5-turbo"


class Speaker:
    """An agent or a user that says one thing, or raises it."""

    def __init__(self, line: Any) -> None:
        self.line = line

    async def respond(self, rollout: Any) -> Any:
        if isinstance(self.line, BaseException):
            raise self.line
        return self.line


async def over_http(
    folder: Path, *, retries: int = 3, timeout: float = 20.0, **options: Any
) -> FinishedRollout:
    """Play with agent and user on the stub server."""
    models = {
        role: LiteLLMModel(f"openai/{name}", retries=retries, backoff=0.0, timeout=timeout)
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
    rollout = finished.rollout
    assert (finished.reward, finished.error, rollout.stop_reason) == (1.0, None, "user_stop")
    assert [tool_call.name for tool_call in rollout.tool_calls] == [
        "search_flights",
        "create_booking",
        "pay_booking",
    ]
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


async def test_a_refused_key_is_told_as_a_fault_of_the_setup(tmp_path: Path, stub_llm: StubServer) -> None:
    stub_llm.script(AGENT, [Answer(status=401, error="bad key")])
    finished = await over_http(tmp_path)
    assert finished.setup_error is not None
    assert finished.rollout.stop_reason == "infrastructure_error"
    assert "OPENAI_API_KEY" in (finished.rollout.stop_detail or "")
    assert finished.reward is None
    assert len(stub_llm.requests) == 1


@pytest.mark.parametrize(
    "answer", [Answer(status=500), Answer(body=b"not json"), Answer(drop=True), Answer(status=429)]
)
@pytest.mark.parametrize("name", [AGENT, USER])
async def test_a_server_that_stays_broken_is_nobodys_fault(
    tmp_path: Path, stub_llm: StubServer, answer: Answer, name: str
) -> None:
    stub_llm.script(AGENT, ["Hello"])
    stub_llm.script(USER, ["Go on"])
    stub_llm.script(name, [answer])
    finished = await over_http(tmp_path, retries=1)
    assert finished.rollout.stop_reason == "infrastructure_error"
    assert finished.setup_error is None
    assert (finished.reward, finished.error) == (None, None)
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
    assert (by_agent.rollout.stop_reason, by_user.rollout.stop_reason) == (agents, users)
    assert by_user.reward is None
    assert by_agent.reward == (0.0 if agents == "agent_error" else None)
    assert (by_agent.setup_error is not None) == isinstance(error, ModelSetupError)


async def test_an_agent_without_its_model_says_which_option_is_missing(tmp_path: Path) -> None:
    finished = await play(small_task(tmp_path), ToolCallingAgent())
    assert "--model" in str(finished.setup_error)


async def test_an_agent_that_will_not_be_cancelled_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadline, "CANCELLATION_GRACE", 0.1)
    finished_later = asyncio.Event()

    class Stubborn:
        async def respond(self, rollout: Any) -> str:
            for _ in range(20):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.05)
            finished_later.set()
            return "late"

    finished = await play(small_task(tmp_path), Stubborn(), timeout=0.1)
    assert finished.rollout.stop_reason == "timeout"
    assert not finished_later.is_set()
    await finished_later.wait()
    await asyncio.sleep(0)
    assert [message["role"] for message in finished.rollout.messages] == ["user"]


async def test_tools_that_raise_are_noted(tmp_path: Path) -> None:
    registry = airline()

    @registry.tool(description="Broken", parameters={})
    def broken() -> str:
        return {}["x"]  # type: ignore[no-any-return]

    class Calling:
        async def respond(self, rollout: Any) -> str:
            await rollout.call_tool("broken", {})
            await rollout.call_tool("pay_booking", {"booking_id": "none"})
            await rollout.call_tool("unknown", {})
            return "Done"

    finished = await play(small_task(tmp_path, registry=registry), Calling())
    ((name, raised),) = finished.rollout.tool_faults
    assert name == "broken"
    assert raised.startswith("test_orchestrator.py:")
    assert raised.endswith("KeyError: 'x'")


async def test_cancelling_a_rollout_closes_its_database(tmp_path: Path) -> None:
    held: list[Any] = []

    class Waiting:
        async def respond(self, rollout: Any) -> str:
            held.append(episode_of(rollout).database)
            return str(await rollout.call_tool("hang", {}))

    playing = await hanging(play(small_task(tmp_path), Waiting()))
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    with pytest.raises(DatabaseError):
        await held[0].fetch_val("SELECT 1")


async def test_the_gold_state_has_the_same_random_ids_as_the_rollout(tmp_path: Path) -> None:
    def same_rows(messages: Any, *, db: Any, gold_db: Any, **kwargs: Any) -> dict[str, Any]:
        return {"score": float(db.equals(gold_db)), "reason": ""}

    finished = await play(small_task(tmp_path, reward=same_rows, actions=BOOKED), GoldAgent(), seed=5)
    assert (finished.reward, finished.error) == (1.0, None)
    assert finished.gold is not None
    assert finished.database.changes().equals(finished.gold)
    lazy = await play(small_task(tmp_path, reward=same_rows, actions=BOOKED), Speaker("Done"), seed=5)
    assert lazy.reward == 0.0


async def test_no_actions_at_all_and_no_action_needed_are_different(tmp_path: Path) -> None:
    given: list[Any] = []

    def remember(messages: Any, *, gold_db: Any, **kwargs: Any) -> dict[str, Any]:
        given.append(gold_db)
        return {"score": 1.0, "reason": ""}

    assert (await play(small_task(tmp_path, reward=remember), Speaker("Hi"))).gold is None
    nothing_to_do = await play(small_task(tmp_path, reward=remember, actions=[]), Speaker("Hi"))
    assert nothing_to_do.gold is not None
    assert len(nothing_to_do.gold) == 0
    assert given[0] is None
    assert given[1] is not None


async def test_gold_calls_that_cannot_be_made_are_passed_over(tmp_path: Path) -> None:
    actions = [
        {"name": "pay_booking", "arguments": {"booking_id": "none"}},
        {"name": "pay_booking", "arguments": {"booking_id": {"$result": [0, "booking_id"]}}},
        {"name": "transfer", "arguments": {}},
        {"name": "fly", "arguments": {}},
        {"name": "create_booking", "arguments": {"flight_id": 1, "passenger": "Alice"}},
    ]
    replay = await replay_gold_calls(small_task(tmp_path, actions=actions), seeded(tmp_path), seed=1)
    assert [made.status for made in replay.calls] == ["refused", "no_result", "skipped", "unknown_tool", "ok"]
    assert [made.is_faulty for made in replay.calls] == [False, True, False, False, False]
    assert [len(made.changes) for made in replay.calls] == [0, 0, 0, 0, 1]
    replay.database.close()


@pytest.mark.parametrize(
    ("agent", "user", "asked"),
    [
        (Speaker("Hello"), None, True),
        (Speaker("Hello"), Speaker("###STOP###"), True),
        (Speaker(KeyError()), None, True),
        (Speaker("Hello"), Speaker(KeyError()), False),
        (Speaker(ModelError("down", retryable=True)), None, False),
    ],
    ids=["agent_done", "user_stop", "agent_error", "user_error", "infrastructure_error"],
)
async def test_the_reward_is_asked_unless_the_agent_had_no_chance(
    tmp_path: Path, agent: Any, user: Any, asked: bool
) -> None:
    calls: list[str] = []

    def count(messages: Any, *, db: Any, **kwargs: Any) -> dict[str, Any]:
        calls.append("asked")
        return paid_reward(messages, db=db)

    finished = await play(small_task(tmp_path, reward=count), agent, user=user)
    assert calls == (["asked"] if asked else [])
    assert (finished.reward is not None) == asked
