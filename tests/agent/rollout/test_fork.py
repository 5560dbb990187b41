"""Forks of an episode: played alike they end alike, played apart they do not touch each other."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from episode_state import CountingUser, state
from flight_bundle import GOLD, Bundle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_task import ScriptedUser

from reward_kit.agent import Episode, RolloutLimits, TaskBundle
from reward_kit.agent.rollout.rollout import PLAYERS
from reward_kit.errors import RewardKitError

NOW = "2026-01-02T03:04:05"
ROWS = [{"id": "alice", "now": NOW, "actions": GOLD, "initial_messages": [], "max_steps": 60}]


def thinker(messages: list[Any]) -> str:
    """The model of a user that thinks: it sees the thoughts that it had."""
    return f"Thought: {len(str(messages))}\nUser Response: I heard {messages[-1]['content'][:60]}"


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("book"), st.sampled_from("ABC")),
        st.tuples(st.just("pay"), st.integers(0, 3)),
        st.tuples(st.just("say"), st.sampled_from(["Hello", "Done"])),
        st.tuples(st.just("clock"), st.none()),
        st.tuples(st.just("stop"), st.none()),
    ),
    max_size=6,
)
Moves = list[tuple[str, Any]]


async def play(episode: Episode, moves: Moves) -> None:
    for kind, value in moves:
        if episode.is_over:
            return
        if kind == "book":
            await episode.call("create_booking", {"flight_id": 1, "passenger": value})
        elif kind == "pay":
            booked = [one for one in episode.tool_calls if one.name == "create_booking"]
            booking = booked[value % len(booked)].content if booked else "{}"
            await episode.call("pay_booking", {"booking_id": booking[16:24]})
        elif kind == "say":
            await episode.say(value)
        elif kind == "clock":
            await episode.database.execute(
                "INSERT INTO bookings VALUES (hex(randomblob(4)), 1, datetime('now'), 'now')"
            )
        else:
            episode.stop("agent_done")


@pytest.mark.parametrize("kind", ["counting", "react"])
@given(before=MOVES, after=MOVES, others=MOVES, generations=st.integers(1, 3))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_alike_ends_alike_and_apart_stays_apart(
    bundle: Bundle, kind: str, before: Moves, after: Moves, others: Moves, generations: int
) -> None:
    async def run() -> None:
        user: Any = CountingUser() if kind == "counting" else "react"
        with TaskBundle.load(bundle.dataset) as loaded:
            episode = loaded.episode(0, user=user, models={"user": thinker}, rng_seed=5)
            await play(episode, before)
            twin = episode
            for _ in range(generations):  # a fork of a fork as well
                twin = twin.fork()
            assert state(twin) == state(episode)
            assert twin.id != episode.id
            apart, kept = twin.fork(), state(episode)
            await play(apart, others)
            assert state(episode) == state(twin) == kept
            await play(episode, after)
            assert state(twin) == kept
            changed = state(apart)
            await play(twin, after)
            assert state(twin) == state(episode)
            first, second = await episode.finish(), await twin.finish()
            assert first == second
            episode.close()
            twin.close()
            assert state(apart) == changed

    asyncio.run(run())


async def test_a_new_seed_gives_other_random_numbers_and_the_gold_actions_follow(bundle: Bundle) -> None:
    reward = "def evaluate(messages, *, db, gold_db, **_):\n    return {'score': float(db.equals(gold_db))}\n"
    bundle.write("reward.py", reward)
    pair = [{"name": "create_booking", "arguments": {"flight_id": 1, "passenger": "Alice"}}] * 2
    bundle.rows({"id": "alice", "actions": pair, "sim_user_prompt": None})
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0, rng_seed=1) as episode:
        await episode.call("create_booking", pair[0]["arguments"])
        ids = []
        for seed in (None, 1, 7, 7, 8):
            with episode.fork(seed) as twin, twin.fork() as second:
                await second.call("create_booking", pair[1]["arguments"])
                assert second.seed == (1 if seed is None else seed)
                ids.append(second.tool_calls[1].content)
                assert (await second.finish()).score == 1.0
                second.reset()
                assert (await second.finish()).score == 0.0
        assert ids[0] == ids[1] != ids[2] == ids[3] != ids[4]


def test_forks_are_made_and_played_from_threads(bundle: Bundle) -> None:
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0, user=CountingUser()) as episode:
        episode.call_sync("create_booking", {"flight_id": 1, "passenger": "Zoe"})
        start = threading.Barrier(8)

        def branch(number: int) -> tuple[int, int, str | None]:
            start.wait()
            with episode.fork() as twin:
                for _ in range(number):
                    twin.call_sync("create_booking", {"flight_id": 1, "passenger": "Alice"})
                line = twin.say_sync("Done")
                return len(twin.changes()), len(twin.tool_calls), line

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(branch, range(8)))
        assert found == [(number + 1, number + 1, "Line 1") for number in range(8)]
        assert len(episode.changes()) == len(episode.tool_calls) == 1
        assert episode.user.heard == ()


async def test_an_announced_call_is_open_in_both(bundle: Bundle) -> None:
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0) as episode:
        function = {"name": "search_flights", "arguments": '{"origin": "SFO", "dest": "JFK"}'}
        call = {"id": "one", "type": "function", "function": function}
        episode.rollout.record({"role": "assistant", "tool_calls": [call, {**call, "id": "two"}]})
        twin = episode.fork()
        await twin.call("search_flights", {"origin": "SFO", "dest": "JFK"}, call_id="one")
        await twin.call("search_flights", {"origin": "SFO", "dest": "LAX"})
        assert len(twin.messages[-3]["tool_calls"]) == 3
        assert len(episode.messages[-1]["tool_calls"]) == 2
        twin.close()


async def test_limits_count_on_in_a_fork(bundle: Bundle) -> None:
    limits = RolloutLimits(max_steps=3)
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0, limits=limits) as episode:
        arguments = {"flight_id": 1, "passenger": "Alice"}
        await episode.call("create_booking", arguments)
        episode.tools = episode.tools[:2]
        twin = episode.fork()
        twin.tools.pop()
        assert (len(episode.tools), len(twin.tools)) == (2, 1)
        await twin.call("create_booking", arguments)
        await twin.call("create_booking", arguments)
        with pytest.raises(BaseException, match="max_steps"):
            await twin.call("create_booking", arguments)
        assert (twin.stop_reason, episode.stop_reason) == ("max_steps", None)
        twin.close()


async def test_refusals_name_the_reason(bundle: Bundle) -> None:
    with TaskBundle.load(bundle.dataset) as loaded:
        episode = loaded.episode(0, user=ScriptedUser([]))
        with pytest.raises(RewardKitError, match=r"its user ScriptedUser has no fork\(\).*def fork"):
            episode.fork()
        episode.user = None
        episode.close()
        with pytest.raises(RewardKitError, match="closed"):
            episode.fork()


async def test_a_running_call_cannot_be_forked(bundle: Bundle) -> None:
    tools = (bundle.folder / "tools.py").read_text()
    slow = """

