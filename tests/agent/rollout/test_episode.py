"""An episode driven by hand: what an adapter for a trainer or another harness needs."""

import asyncio
import json
from functools import partial
from typing import Any

import pytest
from flight_bundle import GOLD, TOOLS, Bundle
from small_task import ScriptedUser

from reward_kit.agent import Database, Episode, RolloutStopped, TaskBundle, judge, judge_async
from reward_kit.agent.rollout.calls import answered
from reward_kit.errors import AgentError, ModelSetupError, RewardError, UsageError

ROWS = [{"id": "alice", "actions": GOLD}]
SLOW = """
@R.tool(description="Wait", parameters={})
async def wait():
    import asyncio
    await asyncio.sleep(5)
"""


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else 1


async def play_gold(episode: Any) -> Any:
    booked = await episode.call("create_booking", {"flight_id": 1, "passenger": "Alice"})
    return await episode.call("pay_booking", {"booking_id": booked.value["booking_id"]})


async def test_an_episode_is_played_judged_and_reset(bundle: Bundle) -> None:
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode("alice", rng_seed=3) as episode:
        assert episode.tools[0]["function"]["name"] == "search_flights"
        before = list(episode.messages)
        result = await play_gold(episode)
        assert (result.status, result.terminal) == ("ok", False)
        assert await episode.say("You are booked.") is None
        assert episode.stop_reason == "agent_done"
        assert (await episode.finish()).score == 1.0
        assert len(episode.changes()) == 1
        assert (episode.steps, episode.turns, len(episode.tool_calls)) == (3, 1, 2)
        first = episode.id
        assert episode.reset() == before
        assert (len(episode.changes()), episode.steps, episode.stop_reason) == (0, 0, None)
        assert episode.id != first
        assert (await episode.finish()).score == 0.0


async def test_a_user_begins_anew_and_a_database_has_its_own_base(bundle: Bundle) -> None:
    bundle.rows({"id": "talk", "actions": GOLD, "initial_messages": [], "end_goal_sql": None})
    (bundle.folder / "reward.py").unlink()
    make = partial(ScriptedUser, ["Hello", "Yes"])
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode("talk", user=make) as episode:
        for _ in range(2):
            assert (await episode.start(), await episode.say("What?")) == ("Hello", "Yes")
            episode.reset()
        with Episode(loaded.tasks[0], database=episode.database.fork(seed=0)) as idle:
            await idle.say("Done")
            assert (await idle.finish()).score == 0.0


async def test_an_output_of_the_opening_was_not_said(bundle: Bundle) -> None:
    (bundle.folder / "reward.py").unlink()
    opening = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "It is 4711."}]
    asking = {"role": "user", "content": "What is it?"}
    row = {"id": "a", "actions": [], "outputs": ["4711"], "end_goal_sql": None, "sim_user_prompt": None}
    bundle.rows({**row, "initial_messages": [*opening, asking]})
    with TaskBundle.load(bundle.dataset) as loaded:
        for said, score in (("No idea.", 0.0), ("4711", 1.0)):
            with loaded.episode(0) as episode:
                await episode.say(said)
                assert (await episode.finish()).score == score


async def test_the_cancellation_of_a_client_is_its_own(bundle: Bundle) -> None:
    bundle.write("tools.py", TOOLS + SLOW)
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0) as episode:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await answered(episode, "wait", {})
        assert (await answered(episode, "search_flights", {"a": deep(200)}))["status"] == "invalid_arguments"


async def test_the_random_numbers_are_those_of_the_seed(bundle: Bundle) -> None:
    with TaskBundle.load(bundle.dataset) as loaded:
        made = []
        for seed in (1, 1, 2):
            with loaded.episode(0, rng_seed=seed) as episode:
                made.append((await episode.call("create_booking", {"flight_id": 1, "passenger": "A"})).value)
    assert made[0] == made[1] != made[2]


