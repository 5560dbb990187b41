"""Evaluations from Python: what runs, what comes back, and what happens on the way."""

import json
import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from command import new_python, wait_for
from flight_bundle import GOLD, Bundle
from stored_rollouts import query_so_far

from reward_kit.agent import agent_eval, load_rollout, rescore
from reward_kit.agent.evaluation.progress import NoProgress, Tally
from reward_kit.agent.rollout.outcome import Outcome
from reward_kit.agent.store.writer import writer_of
from reward_kit.errors import RewardError, UsageError

ROWS = [{"actions": GOLD}]
PLAYERS = '''
import asyncio
import sys


class Books:
    """Books and pays, if the rollout's number is even."""

    async def respond(self, rollout):
        if rollout.index % 2:
            return "I am sorry."
        booked = await rollout.call_tool("create_booking", {"flight_id": 1, "passenger": "Alice"})
        await rollout.call_tool("pay_booking", {"booking_id": booked.partition(': "')[2].partition('"')[0]})
        return "Booked."


class Crashes:
    async def respond(self, rollout):
        raise RuntimeError("out of luck")


class Person:
    interactive = True
    running = most = 0

    async def respond(self, rollout):
        kind = type(self)
        kind.running += 1
        kind.most = max(kind.most, kind.running)
        await asyncio.sleep(0.005)
        kind.running -= 1
        return f"{kind.most} at once"


class Refuses:
    def check(self, task):
        from reward_kit.errors import BundleError

        raise BundleError("cannot play this", place=task.id)

    async def respond(self, rollout):
        return ""


class Waits:
    async def respond(self, rollout):
        if rollout.index:
            await asyncio.sleep(60)
        return "Here I am."


class Asks:
    """A user who asks once and leaves."""

    def __init__(self):
        self.lines = ["And the price?", "###STOP###"]

    async def respond(self, rollout):
        return self.lines.pop(0)
'''


def test_gold_from_plain_code(bundle: Bundle) -> None:
    result = agent_eval(bundle.dataset, agent="gold")
    assert result.score == 1.0
    assert (result.status, result.complete, result.planned) == ("complete", True, 4)
    assert json.loads(result.results_path.read_text()) == json.loads(json.dumps(result.to_json()))


async def test_the_same_inside_a_running_loop(bundle: Bundle) -> None:
    assert agent_eval(bundle.dataset, agent="gold").score == 1.0


async def test_errors_cross_from_the_thread_to_the_caller_inside_a_loop(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match="--model"):
        agent_eval(bundle.dataset)


def test_ones_own_agent_and_user(bundle: Bundle) -> None:
    result = agent_eval(bundle.dataset, agent=bundle.player("Books"), user=bundle.player("Asks"))
    assert [outcome.success for outcome in result.outcomes] == [True, False, True, False]
    assert [result.pass_power[k].value for k in (1, 2, 3, 4)] == pytest.approx([0.5, 1 / 6, 0, 0])
    assert [result.pass_at[k].value for k in (1, 2, 3, 4)] == pytest.approx([0.5, 5 / 6, 1, 1])
    assert result.failures == {"partially_completed": 2}
    assert {outcome.stop_reason for outcome in result.outcomes} == {"user_stop"}
    record = result.record(result.outcomes[0])
    assert (record.agent, record.user) == (bundle.player("Books"), bundle.player("Asks"))


def test_with_a_person_one_rollout_runs_at_a_time(bundle: Bundle) -> None:
    result = agent_eval(bundle.dataset, agent=bundle.player("Person"), no_sim_user=True, max_concurrency=4)
    assert {record.messages[-1]["content"] for record in result.records()} == {"1 at once"}


def test_an_agent_may_refuse_a_task_before_anything_runs(bundle: Bundle) -> None:
    with pytest.raises(Exception, match=r"flight.booking.001: cannot play this"):
        agent_eval(bundle.dataset, agent=bundle.player("Refuses"), no_sim_user=True)
    assert not Path("runs").exists()


def test_debug_notes_where_an_agent_raised(bundle: Bundle) -> None:
    alone = {"no_sim_user": True, "n_rollouts": 1}
    result = agent_eval(bundle.dataset, agent=bundle.player("Crashes"), debug=True, eval_id="told", **alone)
    noted = (result.folder / "evals" / "told.log").read_text()
    assert "RuntimeError: out of luck" in noted
    assert "in respond" in noted


def test_the_same_seed_makes_up_the_same_booking_and_another_another(bundle: Bundle) -> None:
    def bookings(**options: Any) -> list[str]:
        result = agent_eval(bundle.dataset, agent="gold", **options)
        return [record.tool_calls[0].content for record in result.records()]

    assert bookings() == bookings(max_concurrency=1)
    assert len({*bookings(), *bookings(seed=11)}) == 8


