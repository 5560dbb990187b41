"""Whatever foreign code hands over: the evaluation ends, neighbours score 1.0, and all of it can be read."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from flight_bundle import GOLD, TOOLS, Bundle
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json
from small_task import Speaker, play, small_task

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.after.export import export
from reward_kit.agent.after.rescore import rescore
from reward_kit.agent.base.encoding import json_bytes, plain
from reward_kit.agent.base.types import Usage
from reward_kit.cli.show import show

ROWS = ({"id": "odd", "n_rollouts": 20}, {"id": "good", "actions": GOLD, "n_rollouts": 6})
TEXT = st.text(st.characters(exclude_categories=()), max_size=8)


class Named(str):
    """The name of a value in ``SPECIAL``, of which hypothesis could not tell."""


def made(value: Any) -> Any:
    """The value with those of ``SPECIAL`` in the place of their names."""
    if isinstance(value, Named):
        return SPECIAL[value]()
    if isinstance(value, list | tuple):
        return [made(inner) for inner in value]
    return {name: made(inner) for name, inner in value.items()} if isinstance(value, dict) else value


def ring() -> list[Any]:
    """A list that holds itself."""
    found: list[Any] = []
    found.append({"ring": found})
    return found


def nested(levels: int, times: int) -> list[Any]:
    """A list in a list, several times the same: ``times ** levels`` of them, written out."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found] * times
    return found


SPECIAL = {
    "bytes": lambda: b"\xff",
    "object": object,
    "error": lambda: ValueError("\ud800"),
    "set": lambda: {1, 2},
    "ring": ring,
    "deep": lambda: nested(3000, 1),
    "wide": lambda: nested(90, 2),
    "digits": lambda: 10**6000,
    "huge": lambda: "x" * 2_000_000,
    "half": lambda: "\ud83d",
}
NAMED = st.sampled_from([*map(Named, SPECIAL)])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | NAMED,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
NUMBERS = st.sampled_from([0, 1, 2.5, 2**53, -1, float("inf"), 10**20, None, "3"])
USAGES = VALUES | st.builds(Usage, calls=NUMBERS, input_tokens=NUMBERS, cost=NUMBERS)
CALLS = st.fixed_dictionaries({"id": VALUES, "function": VALUES | st.fixed_dictionaries({"name": VALUES})})
MESSAGES = st.fixed_dictionaries({"role": VALUES, "content": VALUES, "extra": VALUES})
STEPS = st.one_of(
    st.tuples(
        st.just("stop"),
        st.sampled_from(["agent_done", "user_error", "infrastructure_error"]) | VALUES,
        VALUES,
    ),
    st.tuples(
        st.just("call_tool"), st.sampled_from(["search_flights", Named("huge")]) | VALUES, VALUES, VALUES
    ),
    st.tuples(
        st.just("record"),
        VALUES | st.fixed_dictionaries({"content": VALUES, "tool_calls": VALUES | st.lists(CALLS)}),
    ),
    st.tuples(
        st.just("count_usage"), USAGES, VALUES, st.sampled_from(["agent", "user", "judge"]) | VALUES, VALUES
    ),
    st.tuples(st.just("complete"), VALUES | st.lists(MESSAGES), VALUES, st.just("agent") | VALUES),
    st.tuples(st.just("tools"), VALUES | st.lists(MESSAGES)),
    st.tuples(st.just("append"), VALUES),
    st.tuples(st.just("prompt_text"), VALUES),
    st.tuples(st.just("reply"), VALUES | MESSAGES),
    st.tuples(
        st.just("raise"), st.sampled_from([ValueError, SystemExit, KeyboardInterrupt, GeneratorExit]), TEXT
    ),
)


async def act(rollout: Any, name: str, *given: Any) -> Any:
    """Do one thing on the handle."""
    if name == "call_tool":
        await rollout.call_tool(given[0], given[1], call_id=given[2])
    elif name == "complete":
        await rollout.complete(given[0], tools=given[1], role=given[2])
    elif name == "count_usage":
        rollout.count_usage(given[0], model=given[1], role=given[2], finish_reason=given[3])
    elif name == "tools":
        rollout.tools = given[0]
    elif name == "append":
        rollout.tools.append(given[0])
    elif name == "raise":
        raise given[0](given[1])
    elif name != "reply":
        getattr(rollout, name)(*given)
    return given[0]


async def gold(rollout: Any) -> str:
    booked = await rollout.call_tool("create_booking", {"flight_id": 1, "passenger": "Alice"})
    await rollout.call_tool("pay_booking", {"booking_id": from_json(booked)["booking_id"]})
    return "Booked."


def check_all_is_read(result: EvaluationResult) -> None:
    """Each rollout is shown, loaded, exported, and judged again as before."""
    assert {one.reward for one in result.outcomes if one.row_id == "good"} == {1.0}
    records = list(result.records())
    assert len(records) == len(result.outcomes)
    for record in records:
        assert from_json(json_bytes(record.to_json()))["messages"] == from_json(record.encoded())["messages"]
    exported = export(result.log_path, unjudged=True)
    list(exported)
    assert exported.damaged == []
    for row in ("odd", "good"):
        shown = CliRunner().invoke(show, [f"{result.eval_id} {row}#1"])
        assert (shown.exit_code, shown.exception) == (0, None), shown.output
    assert {change.now.reward for change in rescore(result.log_path).changed} == set()


