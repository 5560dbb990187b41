"""Episodes restored from recordings: they are as they were at that step, and go on alike."""

import asyncio
import json
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from door_bundle import ROW, asks, door_bundle
from episode_state import CountingUser, state
from flight_bundle import GOLD, Bundle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thorough import often

from reward_kit.agent import (
    Completion,
    Episode,
    RolloutLimits,
    TaskBundle,
    Trace,
    Usage,
    evaluate,
)
from reward_kit.agent.base.types import RolloutStopped
from reward_kit.agent.rollout.rollout import Budget
from reward_kit.agent.rollout.trace import read_trace
from reward_kit.errors import BundleError, StorageError, UsageError

ROWS = [
    {
        "id": "alice",
        "actions": GOLD,
        "initial_messages": [],
        "system_prompt": "Sell seats.",
        "max_steps": 60,
        "now": "2025-05-19T09:00:00Z",
    }
]
RETAIL = Path(__file__).parents[3] / "tau_retail_task"
PHONE = Path(__file__).parents[3] / "examples" / "phone_task"
FURTHER_TOOLS = """

@R.tool(description="Note the time", parameters={})
async def stamp(db):
    await db.execute("INSERT INTO bookings VALUES (hex(randomblob(4)), 1, datetime('now'), 'now')")
    return await db.fetch_val("SELECT hex(randomblob(2)) || datetime('now')")


@R.tool(description="Book for two", parameters={"one": str, "other": str})
async def book_two(one, other, rollout, db):
    booked = []
    for name in (one, other):
        booked.append(await rollout.call_tool("create_booking", {"flight_id": 1, "passenger": name}))
    return f"{booked} in step {rollout.steps}, after {len(rollout.lines)} lines"


@R.tool(description="Ask the world outside", parameters={})
def wall_clock():
    import time
    return str(time.perf_counter_ns())
"""


class RememberingUser(CountingUser):
    """A counting user that can be told of a conversation that it has not heard."""

    def recall(self, rollout: Any) -> None:
        lines = rollout.lines
        self.heard = tuple(
            lines[place - 1].text for place, line in enumerate(lines) if place and line.speaker == "user"
        )


@pytest.fixture
def wide(bundle: Bundle) -> Bundle:
    """The flight bundle with tools that draw, read the clock, and call other tools."""
    bundle.write("tools.py", (bundle.folder / "tools.py").read_text() + FURTHER_TOOLS)
    return bundle


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("create_booking"), st.sampled_from([{"flight_id": 1, "passenger": "A"}, {}, "[1"])),
        st.tuples(st.just("pay_booking"), st.just({"booking_id": "none"})),
        st.tuples(st.just("stamp"), st.just({})),
        st.tuples(st.just("book_two"), st.just({"one": "A", "other": "B"})),
        st.tuples(st.just("no such tool"), st.just({})),
        st.tuples(st.just("say"), st.sampled_from(["Hello", "Done"])),
        st.tuples(st.just("fork"), st.integers(1, 3)),
    ),
    max_size=8,
)


async def play(episode: Episode, moves: list[tuple[str, Any]], kept: dict[int, Episode]) -> Episode:
    """Make the moves; ``kept`` gets a fork at the end of each step. A fork with a new seed takes over."""
    for name, value in moves:
        if name == "say":
            await episode.say(value)
        elif name == "fork":
            episode = episode.fork(value)
        else:
            await episode.call(name, value)
        kept[episode.steps] = episode.fork()
    return episode


def stored(episode: Episode) -> Trace:
    """The trace as it is read back from its text."""
    episode.trace.tool_calls = episode.tool_calls
    trace = read_trace(episode.trace.encoded(), Path("somewhere"))
    trace.given = episode.row
    return trace


def seen(episode: Episode) -> dict[str, Any]:
    """All that can be seen but for what was spent before, which the recording has."""
    both = {"usage", "asked", "memory"}
    found = {name: one for name, one in state(episode).items() if name not in both}
    user = episode.user
    return {
        **found,
        "memory": getattr(user, "heard", None),
        "user's messages": episode.trace.user_messages,
        "forks": episode.trace.forks,
        "seed": episode.seed,
        "turn": (episode.turn_is_open, episode.turn_is_open and episode.turn_has_steps),
    }


