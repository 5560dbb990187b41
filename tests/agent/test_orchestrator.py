"""One rollout from start to reward, and what becomes of faults on the way."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from small_task import (
    BOOKED,
    InProcessModel,
    ScriptedUser,
    airline,
    paid_reward,
    play,
    seeded,
    small_task,
    wants,
)
from stub_server import Answer, StubServer, call

from reward_kit.agent import orchestrator
from reward_kit.agent.agents.gold import GoldAgent
from reward_kit.agent.agents.tool_calling import ToolCallingAgent
from reward_kit.agent.gold import replay_gold, replay_gold_calls
from reward_kit.agent.llm import LiteLLMModel
from reward_kit.agent.orchestrator import FinishedRollout
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


async def test_a_lazy_agent_earns_nothing(tmp_path: Path, stub_llm: StubServer) -> None:
    stub_llm.script(AGENT, ["Done!"])
    stub_llm.script(USER, ["###STOP###"])
    finished = await over_http(tmp_path)
    assert finished.reward == 0.0
    assert len(finished.database.changes()) == 0


async def test_a_refused_key_is_told_as_a_fault_of_the_setup(tmp_path: Path, stub_llm: StubServer) -> None:
    stub_llm.script(AGENT, [Answer(status=401, error="bad key")])
    finished = await over_http(tmp_path)
    assert finished.setup_error is not None
    assert finished.rollout.stop_reason == "infrastructure_error"
    assert "OPENAI_API_KEY" in (finished.rollout.stop_detail or "")
    assert finished.reward is None
    assert len(stub_llm.requests) == 1


async def test_a_storm_of_429_does_not_show_in_the_rollout(tmp_path: Path, stub_llm: StubServer) -> None:
    stub_llm.script(AGENT, book_and_pay)
    stub_llm.script(USER, ["Yes", "###STOP###"])
    stub_llm.fail(AGENT, Answer(status=429, headers={"Retry-After": "0"}), times=3)
    finished = await over_http(tmp_path)
    assert finished.reward == 1.0
    assert finished.rollout.steps == 5


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


async def test_a_server_that_is_down_is_named(tmp_path: Path, stub_llm: StubServer) -> None:
    stub_llm.close()
    finished = await over_http(tmp_path, retries=0)
    assert finished.rollout.stop_reason == "infrastructure_error"
    assert stub_llm.url in (finished.rollout.stop_detail or "")


async def test_a_server_that_hangs_does_not_outlive_the_rollout(tmp_path: Path, stub_llm: StubServer) -> None:
    stub_llm.script(AGENT, [Answer(delay=5.0)])
    by_call = (await over_http(tmp_path, retries=0, timeout=0.3)).rollout
    assert by_call.stop_reason == "infrastructure_error"
    assert "no answer within 0.3 s" in (by_call.stop_detail or "")


async def test_a_rollout_out_of_time_leaves_a_hanging_server_alone(
    tmp_path: Path, stub_llm: StubServer
) -> None:
    stub_llm.script(AGENT, [Answer(delay=5.0)])
    models = {"agent": LiteLLMModel(f"openai/{AGENT}")}
    finished = await play(small_task(tmp_path), ToolCallingAgent(), models=models, timeout=0.5)
    assert finished.rollout.stop_reason == "timeout"
    assert finished.reward == 0.0


@pytest.mark.parametrize(
    ("error", "agents", "users"),
    [
        (ModelError("busy", retryable=True), "infrastructure_error", "infrastructure_error"),
        (ModelSetupError("no key"), "infrastructure_error", "infrastructure_error"),
        (ModelInputError("too long"), "agent_error", "user_error"),
        (KeyError("x"), "agent_error", "user_error"),
        (SystemExit(3), "agent_error", "user_error"),
        (asyncio.TimeoutError(), "agent_error", "user_error"),
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


async def test_a_refused_key_is_told_even_by_an_agent_that_makes_light_of_it(tmp_path: Path) -> None:
    class Refused:
        name = "refused"

        async def complete(self, messages: Any, **_: Any) -> Any:
            raise ModelSetupError("the key is refused")

    class Careless:
        async def respond(self, rollout: Any) -> str:
            with contextlib.suppress(Exception):
                await rollout.complete()
            return "All is well."

    finished = await play(small_task(tmp_path), Careless(), models={"agent": Refused()})
    assert (finished.rollout.stop_reason, finished.reward) == ("infrastructure_error", None)
    assert str(finished.setup_error) == "the key is refused"


async def test_the_place_where_an_agent_failed_is_named(tmp_path: Path) -> None:
    class Broken:
        async def respond(self, rollout: Any) -> str:
            return {}["answer"]  # type: ignore[no-any-return]

    detail = (await play(small_task(tmp_path), Broken())).rollout.stop_detail or ""
    assert detail.startswith("test_orchestrator.py:")
    assert "KeyError: 'answer'" in detail


@pytest.mark.parametrize("line", [None, "", " \n", 3])
async def test_a_user_that_says_nothing_is_at_fault(tmp_path: Path, line: Any) -> None:
    finished = await play(small_task(tmp_path), Speaker("Hello"), user=Speaker(line))
    assert finished.rollout.stop_reason == "user_error"
    assert finished.reward is None


async def test_an_agent_without_its_model_says_which_option_is_missing(tmp_path: Path) -> None:
    finished = await play(small_task(tmp_path), ToolCallingAgent())
    assert "--model" in str(finished.setup_error)


async def test_an_agent_may_use_a_group_of_tasks(tmp_path: Path) -> None:
    class Grouped:
        async def respond(self, rollout: Any) -> str:
            results = await asyncio.gather(
                rollout.call_tool("transfer", {}), rollout.call_tool("ping", {}), return_exceptions=True
            )
            return f"{results}"

    finished = await play(small_task(tmp_path), Grouped())
    assert finished.rollout.stop_reason == "terminal_tool"


async def test_an_agent_that_will_not_be_cancelled_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orchestrator, "CANCELLATION_GRACE", 0.1)
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


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda rollout: delattr(rollout, "history"), "history"),
        (lambda rollout: rollout.messages.append(object()), "history"),
        (lambda rollout: rollout.messages.append({}), "history"),
        (lambda rollout: setattr(rollout, "tool_calls", 5), "tool_calls"),
        (lambda rollout: rollout.tool_calls.append("forged"), "tool_calls"),
        (lambda rollout: rollout.usage.update(agent=3), "usage"),
        (lambda rollout: setattr(rollout, "steps", "many"), "steps"),
        (lambda rollout: setattr(rollout, "stop_reason", object()), "stop_reason"),
    ],
)
async def test_an_agent_that_breaks_the_rollout_ends_it_alone(
    tmp_path: Path, damage: Any, named: str
) -> None:
    class Breaking:
        async def respond(self, rollout: Any) -> str:
            damage(rollout)
            return "Done"

    finished = await play(small_task(tmp_path), Breaking())
    assert finished.rollout.stop_reason == "agent_error"
    assert f"broke the rollout's own {named}" in finished.rollout.stop_detail
    assert finished.rollout.messages[0]["role"] == "user"
    assert finished.reward == 0.0


async def test_a_detail_of_the_end_that_is_no_text_is_written_as_one(tmp_path: Path) -> None:
    class Leaving:
        async def respond(self, rollout: Any) -> str:
            rollout.stop("agent_done", ValueError("late"))
            return "Done"

    finished = await play(small_task(tmp_path), Leaving())
    assert (finished.rollout.stop_reason, finished.rollout.stop_detail) == (
        "agent_done",
        "ValueError('late')",
    )


async def test_what_a_rollout_is_of_stays_what_it_was(tmp_path: Path) -> None:
    class Forging:
        async def respond(self, rollout: Any) -> str:
            rollout.id, rollout.task, rollout.database, rollout.index = "../../x", None, None, "first"
            return "Done"

    task = small_task(tmp_path)
    finished = await play(task, Forging())
    assert finished.rollout.task is task
    assert (finished.rollout.id.isalnum(), finished.rollout.index, finished.reward) == (True, 0, 0.0)


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
    hanging = asyncio.Event()

    class Waiting:
        async def respond(self, rollout: Any) -> str:
            held.append(rollout)
            rollout.hanging = hanging
            return str(await rollout.call_tool("hang", {}))

    playing = asyncio.create_task(play(small_task(tmp_path), Waiting()))
    await hanging.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    with pytest.raises(DatabaseError):
        await held[0].database.fetch_val("SELECT 1")


async def test_the_gold_state_has_the_same_random_ids_as_the_rollout(tmp_path: Path) -> None:
    def same_rows(messages: Any, *, db: Any, gold_db: Any, **kwargs: Any) -> dict[str, Any]:
        return {"score": float(db.equals(gold_db)), "reason": ""}

    finished = await play(small_task(tmp_path, reward=same_rows, actions=BOOKED), GoldAgent(), seed=5)
    assert (finished.reward, finished.error) == (1.0, None)
    assert finished.gold is not None
    assert finished.database.changes().equals(finished.gold)
    lazy = await play(small_task(tmp_path, reward=same_rows, actions=BOOKED), Speaker("Done"), seed=5)
    assert lazy.reward == 0.0


async def test_a_given_gold_state_is_used_and_left_open(tmp_path: Path) -> None:
    base = seeded(tmp_path)
    task = small_task(tmp_path, actions=BOOKED)
    gold = await replay_gold(task, base, seed=1)
    finished = await play(task, Speaker("Done"), base=base, gold_database=gold)
    assert finished.gold is not None
    assert len(finished.gold) == 1
    assert await gold.fetch_val("SELECT status FROM bookings") == "paid"


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


async def test_a_reward_that_fails_is_told_and_the_rollout_kept(tmp_path: Path) -> None:
    def broken(messages: Any, **kwargs: Any) -> Any:
        raise ValueError("no idea")

    model = InProcessModel([wants(("ping", {})), "Done"])
    finished = await play(
        small_task(tmp_path, reward=broken),
        ToolCallingAgent(),
        user=ScriptedUser([]),
        models={"agent": model},
    )
    assert (finished.reward, finished.result) == (None, None)
    assert "no idea" in (finished.error or "")
    assert finished.rollout.stop_reason == "user_stop"
    assert finished.seconds > 0.0
