"""Recorded evaluations, played again after a change: what came out differently, and that nothing else did."""

import json
from typing import Any

import pytest
from command import run_command
from flight_bundle import GOLD, TOOLS, Bundle
from stub_server import Answer, StubServer, call, calls

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.base.history import INTERRUPTED
from reward_kit.agent.base.types import ToolCall
from reward_kit.agent.comparison.replay import first_difference

ROWS = [{"id": "a", "actions": GOLD}, {"id": "b", "actions": GOLD}]
MODELS: dict[str, Any] = {"model": "openai/gpt-4o-mini", "sim_model": "openai/gpt-3.5-turbo"}
MORE_TOOLS = """
import asyncio

@R.tool(description="Write slowly", parameters={"name": str, "seconds": float})
async def slow_booking(name, seconds, db):
    await asyncio.sleep(seconds)
    booking = await db.fetch_val("SELECT hex(randomblob(4))")
    await db.execute("INSERT INTO bookings VALUES (:b, 1, :n, 'slow')", {"b": booking, "n": name})
    return {"booking_id": booking}

@R.tool(description="Hand over to a person", parameters={}, terminal=True)
async def transfer():
    return "Transferred"
"""
PLAYERS = """
import asyncio

class SideBySide:
    async def respond(self, rollout):
        await asyncio.gather(
            rollout.call_tool("slow_booking", {"name": "late", "seconds": 0.2}),
            rollout.call_tool("slow_booking", {"name": "early", "seconds": 0.0}),
            rollout.call_tool("no such tool!", {}),
        )
        return "Both are booked."
"""


@pytest.fixture
def bundle(bundle: Bundle) -> Bundle:
    bundle.write("tools.py", f"{TOOLS}\n{MORE_TOOLS}")
    return bundle


def record(bundle: Bundle, **options: Any) -> EvaluationResult:
    given = {"n_rollouts": 2, "eval_id": "recorded", "max_concurrency": 1, **options}
    return agent_eval(bundle.dataset, **given)


def replay(bundle: Bundle, recorded: EvaluationResult, **options: Any) -> EvaluationResult:
    options = {"agent": f"replay:{recorded.log_path}", "n_rollouts": 2, "seed": 99, **options}
    return agent_eval(bundle.dataset, **options)


def histories(result: EvaluationResult) -> list[Any]:
    """What was said, and what the calls have changed that did so."""
    return [(one.messages, [it.changes for it in one.tool_calls if it.changes]) for one in result.records()]


def check_same(again: EvaluationResult, recorded: EvaluationResult) -> None:
    """The replay came out as the evaluation that it replays."""
    assert again.compared_with is not None
    assert [difference.line() for difference in again.compared_with.differences] == []
    assert again.compared_with.compared == len(recorded.outcomes)
    assert histories(again) == histories(recorded)


def changed(bundle: Bundle, name: str, old: str, new: str) -> None:
    text = (bundle.folder / name).read_text()
    assert old in text
    bundle.write(name, text.replace(old, new))


def test_what_has_not_changed_comes_out_the_same_whatever_the_seed(bundle: Bundle) -> None:
    recorded = record(bundle, agent="gold")
    again = replay(bundle, recorded)
    check_same(again, recorded)  # the booking's random ids included
    assert again.compared_with is not None
    stored = json.loads(again.results_path.read_text())["compared_with"]
    assert (stored["compared"], stored["different"], stored["source"]) == (4, 0, str(recorded.log_path))
    (line,) = again.compared_with.lines()
    assert line == f"all 4 rollouts came out as recorded in {recorded.log_path}"


def test_recordings_that_are_not_replayed_are_told(bundle: Bundle, caplog: Any) -> None:
    recorded = record(bundle, agent="gold")
    replay(bundle, recorded)
    assert "not replayed" not in caplog.text
    replay(bundle, recorded, n_rollouts=1, eval_id="fewer")
    assert "2 recorded rollouts beyond those that the rows ask for: not replayed" in caplog.text


def test_a_changed_tool_shows_where_it_first_made_a_difference(bundle: Bundle) -> None:
    recorded = record(bundle, agent="gold")
    changed(bundle, "tools.py", 'return {"ok": True}', 'return {"ok": False}')
    again = replay(bundle, recorded)
    assert again.compared_with is not None
    stored = json.loads(again.results_path.read_text())["compared_with"]
    assert (stored["different"], len(stored["differences"])) == (4, 4)
    first = stored["differences"][0]
    assert (first["row_id"], first["index"]) == ("a", 0)
    assert (first["reward_before"], first["reward"]) == (1.0, 1.0)
    call = first["call"]
    assert (call["call"], call["name"], call["what"]) == (1, "pay_booking", "observation")
    assert (call["before"], call["now"]) == ('{"ok": true}', '{"ok": false}')


def test_a_tool_that_writes_other_rows_and_says_the_same_is_found(bundle: Bundle) -> None:
    recorded = record(bundle, agent="gold")
    changed(bundle, "tools.py", "SET status='paid'", "SET status='paid', passenger='ALICE'")
    again = replay(bundle, recorded)
    assert again.compared_with is not None
    (first, *_) = again.compared_with.differences
    assert first.call is not None
    assert (first.call.what, first.call.name) == ("changes", "pay_booking")
    assert (first.reward_before, first.reward) == (1.0, 0.0)
    assert "reward 1 -> 0; call 2, pay_booking: changed" in first.line()