@pytest.mark.parametrize("kind", ["remembering", "llm"])
@given(before=MOVES, after=MOVES)
@settings(max_examples=often(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_step_comes_back_as_it_was_and_goes_on_alike(
    wide: Bundle, kind: str, before: list[Any], after: list[Any]
) -> None:
    async def run() -> None:
        def options() -> dict[str, Any]:
            user: Any = RememberingUser() if kind == "remembering" else "llm"
            return {"user": user, "models": {"user": lambda messages: f"I see {len(str(messages))}"}}

        with TaskBundle.load(wide.dataset) as loaded:
            episode = loaded.episode(0, rng_seed=5, **options())
            kept = {0: episode.fork()}
            episode = await play(episode, before, kept)
            trace = stored(episode)
            for step, was in kept.items():
                restored = await Episode.from_trace(trace, step, bundle=loaded, **options())
                assert seen(restored) == seen(was), step
                assert restored.usage["user"].calls == 0
                twin, restored = await play(was, after, {}), await play(restored, after, {})
                assert seen(twin) == seen(restored)
                results = [await one.finish() for one in (twin, restored)]
                assert results[0] == results[1]
                again = await Episode.from_trace(stored(restored), bundle=loaded, **options())
                assert seen(again) == seen(restored)
                for one in (was, twin, restored, again):
                    one.close()

    asyncio.run(run())


async def test_a_user_that_thinks_keeps_its_thoughts(bundle: Bundle) -> None:
    asked: list[Any] = []

    def model(messages: list[Any]) -> str:
        asked.append(messages)
        return f"Thought: {len(messages)} messages.\nUser Response: I heard {messages[-1]['content'][:20]}"

    options: dict[str, Any] = {"user": "react", "models": {"user": model}}
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0, **options) as episode:
        for line in ("Hello", "Where to?"):
            await episode.say(line)
        with await Episode.from_trace(stored(episode), 1, bundle=loaded, **options) as restored:
            await restored.say("Where to?")
        assert asked[-1] == asked[-2]
        assert "Thought:\n2 messages." in str(asked[-1][2]["content"])


async def test_a_budget_counts_what_was_spent_before(bundle: Bundle) -> None:
    class Model:
        name = "costly"

        async def complete(self, _messages: Any, **_: Any) -> Completion:
            return Completion({"role": "assistant", "content": "Hm."}, Usage(calls=1, input_tokens=40))

    options: dict[str, Any] = {
        "models": {"agent": Model()},
        "limits": RolloutLimits(budget=Budget(max_tokens=100)),
    }
    with TaskBundle.load(bundle.dataset) as loaded, loaded.episode(0, **options) as episode:
        for _ in range(3):
            await episode.complete()
        with await Episode.from_trace(stored(episode), 2, bundle=loaded, **options) as restored:
            assert restored.usage["agent"].input_tokens == 0
            await restored.complete()
            for one in (episode, restored):
                with pytest.raises(BaseException, match="budget"):
                    await one.complete()
            assert episode.stop_detail == restored.stop_detail == "120 of 100 tokens are used (--max-tokens)"
            assert restored.usage["agent"].input_tokens == 40


def test_restored_from_threads(wide: Bundle) -> None:
    with TaskBundle.load(wide.dataset) as loaded, loaded.episode(0, user=RememberingUser()) as episode:
        episode.call_sync("stamp", {})
        episode.say_sync("Hello")
        trace, start = stored(episode), threading.Barrier(8)

        def go_on(number: int) -> tuple[int, str | None, bool]:
            start.wait()
            with Episode.from_trace_sync(trace, bundle=loaded, user=RememberingUser(), seed=number) as one:
                is_same = one.messages == trace.messages
                one.call_sync("stamp", {})
                return len(one.changes()), one.say_sync("Done"), is_same

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(go_on, range(8))) == [(2, "Line 2", True)] * 8


