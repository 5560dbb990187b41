"""The lesson of an episode: its reward, or None for a rollout that says nothing about the agent."""

from typing import Any

import pytest
from flight_bundle import GOLD, Bundle
from small_task import ScriptedUser

from reward_kit.agent import Episode, TaskBundle, evaluate_async, export
from reward_kit.errors import ModelError, SimulatedUserError

ROWS = [{"id": "alice", "actions": GOLD, "initial_messages": []}]


async def book(episode: Episode) -> None:
    booked = await episode.call("create_booking", {"flight_id": 1, "passenger": "Alice"})
    await episode.call("pay_booking", {"booking_id": booked.value["booking_id"]})


def opened(loaded: TaskBundle, *lines: str) -> Episode:
    return loaded.episode(0, user=ScriptedUser(lines))


async def test_the_reward_and_what_the_reward_says(bundle: Bundle) -> None:
    with TaskBundle.load(bundle.dataset) as loaded, opened(loaded, "Hello", "Thanks") as episode:
        await episode.start()
        await book(episode)
        assert await episode.lesson() == (1.0, "Task completed successfully")
        assert await episode.lesson() == (1.0, "Task completed successfully")
        assert episode.trace.reward == 1.0


def test_a_failure_of_the_agent_is_a_lesson(bundle: Bundle) -> None:
    with TaskBundle.load(bundle.dataset) as loaded:
        with loaded.episode(0) as alone:
            assert alone.lesson_sync() == (0.0, "Task incomplete")
        with opened(loaded, "Book me a flight, please.") as episode:
            episode.start_sync()
            assert episode.say_sync("I cannot do that.") is None
            assert episode.lesson_sync() == (0.0, "Task incomplete")


async def test_a_user_that_leaves_explains_a_failure_but_no_success(bundle: Bundle) -> None:
    with TaskBundle.load(bundle.dataset) as loaded:
        for solved in (False, True):
            with opened(loaded, "I want to book a flight.") as episode:
                await episode.start()
                if solved:
                    await book(episode)
                assert await episode.say("Shall I take the first one?") is None
                reward, reason = await episode.lesson()
                assert reward == (1.0 if solved else None)
                assert reason.startswith("Task completed" if solved else "user_error: stopped_early (turn 1)")


def asks(_rollout: Any) -> str:
    return "Shall I take the first one?"


async def test_an_evaluation_says_the_same(bundle: Bundle) -> None:
    def leaves(rollout: Any) -> str:
        return "###STOP###" if rollout.lines else "I want to book a flight."

    result = await evaluate_async(bundle.dataset, agent=asks, user=leaves, n_rollouts=1)
    (line,) = export(result)
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0, user=leaves) as episode:
        await episode.start()
        await episode.say(asks(episode.rollout))
        reward, reason = await episode.lesson()
    assert (reward, reason.partition(":")[0]) == (None, line["failure"])


async def test_an_evaluation_finds_the_same_failure(bundle: Bundle) -> None:
    async def books(rollout: Any) -> str:
        await rollout.call_tool("create_booking", {"flight_id": 2, "passenger": "Alice"})
        return "Booked."

    def thanks(rollout: Any) -> str:
        return "Thanks. ###STOP###" if len(rollout.lines) > 1 else "Book me a flight, please."

    bundle.rows({**ROWS[0], "end_goal_sql": None, "reward": "reward_kit.agent.rewards:evaluate"})
    result = await evaluate_async(bundle.dataset, agent=books, user=thanks, n_rollouts=1)
    (trace,) = result.records()
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0, user=thanks) as episode:
        await episode.start()
        await episode.say(await books(episode.rollout))
        await episode.lesson()
        found = [{**(one.failure or {}), "rows": [], "not_compared": []} for one in (trace, episode.trace)]
    assert found[0] == found[1]
    assert found[0]["kind"] == "wrong_arguments"


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ModelError("the server is gone"), "the simulated user failed"),
        (ValueError("no line"), "the simulated user failed"),
    ],
)
async def test_a_user_that_raises(bundle: Bundle, error: Exception, shown: str) -> None:
    class Raising:
        async def respond(self, _rollout: Any) -> str:
            raise error

    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0, user=Raising()) as episode:
        with pytest.raises(type(error)):
            await episode.start()
        assert await episode.lesson() == (None, f"user_error: {shown}")
        assert episode.trace.reward is None


async def test_a_model_of_the_user_that_fails(bundle: Bundle) -> None:
    def down(_messages: Any) -> str:
        raise OSError("the server is down")

    cases = ((lambda _messages: "", "user_error: "), (down, "infrastructure_error: "))
    with TaskBundle.load(bundle.dataset) as loaded:
        for model, reason in cases:
            with loaded.episode(0, models={"user": model}) as episode:
                with pytest.raises((SimulatedUserError, ModelError)):
                    await episode.start()
                reward, why = await episode.lesson()
                assert reward is None
                assert why.startswith(reason)


async def test_a_reward_that_fails(bundle: Bundle) -> None:
    bundle.write("reward.py", "def evaluate(messages, **kwargs):\n    return 1 / 0\n")
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0) as episode:
        reward, reason = await episode.lesson()
    assert reward is None
    assert reason.startswith("reward_error: ")
    assert "division by zero" in reason