def test_the_command_says_it_at_the_end(bundle: Bundle) -> None:
    record(bundle, agent="gold")
    changed(bundle, "reward.py", "score=1.0 if ok", "score=0.5 if ok")
    command = ["agent-eval", "-d", "flight_task", "--n-rollouts", "2"]
    done = run_command(*command, "--agent", "replay:runs/evals/recorded.db", "--task-ids", "a")
    assert done.code == 0, done.err
    assert "2 of 2 rollouts came out differently from runs/evals/recorded.db:" in done.out
    assert "  a #1: reward 1 -> 0.5\n" in done.out


def conversation(stub: StubServer, script: list[Any], lines: list[str]) -> None:
    stub.script("gpt-4o-mini", script)
    stub.script("gpt-3.5-turbo", lines)


TALK = ["Yes please.", "###STOP###"]
FOR_A: Any = ("create_booking", {"flight_id": 1, "passenger": "A"})
FOR_B: Any = ("create_booking", {"flight_id": 1, "passenger": "B"})
SCRIPTS: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "several calls at once": (
        [calls(FOR_A, ("search_flights", "{torn"), FOR_B, content="Let me see"), "Shall I?", "Done"],
        {}, "user_stop",
    ),
    "thoughts": (
        [Answer(content="Sure", message={"reasoning_content": "Hmm"}), call("book a flight!", x=1),
         Answer(content="<think>So</think>Done", message={"reasoning_content": "More"})],
        {}, "user_stop",
    ),
    "a terminal tool among others": ([calls(FOR_A, ("transfer", {}), FOR_B)], {}, "terminal_tool"),
    "out of steps": ([call("create_booking", flight_id=1, passenger="A")], {"max_steps": 3}, "max_steps"),
    "out of time": (
        [calls(FOR_A, ("slow_booking", {"name": "x", "seconds": 60}), ("transfer", {}))],
        {"timeout": 1.5}, "timeout",
    ),
    "empty answers": (["Hello", Answer(content="")], {}, "agent_error"),
    "a user that breaks": (["Hello", "And?", "So?"], {"lines": ["Yes.", ""]}, "user_error"),
    "react": (
        [f'Thought: book\nAction:\n{{"name": "create_booking", "arguments": {json.dumps(FOR_A[1])}}}',
         'nonsense', 'Thought: say it\nAction:\n{"name": "respond", "arguments": {"content": "Done"}}'],
        {"agent": "react"}, "user_stop",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_conversation_is_replayed_word_for_word(bundle: Bundle, stub_llm: StubServer, name: str) -> None:
    script, options, ended_by = SCRIPTS[name]
    options = dict(options)
    conversation(stub_llm, script, options.pop("lines", TALK))
    recorded = record(bundle, **MODELS, **options, retries=0, task_ids="a")
    assert {outcome.stop_reason for outcome in recorded.outcomes} == {ended_by}
    asked = len(stub_llm.requests)
    again = replay(bundle, recorded, task_ids="a")
    assert len(stub_llm.requests) == asked
    check_same(again, recorded)
    assert [outcome.stop_reason for outcome in again.outcomes] == [ended_by] * 2
    assert [one.stop_detail for one in again.outcomes] == [one.stop_detail for one in recorded.outcomes]


def test_calls_side_by_side_are_replayed_in_the_order_of_their_effects(bundle: Bundle) -> None:
    recorded = record(bundle, agent=bundle.player("SideBySide"), no_sim_user=True)
    made = recorded.record(recorded.outcomes[0]).tool_calls
    assert [(call.arguments or {}).get("name") for call in made] == [None, "early", "late"]
    assert made[0].name == "no such tool!"
    check_same(replay(bundle, recorded), recorded)


def test_a_repeated_attempt_is_replayed_with_the_seed_it_had(bundle: Bundle, stub_llm: StubServer) -> None:
    script = [call("create_booking", flight_id=1, passenger="A"), "Done"]
    conversation(stub_llm, script, TALK)
    stub_llm.fail("gpt-4o-mini", Answer(drop=True), times=2)
    recorded = record(bundle, **MODELS, retries=1, task_ids="a", n_rollouts=1)
    assert recorded.outcomes[0].attempt == 1
    again = replay(bundle, recorded, task_ids="a", n_rollouts=1)
    assert again.outcomes[0].seed == recorded.outcomes[0].seed
    check_same(again, recorded)


def seen(name: str, content: str, arguments: Any = None) -> ToolCall:
    return ToolCall(0, "c", 1, 1, name, {} if arguments is None else arguments, content, "ok", [], 0.0, 0.0)


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        ([seen("x", "1"), seen("y", "2")], [seen("x", "1")], (1, "y", "missing", "2", "")),
        ([seen("x", "1")], [seen("x", "1"), seen("y", "2")], (1, "y", "added", "", "2")),
        ([seen("x", "1")], [seen("y", "1")], (0, "y", "call", "x {}", "y {}")),
        ([seen("x", "1", "{}")], [seen("x", "1")], None),
        ([seen("x", INTERRUPTED), seen("y", "2")], [seen("y", "2")], None),
    ],
    ids=["missing", "added", "another call", "arguments as text", "interrupted"],
)
def test_the_first_difference_is_found(before: Any, now: Any, found: Any) -> None:
    difference = first_difference(before, now)
    if found is None:
        assert difference is None
    else:
        assert difference is not None
        assert (difference.call, difference.name, difference.what, difference.before, difference.now) == found