def test_progress_is_reported_from_the_first_to_the_last(bundle: Bundle) -> None:
    heard: list[tuple[str, int, float | None]] = []

    class Listener:
        def started(self, tally: Tally) -> None:
            heard.append(("started", tally.planned, tally.pass_1))

        def ended(self, outcome: Outcome, tally: Tally) -> None:
            assert load_rollout(Path("runs") / outcome.file).id == outcome.id
            heard.append(("ended", tally.done, tally.pass_1))

        def closed(self, tally: Tally) -> None:
            heard.append(("closed", tally.done, tally.pass_1))

    agent_eval(bundle.dataset, agent="gold", progress=Listener())
    ended = [("ended", number, 1.0) for number in (1, 2, 3, 4)]
    assert heard == [("started", 4, None), *ended, ("closed", 4, 1.0)]


class Idle:
    async def respond(self, _: Any) -> str:
        return "Done."


def test_rows_in_which_nobody_speaks_first_are_told(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    bundle.rows({"initial_messages": [], "sim_user_prompt": "You want a seat."})
    agent_eval(bundle.dataset, agent=Idle, user="none")
    said = "1 row without first message and user, such as 'flight.booking.001': nobody tells the agent"
    assert said in caplog.text


BROKEN_TOOL = "\n\n@R.tool(parameters={'key': str})\ndef lookup(key):\n    return {}[key]\n"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"key": "x"}, "tools.py:33: KeyError: 'x'"),
        ({"key": 1}, "Error: invalid arguments for tool 'lookup'"),
        ({"key": {"$result": [0, "id"]}}, 'Error: gold reference [0, "id"]'),
    ],
    ids=["raises", "wrong argument", "no such result"],
)
def test_impossible_gold_actions_are_an_error(bundle: Bundle, arguments: dict[str, Any], fault: str) -> None:
    """The data that they lead to are not known if one cannot be made: then nobody is judged by them."""
    bundle.write("tools.py", (bundle.folder / "tools.py").read_text() + BROKEN_TOOL)
    search = {"name": "search_flights", "arguments": {"origin": "SFO", "dest": "JFK", "date": "2025-05-20"}}
    lookup = {"name": "lookup", "arguments": arguments}
    wrong = {"id": "wrong", "score_by": ["data"], "actions": [search, lookup]}
    bundle.rows({"id": "right", "actions": [], "n_rollouts": 1}, wrong)
    told: list[str] = []

    class Listener(NoProgress):
        def noted(self, text: str) -> None:
            told.append(text)

    result = agent_eval(bundle.dataset, agent="gold", progress=Listener())
    (first,) = told
    is_made = arguments == {"key": "x"}  # the tool fails, as it may for any agent
    assert {one.row_id: one.scored for one in result.outcomes} == {"right": True, "wrong": is_made}
    assert result.outcomes[1].attempt == 0
    assert is_made or "actions[1] (lookup) cannot be played: " in result.outcomes[1].trouble
    assert f"row 'wrong': actions[1] (lookup): {fault}" in first
    (bundle.folder / "reward.py").unlink()
    bundle.rows(
        {"id": "right", "actions": [], "n_rollouts": 1}, wrong, {**wrong, "id": "goal", "score_by": None}
    )
    goal = agent_eval(bundle.dataset, agent=Idle, user="none", eval_id="goal", task_ids="goal")
    assert goal.score == 0.0  # by end_goal_sql, which reads no gold_db
    bundle.rows({"id": "right", "actions": [], "n_rollouts": 1}, wrong)
    idle = agent_eval(bundle.dataset, agent=Idle, user="none", eval_id="idle")
    assert {one.row_id: one.scored for one in idle.outcomes} == {"right": True, "wrong": is_made}
    said = f"gold_db is not known, because of actions[1] (lookup): {fault}"
    assert is_made or said in idle.outcomes[1].trouble
    with load_rollout("idle wrong#1") as rollout:
        given = rollout.reward_arguments()
        with nullcontext() if is_made else pytest.raises(RewardError, match=re.escape(said)):
            given["gold_db"].changes()
    again = rescore("idle")
    assert [one.now.scored for one in again.rollouts] == [True, *[is_made] * 4]


def test_an_agent_of_the_running_script_is_named_by_main(bundle: Bundle) -> None:
    script = bundle.write(
        "script.py",
        "from reward_kit.agent import agent_eval\n"
        "class Mute:\n"
        "    async def respond(self, rollout):\n"
        "        return 'Hm.'\n"
        "print(agent_eval('flight_task', agent='__main__:Mute', user='none').outcomes[0].stop_reason)\n",
    )
    ran = new_python(script, timeout=100)
    assert (ran.code, ran.out, ran.err) == (0, "agent_done\n", "")


def test_ctrl_c_in_plain_code_keeps_what_is_finished(bundle: Bundle) -> None:
    script = bundle.write(
        "script.py",
        "import sys; sys.path.insert(0, '.')\n"
        "from reward_kit.agent import agent_eval\n"
        f"agent_eval('flight_task', agent={bundle.player('Waits')!r}, user='none', eval_id='cut')\n",
    )
    process = subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True)
    log = Path("runs/evals/cut.db")
    wait_for(lambda: query_so_far(log, "SELECT * FROM rollouts"), process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert "Task exception was never retrieved" not in said
    stored = json.loads(Path("runs/evals/cut.json").read_text())
    assert (stored["status"], stored["finished"]) == ("interrupted", 1)
    assert writer_of(log) is None