@settings(max_examples=2, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(programs=st.lists(st.lists(STEPS, min_size=1, max_size=3), min_size=20, max_size=20))
def test_every_method_of_the_handle_takes_any_values(
    bundle: Bundle, programs: list[list[tuple[Any, ...]]]
) -> None:
    async def agent(rollout: Any) -> Any:
        if rollout.row_id == "good":
            return await gold(rollout)
        for step in programs[rollout.index][:-1]:
            with suppress(Exception):
                await act(rollout, *made(step))
        return await act(rollout, *made(programs[rollout.index][-1]))

    models = {"agent": lambda messages: "Sorry."}
    result = agent_eval(bundle.dataset, agent=agent, user="none", models=models, retries=0, cache=False)
    assert result.status == "complete"
    assert result.unjudged == {}, [one.stop_detail for one in result.outcomes if not one.scored]
    check_all_is_read(result)


@given(value=VALUES)
def test_what_is_written_is_what_is_read(value: Any) -> None:
    written = plain(made(value), strict=False)
    assert repr(from_json(json_bytes(written))) == repr(written)
    if not any(name in repr(value) for name in ("digits", "wide")):  # which the encoder alone writes out
        assert isinstance(from_json(json_bytes({"any": made(value)})), dict)


HOSTILE_TOOLS = """
@R.tool(parameters={})
async def huge():
    raise ValueError("x" * 5_000_000 + chr(0xd83d))

@R.tool(parameters={})
def ends():
    raise KeyboardInterrupt

@R.tool(parameters={})
async def stops(rollout):
    rollout.stop("infrastructure_error", ValueError("no"))
"""
HOSTILE_REWARD = """
from reward_kit import EvaluateResult, MetricResult

def evaluate(messages, *, rollout, **kwargs):
    if rollout.row_id == "odd" and rollout.index == 3:
        raise ValueError("x" * 5_000_000 + chr(0xd83d))
    score = 1.0 if rollout.row_id == "good" else 0.0
    half = chr(0xd83d)
    return EvaluateResult(score=score, reason=half, metrics={half: MetricResult(score=score, reason=half)})
"""


def test_what_tools_and_rewards_hand_over_can_be_read(bundle: Bundle) -> None:
    bundle.write("tools.py", TOOLS + HOSTILE_TOOLS)
    bundle.write("reward.py", HOSTILE_REWARD)
    bundle.rows({"id": "odd", "n_rollouts": 4}, ROWS[1])

    async def agent(rollout: Any) -> Any:
        if rollout.row_id == "good":
            return await gold(rollout)
        return await rollout.call_tool(["huge", "ends", "stops", "unknown" * 500_000][rollout.index], {})

    result = agent_eval(bundle.dataset, agent=agent, user="none", retries=0)
    odd = [one for one in result.records() if one.row_id == "odd"]
    assert [one.tool_calls[0].status for one in odd] == ["failed", "failed", "failed", "unknown_tool"]
    assert len(odd[0].tool_calls[0].content) < 70_000
    assert "reason is agent_done or agent_error, not 'infrastructure_error'" in odd[2].tool_calls[0].content
    assert len(odd[3].tool_calls[0].name) < 300
    assert [
        (one.row_id, one.stop_reason, one.error is None) for one in result.outcomes if not one.scored
    ] == [("odd", "agent_done", False)]
    check_all_is_read(result)


@pytest.mark.parametrize(
    ("detail", "stored"), [(ValueError("broken"), "broken"), ("a\ud83d", "a?"), (b"x", "b'x'"), (None, None)]
)
async def test_a_detail_is_stored_as_text(tmp_path: Path, detail: Any, stored: str | None) -> None:
    async def stop(rollout: Any) -> str:
        rollout.stop("agent_error", detail)
        return ""

    finished = await play(small_task(tmp_path), Speaker(stop))
    assert (finished.trace.stop_reason, finished.trace.stop_detail) == ("agent_error", stored)
    assert finished.trace.reward == 0.0


@pytest.mark.parametrize("reason", ["user_error", "infrastructure_error", "timeout", "finished", None, ["x"]])
async def test_only_the_engine_leaves_a_rollout_out(tmp_path: Path, reason: Any) -> None:
    async def stop(rollout: Any) -> str:
        rollout.stop(reason)
        return "Done"

    finished = await play(small_task(tmp_path), Speaker(stop))
    assert (finished.trace.stop_reason, finished.trace.reward) == ("agent_error", 0.0)
    assert "ValueError: reason is agent_done or agent_error, not " in str(finished.trace.stop_detail)


async def test_the_sum_of_what_is_counted_stays_a_number_that_sqlite_holds(tmp_path: Path) -> None:
    async def count(rollout: Any) -> str:
        for _ in range(1200):
            rollout.count_usage(Usage(input_tokens=2**52, output_tokens=2**52), model="m")
        return "Done"

    finished = await play(small_task(tmp_path), Speaker(count))
    assert "Usage.input_tokens is above" in str(finished.trace.stop_detail)
    assert finished.trace.usage["agent"].input_tokens == 2**53