async def test_a_tool_that_is_not_repeatable_is_named(wide: Bundle) -> None:
    with TaskBundle.load(wide.dataset) as loaded, loaded.episode(0) as episode:
        await episode.call("stamp", {})
        await episode.call("wall_clock", {})
        trace = stored(episode)
        with await Episode.from_trace(trace, 1, bundle=loaded) as restored:
            assert restored.steps == 1
        with pytest.raises(BundleError, match="wall_clock is not repeatable: call 2 gave '") as raised:
            await Episode.from_trace(trace, bundle=loaded)
        assert "alice#1" in str(raised.value)
        assert "take random numbers and the time from its database" in str(raised.value)


@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_rollout_that_ended_within_a_tool_that_calls_tools(wide: Bundle, is_announced: bool) -> None:
    arguments = {"one": "A", "other": "B"}
    function = {"name": "book_two", "arguments": json.dumps(arguments)}
    answer = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    wide.rows({**ROWS[0], "max_steps": 2})
    with TaskBundle.load(wide.dataset) as loaded, loaded.episode(0, user=RememberingUser()) as episode:
        announced = {"call_id": "c1"} if is_announced else {}
        if is_announced:
            episode.rollout.record(answer)
        with pytest.raises(RolloutStopped):
            await episode.call("book_two", arguments, **announced)
        assert [call.name for call in episode.tool_calls] == ["create_booking", "book_two"]
        trace = stored(episode)
        with await Episode.from_trace(trace, bundle=loaded, user=RememberingUser()) as restored:
            assert seen(restored) == seen(episode)
            assert not restored.changes()
            assert restored.stop_reason == "max_steps"


async def test_refusals_name_the_reason(wide: Bundle) -> None:
    with TaskBundle.load(wide.dataset) as loaded, loaded.episode(0) as episode:
        await episode.call("stamp", {})
        trace = stored(episode)
        refused: list[tuple[dict[str, Any], str]] = [
            ({"step": 2}, "there is no step 2. The rollout has steps 0 to 1"),
            ({"step": -1}, "there is no step -1"),
            ({"step": 0, "tool_result": "x"}, "step 0 makes 0 tool calls"),
            ({"user": CountingUser()}, r"CountingUser keeps state.*def recall\(self, rollout\).*--user llm"),
        ]
        for options, message in refused:
            with pytest.raises(UsageError, match=message):
                await Episode.from_trace(trace, bundle=loaded, **options)
        trace.messages[0]["content"] = "Sell more."
        with pytest.raises(BundleError, match="begins with other messages"):
            await Episode.from_trace(trace, bundle=loaded)
        trace = stored(episode)
        del trace.messages[-1]["tool_call_id"]
        with pytest.raises(StorageError, match="damaged trace"):
            await Episode.from_trace(trace, bundle=loaded)


# --- stored evaluations


async def restore_all(result: Any, bundle: Path, **options: Any) -> int:
    """Restore each rollout at its end and at a step, finish those that were judged; returns their number."""
    number = 0
    with TaskBundle.load(bundle, **options) as loaded:
        for trace in result.records():
            rest = partial(Episode.from_trace, trace, bundle=loaded)
            with await rest() as episode, await rest(number % (trace.steps + 1)) as earlier:
                now = episode.trace
                assert (now.messages, now.user_messages) == (trace.messages, trace.user_messages)
                assert (now.steps, now.turns, now.stop_reason) == (
                    trace.steps,
                    trace.turns,
                    trace.stop_reason,
                )
                made = [(one.id, one.content, one.changes, one.step, one.turn) for one in episode.tool_calls]
                assert made == [
                    (one.id, one.content, one.changes, one.step, one.turn) for one in trace.tool_calls
                ]
                if trace.reward is not None:
                    assert (await episode.finish()).score == trace.reward
                    assert [one.to_json() for one in episode.changes()] == final_changes(trace)
                assert earlier.messages == trace.messages[: len(earlier.messages)]
            number += 1
    return number


def final_changes(trace: Trace) -> list[Any]:
    from contextlib import ExitStack

    assert trace.stored is not None
    with ExitStack() as opened:
        final = trace.stored.open("final", "overlay", opened)
        assert final is not None
        return [one.to_json() for one in final.changes()]


