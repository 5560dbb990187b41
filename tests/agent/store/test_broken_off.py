"""What rollouts have used that were broken off: it counts for budgets and the cost, and nowhere else."""

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import start, wait_for
from flight_bundle import Bundle
from stored_rollouts import query_so_far

from reward_kit.agent import EvaluationConfig, EvaluationResult, agent_eval, compare, evaluate_async
from reward_kit.agent.reports.comparison import comparison_lines
from reward_kit.agent.reports.facts import facts_of
from reward_kit.agent.reports.listings import evaluation_cells
from reward_kit.agent.rollout.outcome import total_usage
from reward_kit.agent.store.layout import load_evaluation
from reward_kit.agent.store.writer import Store
from reward_kit.errors import ModelSetupError, StorageError

COST, TOKENS = 0.5, 12
"""Of each call of the agents below; both note each of them in a file."""
MINUTE = 60.0
MINE: Any = {"no_sim_user": True, "eval_id": "mine"}
ROWS = [{"id": "a", "n_rollouts": 3}]
PLAYERS = f'''
import asyncio
import os
import sqlite3
import random
from pathlib import Path

from reward_kit.agent.base.types import Usage
from reward_kit.errors import ModelSetupError, StorageError


def ask(rollout, role="agent"):
    rollout.count_usage(
        Usage(calls=1, input_tokens=10, output_tokens=2, cost={COST}), model="mine", seconds=0.5, role=role
    )
    descriptor = os.open("asked.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{{rollout.row_id}} {{rollout.index}}\\n".encode())
    os.close(descriptor)


class Holds:
    """Answers in the first rollout of each row, and in all once there is a file ``go``."""

    async def respond(self, rollout):
        ask(rollout)
        if rollout.index and not Path("go").exists():
            ask(rollout, "user")
            await asyncio.sleep(600)
        return "Hello"


class Refused(Holds):
    """Finds that no model can be asked at all, when all others wait."""

    async def respond(self, rollout):
        if rollout.index == 1 and not Path("go").exists():
            ask(rollout)
            log = Path("runs/evals/mine.db")
            over = "SELECT count(*) FROM rollouts"
            while (
                len(Path("asked.txt").read_text().splitlines()) < 4
                or not sqlite3.connect(log).execute(over).fetchone()[0]
            ):
                await asyncio.sleep(0.01)
            raise ModelSetupError("the key is refused")
        return await super().respond(rollout)


class Wanders:
    """Asks now and then, and takes its time."""

    async def respond(self, rollout):
        for _ in range(4):
            ask(rollout)
            await asyncio.sleep(0.02 * random.random())
        return "Hello"
'''


def asked() -> int:
    """Calls that were made and counted, as the agents have noted them."""
    path = Path("asked.txt")
    return len(path.read_text().splitlines()) if path.exists() else 0


def kinds(path: Path) -> list[str]:
    """The runs, rollouts and aborted attempts in an evaluation's file."""
    tables = "SELECT 'evaluation' AS kind FROM evaluation UNION ALL SELECT 'rollout' FROM rollouts"
    return [row["kind"] for row in query_so_far(path, f"{tables} UNION ALL SELECT kind FROM usage")]


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + MINUTE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def cancelled(bundle: Bundle, agent: str, when: Callable[[], bool], **options: Any) -> EvaluationResult:
    """An evaluation ``mine`` that is cancelled as soon as ``when`` says so."""
    config = EvaluationConfig(**MINE, dataset=str(bundle.dataset), agent=agent, **options)
    running = asyncio.ensure_future(evaluate_async(config))
    await until(when)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    return load_evaluation("mine")


def all_asked_and_one_over() -> bool:
    return asked() == 5 and kinds(Path("runs/evals/mine.db")).count("rollout") == 1


async def held(bundle: Bundle, **options: Any) -> EvaluationResult:
    """One rollout is over, two are broken off that have each asked twice."""
    return await cancelled(bundle, bundle.player("Holds"), all_asked_and_one_over, **options)


def goes_on(bundle: Bundle, **options: Any) -> EvaluationResult:
    Path("go").touch()
    return agent_eval(bundle.dataset, agent=bundle.player("Holds"), **MINE, **options)


async def test_it_is_reported_apart_from_what_rollouts_have_used_that_are_over(bundle: Bundle) -> None:
    result = await held(bundle)
    assert (result.status, len(result.outcomes)) == ("interrupted", 1)
    assert (result.usage["agent"].calls, result.usage["agent"].cost) == (1, COST)
    assert result.broken_off.rollouts == 2
    assert {role: usage.calls for role, usage in result.broken_off.usage.items()} == {"agent": 2, "user": 2}
    assert (result.spent.calls, result.spent.cost, result.spent.fresh_tokens) == (5, 5 * COST, 5 * TOKENS)
    assert result.averages.model_call_seconds == pytest.approx(0.5)
    assert "1 of 3 rollouts, $2.50" in "\n".join(comparison_lines(compare(result, result)))
    plain = json.loads(result.results_path.read_text())
    assert plain["broken_off"] == result.broken_off.to_json()
    assert "broken_off" in kinds(result.log_path)
    assert kinds(result.log_path).count("broken_off") <= 2


