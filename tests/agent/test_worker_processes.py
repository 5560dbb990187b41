"""Rollouts in several processes: what comes out is what one process gives, also when processes die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle, flight_bundle

from reward_kit.agent import agent_eval, load_rollout
from reward_kit.agent.executors.shares import share_jobs
from reward_kit.agent.results import EvaluationResult
from reward_kit.agent.schedule import Job
from reward_kit.errors import ModelSetupError, RewardKitError, UsageError

PLAYERS = '''
import asyncio
import os
import time
from pathlib import Path


async def books(rollout):
    """Books and pays in two rollouts of three; where it runs is left in a file."""
    Path(f"process_{os.getpid()}").touch()
    print("noise on standard output")
    if rollout.index % 3 == 2:
        return "I am sorry."
    booked = await rollout.call_tool("create_booking", {"flight_id": 1, "passenger": "Alice"})
    await rollout.call_tool("pay_booking", {"booking_id": booked.partition(': "')[2].partition('"')[0]})
    return "Booked."


async def dies(rollout):
    """Takes its process with it in one rollout, always."""
    await asyncio.sleep(0.05)
    if (rollout.row.id, rollout.index) == ("row-1", 0):
        os._exit(7)
    return "Hello"


async def dies_once(rollout):
    mark = Path("died")
    await asyncio.sleep(0.05)
    if rollout.index == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), 9)
    return "Hello"


async def blocks(rollout):
    """Never gives up control, in one rollout."""
    if (rollout.row.id, rollout.index) == ("row-0", 1):
        time.sleep(600)
    return "Hello"


async def waits(rollout):
    Path(f"began_{rollout.row.id}_{rollout.index}").touch()
    if rollout.index:
        await asyncio.sleep(600)
    return "Hello"


class Spends:
    async def respond(self, rollout):
        from reward_kit.agent.completion import Usage

        rollout.count_usage(Usage(calls=1, input_tokens=10, cost=0.5), model="mine")
        await asyncio.sleep(0.3)
        return "Hello"


class SpendsAsItGoes:
    async def respond(self, rollout):
        from reward_kit.agent.completion import Usage

        for _ in range(6):
            rollout.count_usage(Usage(calls=1, input_tokens=10, cost=0.5), model="mine")
            await asyncio.sleep(0.1)
        return "Hello"
'''


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    made = flight_bundle(tmp_path)
    made.rows(*({"id": f"row-{number}", "actions": GOLD, "n_rollouts": 3} for number in range(3)))
    monkeypatch.chdir(tmp_path)
    for name in ("MODEL_AGENT", "MODEL_SIM", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    made.players = f"workers_{abs(hash(tmp_path))}"
    (tmp_path / f"{made.players}.py").write_text(PLAYERS)
    return made


@pytest.fixture
def player(bundle: Bundle) -> Callable[[str], str]:
    return lambda name: f"{bundle.players}:{name}"


def comparable(result: EvaluationResult) -> list[Any]:
    """What must not depend on how many processes played."""
    found = []
    for outcome in result.outcomes:
        record = load_rollout(result.folder / outcome.file)
        calls = [(call.name, call.arguments, call.content, call.changes) for call in record.tool_calls]
        found.append((outcome.row_id, outcome.index, outcome.seed, outcome.reward, record.messages, calls))
    return [found, result.passes, dict(result.failures), result.status]


def test_two_processes_give_what_one_gives(bundle: Bundle, player: Callable[[str], str]) -> None:
    one = agent_eval(bundle.dataset, agent=player("books"), user="none", output_dir="one")
    many = agent_eval(bundle.dataset, agent=player("books"), user="none", output_dir="many", workers=2)
    assert comparable(many) == comparable(one)
    assert many.pass_power[1].value == pytest.approx(2 / 3)
    processes = {int(path.name.partition("_")[2]) for path in Path().glob("process_*")}
    assert len(processes - {os.getpid()}) == 2
    logged = [json.loads(line) for line in many.log_path.read_text().splitlines()]
    assert sum(line["kind"] == "rollout" for line in logged) == 9


def test_what_several_began_one_can_end(bundle: Bundle, player: Callable[[str], str]) -> None:
    options = {"agent": player("books"), "user": "none", "eval_id": "both"}
    first = agent_eval(bundle.dataset, workers=2, n_rollouts=1, **options)
    assert len(first.outcomes) == 3
    whole = agent_eval(bundle.dataset, **options)
    assert len(whole.outcomes) == 9
    assert {outcome.id for outcome in first.outcomes} < {outcome.id for outcome in whole.outcomes}


def test_a_rollout_that_kills_its_process_costs_itself_alone(
    bundle: Bundle, player: Callable[[str], str]
) -> None:
    result = agent_eval(bundle.dataset, agent=player("dies"), user="none", workers=2, retries=1)
    assert dict(result.unjudged) == {"infrastructure_error": 1}
    lost = next(outcome for outcome in result.outcomes if not outcome.judged)
    assert (lost.row_id, lost.index, lost.attempt) == ("row-1", 0, 1)
    assert "exit code 7" in (lost.stop_detail or "")
    assert sum(outcome.judged for outcome in result.outcomes) == 8
    assert load_rollout(result.folder / lost.file).messages == []


def test_a_process_that_is_killed_from_outside_loses_nothing(
    bundle: Bundle, player: Callable[[str], str]
) -> None:
    result = agent_eval(bundle.dataset, agent=player("dies_once"), user="none", workers=2)
    assert Path("died").exists()
    assert (len(result.outcomes), result.complete) == (9, True)


def test_an_agent_that_never_gives_up_control_is_ended(
    bundle: Bundle, player: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reward_kit.agent.executors.worker_processes.HANG_GRACE", 1.0)
    result = agent_eval(
        bundle.dataset, agent=player("blocks"), user="none", workers=2, retries=0, timeout=1.0, n_rollouts=2
    )
    lost = [outcome for outcome in result.outcomes if not outcome.judged]
    assert [(outcome.row_id, outcome.index) for outcome in lost] == [("row-0", 1)]
    assert "signal 9" in (lost[0].stop_detail or "")


def test_no_more_begin_once_the_money_is_spent(bundle: Bundle, player: Callable[[str], str]) -> None:
    result = agent_eval(
        bundle.dataset, agent=player("Spends"), user="none", workers=2, max_concurrency=2, max_cost=1.0
    )
    assert result.status == "budget"
    assert 2 <= len(result.outcomes) < 9
    assert result.usage["agent"].cost == 0.5 * len(result.outcomes)


@pytest.mark.parametrize("limit", [{"max_cost": 1.0}, {"max_tokens": 20}], ids=["cost", "tokens"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_budget_sees_each_call_of_every_process(
    bundle: Bundle, player: Callable[[str], str], workers: int, limit: dict[str, Any]
) -> None:
    result = agent_eval(
        bundle.dataset,
        agent=player("SpendsAsItGoes"),
        user="none",
        workers=workers,
        max_concurrency=4,
        n_rollouts=4,
        **limit,
    )
    assert result.status == "budget"
    assert 1 <= len(result.outcomes) <= 4, "it is used up long before the first rollout ends"
    assert result.usage["agent"].cost == 3.0 * len(result.outcomes)


def test_a_process_that_is_killed_before_it_begins_is_replaced(
    bundle: Bundle, player: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRST_PROCESS", str(os.getpid()))
    (bundle.folder / "tools.py").write_text(
        "import os\nfrom pathlib import Path\n"
        "killed = len([*Path().glob('killed_*')])\n"
        "if os.environ['FIRST_PROCESS'] != str(os.getpid()) and killed < 2:\n"
        "    Path(f'killed_{os.getpid()}').touch()\n"
        "    os.kill(os.getpid(), 9)\n" + (bundle.folder / "tools.py").read_text()
    )
    result = agent_eval(bundle.dataset, agent=player("books"), user="none", workers=2)
    assert len([*Path().glob("killed_*")]) >= 2
    assert (len(result.outcomes), result.complete) == (9, True)


def test_a_process_that_cannot_begin_is_told_once(
    bundle: Bundle, player: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRST_PROCESS", str(os.getpid()))
    (bundle.folder / "tools.py").write_text(
        "import os\n"
        "if os.environ['FIRST_PROCESS'] != str(os.getpid()):\n"
        "    os._exit(3)\n" + (bundle.folder / "tools.py").read_text()
    )
    with pytest.raises(RewardKitError, match=r"exit code 3 before it began one.*--workers 1"):
        agent_eval(bundle.dataset, agent=player("books"), user="none", workers=2)


def test_a_refused_key_stops_all_processes(
    bundle: Bundle, stub_llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stub_server import Answer

    monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong-key-0123456789")
    stub_llm.script("gpt-4o-mini", [Answer(status=401, error="Incorrect API key")])
    with pytest.raises(ModelSetupError, match="refuses the key") as raised:
        agent_eval(bundle.dataset, model="openai/gpt-4o-mini", user="none", workers=2)
    assert raised.value.remedy is not None


def test_people_and_models_of_this_process_cannot_be_shared_out(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match="--workers"):
        agent_eval(bundle.dataset, agent="human", user="none", workers=2)
    assert not Path("runs").exists()  # else an empty evaluation would be listed as interrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_they_end_with_the_command(bundle: Bundle, player: Callable[[str], str], number: int) -> None:
    command = [sys.executable, "-m", "reward_kit", "agent-eval", "-d", str(bundle.dataset), "--agent"]
    options = [player("waits"), "--user", "none", "--workers", "2", "--eval-id", "stopped"]
    ran = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while len(list(Path().glob("began_*"))) < 9 and time.monotonic() < deadline:
        time.sleep(0.05)
    children = Path(f"/proc/{ran.pid}/task/{ran.pid}/children")
    workers = [int(text) for text in children.read_text().split()] if children.exists() else []
    ran.send_signal(number)
    _, said = ran.communicate(timeout=60)
    assert ran.returncode == (-9 if number == signal.SIGKILL else 130)
    while any(map(runs, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(runs, workers))
    if number != signal.SIGKILL:
        assert "--resume stopped" in said


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_rollouts_of_a_row_stay_together_where_there_are_rows_enough() -> None:
    class Row:
        def __init__(self, name: str) -> None:
            self.id = name

    class Task:
        def __init__(self, name: str) -> None:
            self.row = Row(name)

    def jobs(rows: int, rollouts: int) -> list[Job]:
        tasks = [Task(f"{number}") for number in range(rows)]
        return [Job(task, index) for index in range(rollouts) for task in tasks]  # type: ignore[arg-type]

    shares = share_jobs(jobs(8, 3), 2)
    assert [len(share) for share in shares] == [12, 12]
    assert not {job.task.row.id for job in shares[0]} & {job.task.row.id for job in shares[1]}
    assert [len(share) for share in share_jobs(jobs(1, 9), 4)] == [3, 2, 2, 2]
    assert [len(share) for share in share_jobs(jobs(1, 1), 4)] == [1]