async def test_a_user_answers_until_it_leaves(bundle: Bundle) -> None:
    bundle.rows({"id": "talk", "actions": GOLD, "initial_messages": []})
    user = ScriptedUser(["Hello", "Yes"])
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode("talk", user=user) as episode:
        assert await episode.start() == "Hello"
        assert await episode.say("What can I do?") == "Yes"
        assert episode.turns == 1
        with pytest.raises(AgentError, match="nothing to say"):
            await episode.say(" ")
        assert await episode.say("Done") is None
        assert episode.stop_reason == "user_stop"
        with pytest.raises(RolloutStopped):
            await episode.call("search_flights", {})


def test_a_function_is_the_model_of_the_user(bundle: Bundle) -> None:
    bundle.rows({"id": "talk", "actions": GOLD, "initial_messages": [], "sim_user_prompt": "Be Alice."})

    def model(messages: list[Any], **_: Any) -> str:
        assert "Be Alice." in messages[0]["content"]
        return "Hello" if len(messages) == 2 else "###STOP###"

    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0, models={"user": model}) as episode:
        assert episode.start_sync() == "Hello"
        assert episode.say_sync("You are booked.") is None
        assert episode.stop_reason == "user_stop"
        with pytest.raises(UsageError, match="there is no role 'usr'"):
            loaded.episode(0, models={"usr": model})


def test_the_same_without_an_event_loop(bundle: Bundle) -> None:
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode("alice") as episode:
        assert episode.start_sync() is None
        booked = episode.call_sync("create_booking", {"flight_id": 1, "passenger": "Alice"})
        episode.call_sync("pay_booking", {"booking_id": booked.value["booking_id"]})
        assert episode.say_sync("Done") is None
        assert episode.finish_sync().score == 1.0
        again = judge(loaded.tasks[0], episode.messages, episode.database)
        assert again.score == 1.0


def test_a_conversation_is_judged_by_all_that_the_row_says(bundle: Bundle) -> None:
    (bundle.folder / "reward.py").unlink()
    wanted = {"required_calls": ["pay_booking"], "forbidden_calls": ["search_flights"]}
    bundle.rows({"id": "alice", "actions": GOLD, "end_goal_sql": None, **wanted})
    scores = []
    with TaskBundle.load(bundle.dataset) as loaded:
        for seats in (["Alice"], ["Bob"], []):
            with loaded.episode(0, rng_seed=5) as episode:
                for name in seats:
                    booked = episode.call_sync("create_booking", {"flight_id": 1, "passenger": name})
                    episode.call_sync("pay_booking", {"booking_id": booked.value["booking_id"]})
                episode.say_sync("Done")
                by_hand = judge(loaded.tasks[0], episode.messages, episode.database)
                seen = episode.database.read_only()
                with_trace = judge(loaded.tasks[0], episode.messages, seen, rollout=episode.trace)
                assert by_hand.model_dump() == with_trace.model_dump() == episode.finish_sync().model_dump()
                messages = json.loads(json.dumps(episode.messages))
                for message in messages:  # without ids, as in chat templates
                    for one in (message, *message.get("tool_calls", ())):
                        one.pop("tool_call_id" if one is message else "id", None)
                assert judge(loaded.tasks[0], messages, seen).model_dump() == by_hand.model_dump()
                scores.append({name: metric.score for name, metric in by_hand.metrics.items()})
    done, other = {"database": 1.0, "calls": 1.0}, {"database": 0.0, "calls": 1.0}
    assert scores == [done, other, {"database": 0.0, "calls": 0.0}]