async def test_it_is_known_of_a_stored_evaluation_and_of_one_that_goes_on(bundle: Bundle) -> None:
    first = await held(bundle)
    stored = load_evaluation("mine")
    assert stored.broken_off == first.broken_off
    assert stored.spent == first.spent
    whole = await asyncio.to_thread(goes_on, bundle)
    assert whole.broken_off == first.broken_off
    assert (len(whole.outcomes), whole.usage["agent"].calls, whole.usage["user"].calls) == (3, 3, 0)
    assert whole.spent.calls == asked() == 7


async def test_a_budget_that_it_has_used_up_lets_nothing_begin(bundle: Bundle) -> None:
    await held(bundle)
    for option, budget, used in (
        ("max_cost", 5 * COST, "2.50 of 2.50 USD are spent"),
        ("max_tokens", 5 * TOKENS, "60 of 60 tokens are used"),
    ):
        again = await asyncio.to_thread(goes_on, bundle, **{option: budget})
        assert (again.status, len(again.outcomes), asked()) == ("budget", 1, 5)
        assert used in (again.reason or "")
    more = await asyncio.to_thread(goes_on, bundle, max_cost=5 * COST + 1)
    assert len(more.outcomes) > 1


async def test_it_adds_up_over_several_runs(bundle: Bundle) -> None:
    await held(bundle)
    result = await cancelled(bundle, bundle.player("Holds"), lambda: asked() == 9)
    assert result.broken_off.rollouts == 4
    lost = total_usage(result.broken_off.usage.values())
    told = f"${lost.cost:.2f} in addition, {lost.calls} model calls of 4 aborted attempts"
    assert [text for name, text in facts_of(result) if name == "aborted"] == [told]
    assert f"${result.spent.cost:.2f}" in evaluation_cells(load_evaluation("mine")).values()
    assert result.spent.calls == asked() == 9


def test_so_it_is_where_a_fault_ends_the_run(bundle: Bundle) -> None:
    with pytest.raises(ModelSetupError, match="the key is refused"):
        agent_eval(bundle.dataset, agent=bundle.player("Refused"), **MINE)
    stored = load_evaluation("mine")
    assert stored.spent.calls == asked() == 4
    assert stored.broken_off.rollouts == 2


@pytest.mark.parametrize("workers", [0, 2])
async def test_whatever_the_moment_each_call_counts_once(bundle: Bundle, workers: int) -> None:
    agent = bundle.player("Wanders")
    bundle.rows(*({"id": f"row{number}", "n_rollouts": 10} for number in range(3)))
    for more in (1, 40):
        moment = asked() + more
        options = {"workers": workers, "max_concurrency": 15}
        result = await cancelled(bundle, agent, lambda moment=moment: asked() >= moment, **options)
        assert result.spent.calls == asked()
        assert load_evaluation("mine").spent.calls == asked()
    config = EvaluationConfig(**MINE, dataset=str(bundle.dataset), agent=agent, workers=workers)
    whole = await evaluate_async(config)
    assert (whole.complete, whole.usage["agent"].calls) == (True, 4 * 30)
    assert whole.spent.calls == asked() > 4 * 30


def command(bundle: Bundle, workers: str) -> subprocess.Popen[str]:
    more = ["--workers", workers] if workers != "0" else []
    line = f"agent-eval -d {bundle.dataset} --agent {bundle.player('Holds')} --no-sim-user --eval-id mine"
    return start(*line.split(), "--quiet", *more, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, "0"), (signal.SIGTERM, "2")])
def test_a_signal_loses_no_call(bundle: Bundle, number: signal.Signals, workers: str) -> None:
    process = command(bundle, workers)
    wait_for(all_asked_and_one_over, process)
    process.send_signal(number)
    _, said = process.communicate(timeout=MINUTE)
    assert process.returncode == 130, said
    log = Path("runs/evals/mine.db")
    assert sum(usage.calls for usage in load_evaluation(log).broken_off.usage.values()) == 4
    Path("go").touch()
    assert command(bundle, workers).wait(MINUTE) == 0
    whole = load_evaluation("mine")
    assert whole.complete
    assert (whole.usage["agent"].calls, whole.spent.calls, asked()) == (3, 7, 7)


def test_a_rollout_that_is_not_saved_was_paid_for(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(store: Store, played: Any) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(Store, "add", add)
    with pytest.raises(StorageError, match="the disk is full"):
        agent_eval(bundle.dataset, agent=bundle.player("Wanders"), n_rollouts=20, **MINE)
    stored = load_evaluation("mine")
    assert stored.outcomes == []
    assert stored.spent.calls == asked() > 0