@R.tool(description="Wait", parameters={})
async def wait():
    import asyncio
    await asyncio.sleep(60)
"""
    bundle.write("tools.py", tools + slow)
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0) as episode:
        call = asyncio.ensure_future(episode.call("wait", {}))
        await asyncio.sleep(0)
        assert episode.in_flight
        with pytest.raises(RewardKitError, match="Fork it after the call"):
            episode.fork()
        call.cancel()
        await asyncio.wait([call])


async def test_an_episode_whose_model_is_asked_can_be_forked_and_is_watched(bundle: Bundle) -> None:
    begun: list[str] = []

    async def model(_: Any) -> str:
        await asyncio.sleep(60)
        return "late"

    limits = RolloutLimits(on_begin=begun.append)
    with (
        TaskBundle.load(bundle.dataset) as loaded,
        loaded.episode(0, models={"agent": model}, limits=limits) as episode,
    ):
        asked = asyncio.ensure_future(episode.rollout.complete())
        await asyncio.sleep(0)
        with episode.fork() as twin:
            assert twin.messages == episode.messages
        await episode.call("search_flights", {"origin": "SFO", "dest": "JFK", "date": "2025-08-05"})
        assert begun == ["tool 'search_flights'", PLAYERS]  # which an agent that ends its process is
        episode.stop("agent_done")
        await episode.settle()
        assert asked.done()