@pytest.mark.parametrize("seats", [["Alice"], ["Alice", "Bob"], []])
def test_a_complete_file_is_judged_like_the_database_that_it_was_written_from(
    bundle: Bundle, seats: list[str]
) -> None:
    (bundle.folder / "reward.py").unlink()
    bundle.rows({"id": "alice", "actions": GOLD, "end_goal_sql": None})
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0, rng_seed=5) as episode:
        for name in seats:
            booked = episode.call_sync("create_booking", {"flight_id": 1, "passenger": name})
            episode.call_sync("pay_booking", {"booking_id": booked.value["booking_id"]})
        result = episode.finish_sync()
        assert result.score == float(seats == ["Alice"])
        with Database.open(episode.database.export(bundle.folder / "final.db")) as whole:
            for seen in (whole, whole.fork().read_only()):
                found = judge(loaded.tasks[0], episode.messages, seen)
                assert found.score == result.score
                assert found.score or found.reason == result.reason


def test_a_database_without_changes_is_judged_over_its_own_base(bundle: Bundle) -> None:
    (bundle.folder / "reward.py").unlink()
    drawn = "db.execute('CREATE TABLE drawn AS SELECT ? AS id', [uuid.uuid4().hex])"
    bundle.write("seed.py", f"import uuid\n\ndef seed(db):\n    {drawn}\n")
    bundle.rows({"id": "alice", "actions": [], "end_goal_sql": None, "seed_sql": None})
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0) as episode:
        assert judge(loaded.tasks[0], episode.messages, episode.database).score == 1.0


async def test_judging_a_database_waits_for_the_call_that_runs_on_it(bundle: Bundle) -> None:
    waits = '    await asyncio.sleep(0.1)\n    return {"booking_id": bid}'
    bundle.write("tools.py", "import asyncio\n" + TOOLS.replace('    return {"booking_id": bid}', waits))
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode("alice") as episode:
        called = asyncio.ensure_future(episode.call("create_booking", {"flight_id": 1, "passenger": "Alice"}))
        await asyncio.sleep(0.01)
        assert episode.in_flight
        assert (await judge_async(loaded.tasks[0], episode.messages, episode.database)).score == 0.0
        booked = await called
        assert booked.status == "ok"
        await episode.call("pay_booking", {"booking_id": booked.value["booking_id"]})
        assert (await episode.finish()).score == 1.0


async def test_an_episode_may_begin_anew_while_its_model_is_asked(bundle: Bundle) -> None:
    async def model(_: Any) -> str:
        await asyncio.sleep(60)
        return "late"

    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0, models={"agent": model}) as episode:
        asked = asyncio.ensure_future(episode.complete())
        await asyncio.sleep(0)
        episode.reset()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked


async def test_what_still_runs_is_no_part_of_the_rollout_that_begins_anew(bundle: Bundle) -> None:
    async def user(_: Any) -> str:
        await asyncio.sleep(0.1)
        return "late"

    bundle.write("tools.py", TOOLS + SLOW.replace("sleep(5)", "sleep(0.1)"))
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0, user=user) as episode:
        for late in (lambda: episode.say("Hello"), lambda: episode.call("wait", {})):
            running = asyncio.ensure_future(late())
            await asyncio.sleep(0)
            begun = list(episode.reset())
            await running
            assert episode.messages == begun
            assert episode.tool_calls == []


def test_a_user_without_its_model_is_told_how_to_name_one(bundle: Bundle) -> None:
    named = r'with --user-model, or give models={"user": \.\.\.}\.'
    with TaskBundle.load(bundle.dataset) as loaded, pytest.raises(ModelSetupError, match=named):
        loaded.episode(0, user="llm").say_sync("Hello")


async def test_a_reward_that_fails_raises(bundle: Bundle) -> None:
    bundle.write("reward.py", "def evaluate(messages, **kwargs):\n    raise KeyError('seat')\n")
    with (
        TaskBundle.load(bundle.dataset) as loaded,
        loaded.episode("alice") as episode,
        pytest.raises(RewardError, match=r"reward\.py:2: KeyError: 'seat'"),
    ):
        await episode.finish()


@pytest.mark.parametrize("row", ["bob", 7])
def test_a_row_that_is_not_there(bundle: Bundle, row: Any) -> None:
    with TaskBundle.load(bundle.dataset) as loaded, pytest.raises(UsageError, match=str(row)):
        loaded.episode(row)