def test_all_rollouts_of_a_gold_evaluation_come_back(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_tasks": often(115, 12), "output_dir": tmp_path, "keep_db": "delta"}
    result = evaluate(RETAIL, agent="gold", **options)
    assert asyncio.run(restore_all(result, RETAIL)) == len(result.outcomes) == often(115, 12)


def test_rollouts_whose_user_acts_as_well_come_back(tmp_path: Path) -> None:
    result = evaluate(PHONE, agent="gold", output_dir=tmp_path, keep_db="delta")
    assert any(trace.user_messages for trace in result.records())
    assert asyncio.run(restore_all(result, PHONE)) == len(result.outcomes)


@pytest.mark.parametrize("options", [{}, {"mode": "solo"}])
def test_rows_that_begin_with_calls_and_rows_without_a_user_come_back(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    look = {"id": "one", "type": "function", "function": {"name": "look_around", "arguments": "{}"}}
    opening = [
        {"role": "user", "content": "I cannot get in."},
        {"role": "user", "content": None, "tool_calls": [look]},
        {"role": "tool", "tool_call_id": "one", "content": '[{"id": "front", "open": 0}]'},
    ]
    row = {**ROW, "initial_messages": [] if options else opening, "ticket": "The door does not open."}
    folder = door_bundle(tmp_path, rows=[row])
    models: Any = {
        "agent": lambda messages: asks("unlock", door="front") if len(messages) < 4 else "Push it."
    }
    result = evaluate(folder, models=models, user=None if options else "none", output_dir=tmp_path, **options)
    assert [one.steps > 1 for one in result.outcomes] == [True]
    assert asyncio.run(restore_all(result, folder, **options)) == 1


def wanderer(messages: list[Any], tools: list[Any], seed: int) -> Any:
    """Calls any tools, with ids that it has seen or with nonsense; speaks in between."""
    draw = random.Random(f"{seed} {len(messages)}")
    text = json.dumps(messages[1:])[-8000:]
    words = re.findall(r"#W\d+|[a-z]+_[a-z]+_\d{4}|\d{6,}|[A-Za-z]{3,}", text) or ["nothing"]

    def value(schema: dict[str, Any]) -> Any:
        if schema.get("type") == "array":
            return [draw.choice(words) for _ in range(draw.randrange(3))]
        return draw.choice(words) if draw.random() < 0.95 else draw.randrange(9)

    def asked() -> dict[str, Any]:
        tool = draw.choice(tools)["function"]
        names = tool["parameters"].get("properties", {})
        arguments = json.dumps({name: value(schema) for name, schema in names.items()})
        if draw.random() < 0.1:
            arguments = draw.choice(["{", "[]", "null", ""])
        name = "no_such_tool" if draw.random() < 0.05 else tool["name"]
        return {"id": draw.choice(["same", None]), "function": {"name": name, "arguments": arguments}}

    if draw.random() < 0.2:
        return draw.choice(words)
    return {"content": None, "tool_calls": [asked() for _ in range(draw.choice([1, 1, 2, 3]))]}


def talker(messages: list[Any]) -> str:
    """A user of few turns who names orders and people of the rows."""
    said = sum(one["role"] == "assistant" for one in messages)
    return "Thank you ###STOP###" if said > 3 else " ".join(str(messages[0]["content"]).split()[:60])


@pytest.mark.timeout(600)
def test_all_rollouts_of_a_model_that_makes_mistakes_come_back(tmp_path: Path) -> None:
    options: dict[str, Any] = {"n_rollouts": often(18, 1), "max_tasks": often(115, 20), "max_steps": 25}
    models: Any = {"agent": wanderer, "user": talker}
    result = evaluate(
        RETAIL, agent="tool-calling", models=models, output_dir=tmp_path, keep_db="delta", **options
    )
    statuses = {call.status for trace in result.records() for call in trace.tool_calls}
    assert {"ok", "refused", "unknown_tool", "invalid_arguments"} <= statuses
    assert asyncio.run(restore_all(result, RETAIL)) == len(result.outcomes) == often(115 * 18, 20)
