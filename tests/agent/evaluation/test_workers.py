"""``--workers``: the same results, and code that breaks its process costs its own rollout."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from command import children_of, gone, run_python, start, wait_for
from flight_bundle import GOLD, TOOLS, Bundle
from stored_rollouts import played

from reward_kit.agent import EvaluationConfig, EvaluationResult, evaluate, load_rollout
from reward_kit.agent.base.types import Usage
from reward_kit.agent.evaluation.fork_server import ForkServer
from reward_kit.agent.evaluation.protocol import Report, decoded, encoded
from reward_kit.agent.evaluation.workers import worker_config
from reward_kit.agent.players.participants import LITELLM, needs_litellm
from reward_kit.agent.rollout.outcome import RowGold
from reward_kit.errors import BundleError, ModelSetupError, RewardKitError, UsageError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="socket pairs are handed to processes")

ROWS = [
    {"id": f"row-{number}", "actions": GOLD, "n_rollouts": 3, "metadata": {"number": number}}
    for number in range(3)
]
PLAYERS = '''
import asyncio
import os
import time
from pathlib import Path


async def books(rollout):
    """Books and pays in two rollouts of three; a file says which process played."""
    Path(f"process_{os.getpid()}").touch()
    print("noise on standard output")
    if rollout.metadata["number"] == 2:
        return "I am sorry."
    booked = await rollout.call_tool("create_booking", {"flight_id": 1, "passenger": "Alice"})
    await rollout.call_tool("pay_booking", {"booking_id": booked.partition(': "')[2].partition('"')[0]})
    return "Booked."


async def calls(rollout):
    """Calls the tool that the row names."""
    await asyncio.sleep(0.05)
    await rollout.call_tool(rollout.metadata["tool"], {})
    return "Hello"


async def leaves(rollout):
    """Ends its process: at once, or after a call."""
    await asyncio.sleep(0.05)
    if rollout.metadata.get("tool"):
        await rollout.call_tool(rollout.metadata["tool"], {})
    if rollout.row_id != "sound":
        os._exit(3)
    return "Hello"


async def dies_once(rollout):
    mark = Path("died")
    await asyncio.sleep(0.05)
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), 9)
    return "Hello"


async def sleeps(rollout):
    began = time.monotonic()
    await asyncio.sleep(0.3)
    Path(f"ran_{os.getpid()}_{began}_{time.monotonic()}").touch()
    return "Hello"


async def waits(rollout):
    Path(f"began_{time.monotonic_ns()}").touch()
    await asyncio.sleep(600)
    return "Hello"


class Spends:
    async def respond(self, rollout):
        from reward_kit.agent import Usage

        for _ in range(6):
            rollout.count_usage(Usage(calls=1, input_tokens=10, cost=0.5), model="mine")
            await asyncio.sleep(0.1)
        return "Hello"
'''
HOSTILE = """
import ctypes, os, signal, subprocess, sys, time

@R.tool(parameters={})
def exits():
    os._exit(0)

@R.tool(parameters={})
def exits_alone():
    with open("left", "a") as left:
        print(subprocess.Popen(["sleep", "90"]).pid, file=left)
    os._exit(0)

@R.tool(parameters={})
def segfaults():
    ctypes.string_at(0)

@R.tool(parameters={})
def writes_everywhere():
    for number in range(3, 60):
        try:
            os.write(number, b"{damaged\\n")
        except OSError:
            pass
    time.sleep(600)

@R.tool(parameters={})
def eats_memory():
    R.eaten = [bytearray(2**20) for _ in range(600)]
    time.sleep(600)

@R.tool(parameters={})
async def blocks():
    time.sleep(600)

@R.tool(parameters={})
def closes_output():
    try:
        os.write(1, b"out"), os.write(2, b"err\\n")
    except OSError:  # they are closed
        pass
    os.closerange(1, 3)
    return "ok"
"""
FATAL = {
    "segfaults": "was ended by SIGSEGV",
    "writes_everywhere": "other code wrote into its socket",
    "eats_memory": "used more than --worker-memory 500",
}


@pytest.fixture
def hostile(bundle: Bundle) -> Bundle:
    """The bundle with tools that do harm."""
    bundle.write("tools.py", TOOLS + HOSTILE)
    return bundle


def comparable(result: EvaluationResult) -> list[Any]:
    """Everything that must not depend on the process that played."""
    found = []
    for outcome in result.outcomes:
        record = load_rollout(result.folder / outcome.file)
        calls = [(call.name, call.arguments, call.content, call.changes) for call in record.tool_calls]
        found.append((outcome.row_id, outcome.index, outcome.seed, outcome.reward, record.messages, calls))
    found.sort(key=lambda one: one[:2])
    return [found, result.passes, dict(result.failures), result.status]


def test_workers_give_what_this_process_gives(bundle: Bundle) -> None:
    here = bundle.play("books", output_dir="here")
    there = bundle.play("books", output_dir="there", workers=2)
    assert comparable(there) == comparable(here)
    assert there.pass_power[1].value == pytest.approx(2 / 3)
    processes = {int(path.name.partition("_")[2]) for path in Path().glob("process_*")}
    assert len(processes - {os.getpid()}) == 2


def test_the_process_that_forks_imports_litellm_once(tmp_path: Path, monkeypatch: Any) -> None:
    """With a stand-in, which notes its process."""
    (tmp_path / "litellm.py").write_text("import os\nopen('imported', 'a').write(f'{os.getpid()} ')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    server = ForkServer(LITELLM)
    wait_for((tmp_path / "imported").exists)
    server.close()
    assert (tmp_path / "imported").read_text().split() == [str(server._pid)]


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({"model": "openai/gpt-4o"}, False),
        ({"model": "openai/gpt-4o", "client": "litellm"}, True),
        ({"model": "openai/gpt-4o", "sim_model": "anthropic/claude-haiku-4-5"}, True),
        ({"agent": "gold"}, False),
        ({"agent": "react"}, True),
    ],
)
def test_it_does_so_only_if_a_model_needs_litellm(options: Any, needed: bool, monkeypatch: Any) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789")
    monkeypatch.setenv("MODEL_AGENT", "groq/llama")
    monkeypatch.delenv("MODEL_SIM", raising=False)
    assert needs_litellm(EvaluationConfig(dataset="d", **options)) is needed


def test_each_worker_may_make_a_request_a_minute(bundle: Bundle) -> None:
    bundle.play("books", workers=5, rpm=2)
    assert len(list(Path().glob("process_*"))) == 2


def test_workers_and_this_process_continue_each_others_evaluations(bundle: Bundle) -> None:
    first = bundle.play("books", eval_id="both", workers=1, n_rollouts=1)
    second = bundle.play("books", eval_id="both", n_rollouts=2)
    assert [len(result.outcomes) for result in (first, second)] == [3, 6]
    assert {one.id for one in first.outcomes} < {one.id for one in second.outcomes}


def test_this_process_imports_nothing_of_the_bundle_the_agent_or_the_user(bundle: Bundle) -> None:
    (bundle.folder / "seed.sql").rename(bundle.folder / "data.sql")
    bundle.rows({"seed_sql": None, "metadata": {"number": 0}, "actions": GOLD, "n_rollouts": 1})
    bundle.write(
        "seed.py",
        "from pathlib import Path\n\ndef seed(db):\n"
        "    db.executescript((Path(__file__).parent / 'data.sql').read_text())\n",
    )
    Path("own_user.py").write_text("async def talks(rollout):\n    return '###STOP###'\n")
    program = (
        "import sys\nfrom reward_kit.agent import evaluate\n"
        f"result = evaluate({str(bundle.dataset)!r}, agent={bundle.player('books')!r}, user='own_user:talks',"
        " workers=1)\n"
        f"own = [name for name in sys.modules if name.startswith(('flight_task', {bundle.players!r},"
        " 'own_user'))]\nprint(len(result.outcomes), own)\n"
    )
    ran = run_python(program)
    assert ran.out == "1 []\n", ran.err


def test_tools_that_end_their_process_cost_their_own_rollouts_and_are_named(hostile: Bundle) -> None:
    hostile.rows(
        *({"id": name, "metadata": {"tool": name}, "n_rollouts": 1} for name in FATAL),
        {"id": "sound", "metadata": {"tool": "sound"}, "n_rollouts": 2},
    )
    result = hostile.play("calls", workers=2, worker_memory=500)
    found = {outcome.row_id: outcome for outcome in result.outcomes if not outcome.scored}
    assert sorted(found) == sorted(FATAL)
    for name, how in FATAL.items():
        lost = found[name]
        assert (lost.stop_reason, lost.final) == ("infrastructure_error", True)
        assert f"{how} in tool '{name}', twice" in (lost.stop_detail or "")
        assert load_rollout(result.folder / lost.file).messages == []
    assert [one.scored for one in result.outcomes if one.row_id == "sound"] == [True] * 2


def test_an_agent_that_ends_its_process_has_failed(hostile: Bundle) -> None:
    rows = ({"id": "at-once"}, {"id": "after-a-call", "metadata": {"tool": "closes_output"}}, {"id": "sound"})
    hostile.rows(*({**row, "n_rollouts": 1} for row in rows))
    result = hostile.play("leaves", workers=2)
    found = {outcome.row_id: outcome for outcome in result.outcomes}
    for name in ("at-once", "after-a-call"):
        lost = found[name]
        assert (lost.stop_reason, lost.reward, lost.failure) == ("agent_error", 0.0, "agent_error")
        assert (lost.stop_detail or "").endswith("exit code 3 in its agent or user, twice")
    assert found["sound"].stop_reason == "agent_done"
    assert result.unjudged == {}


def test_a_process_that_a_tool_has_started_ends_with_its_crashed_worker(hostile: Bundle) -> None:
    hostile.rows({"id": "fatal", "metadata": {"tool": "exits_alone"}, "n_rollouts": 1})
    (lost,) = hostile.play("calls", workers=1).outcomes
    assert "in tool 'exits_alone', twice" in (lost.stop_detail or "")
    left = [int(number) for number in Path("left").read_text().split()]
    assert len(left) == 2
    wait_for(lambda: all(map(gone, left)))


def test_a_tool_that_blocks_its_process_is_ended_and_named(hostile: Bundle, monkeypatch: Any) -> None:
    monkeypatch.setattr("reward_kit.agent.evaluation.workers.HANG_GRACE", 1.0)
    hostile.rows({"id": "blocks", "metadata": {"tool": "blocks"}, "n_rollouts": 1})
    (lost,) = hostile.play("calls", workers=1, timeout=1.0).outcomes
    assert lost.stop_detail == "its process stopped answering and was ended in tool 'blocks', twice"


def test_gold_actions_that_end_the_process_are_named(hostile: Bundle) -> None:
    hostile.rows({"id": "fatal", "actions": [{"name": "exits", "arguments": {}}], "n_rollouts": 1})
    (lost,) = evaluate(hostile.dataset, agent="gold", workers=1, retries=0).outcomes
    assert (lost.stop_detail or "").endswith(
        "exit code 0 in tool 'exits' in the gold actions of its row, twice"
    )


def test_streams_that_a_tool_breaks_are_its_workers_own(hostile: Bundle, capfd: Any) -> None:
    odd = [*GOLD, {"name": "closes_output", "arguments": {}}]
    hostile.rows({"id": "odd", "actions": odd, "n_rollouts": 1}, {"id": "sound", "actions": GOLD})
    result = evaluate(hostile.dataset, agent="gold", workers=1, max_concurrency=1)
    assert [one.reward for one in result.outcomes] == [1.0] * 5
    assert capfd.readouterr().out == ""


def test_a_process_that_is_killed_from_outside_loses_nothing(bundle: Bundle) -> None:
    result = bundle.play("dies_once", workers=2)
    assert Path("died").exists()
    assert (len(result.outcomes), result.complete) == (9, True)


@pytest.mark.parametrize("toolset", ["flight_task.tools", ".tools"])
def test_a_bundle_that_ends_its_process_at_import_is_one_error(bundle: Bundle, toolset: str) -> None:
    bundle.rows({"toolset": toolset})
    bundle.write("tools.py", f"import os\nos.kill(os.getpid(), 11)\n{TOOLS}")
    with pytest.raises(BundleError, match="was ended by SIGSEGV") as raised:
        evaluate(bundle.dataset, agent="gold", workers=2)
    assert raised.value.place == "flight_task.tools"
    assert "python -c 'import flight_task.tools'" in str(raised.value)
    assert not list(Path("runs").rglob("*.db"))


def test_workers_that_end_before_they_play_are_one_error(bundle: Bundle) -> None:
    mark = "import os, pathlib\nif pathlib.Path('loaded').exists(): os._exit(3)\n"
    bundle.write("tools.py", f"{mark}pathlib.Path('loaded').touch()\n{TOOLS}")
    with pytest.raises(RewardKitError, match="end before they play: the last one ended with exit code 3"):
        bundle.play("waits", workers=3)


def test_a_budget_counts_each_call_of_every_process(bundle: Bundle) -> None:
    result = bundle.play("Spends", workers=2, max_concurrency=4, max_cost=1.0)
    assert result.status == "budget"
    assert 1 <= len(result.outcomes) <= 4, "it is used up long before the first rollout ends"
    assert result.usage["agent"].cost == 3.0 * len(result.outcomes)


def test_workers_share_max_concurrency(bundle: Bundle) -> None:
    bundle.play("sleeps", workers=3, max_concurrency=2)
    ran = [[float(part) for part in path.name.split("_")[1:]] for path in Path().glob("ran_*")]
    assert len(ran) == 9
    assert max(sum(began <= moment < ended for _, began, ended in ran) for _, moment, _ in ran) <= 2
    assert len({process for process, *_ in ran}) == 2


def test_played_rollouts_cross_a_process_border_as_json_and_bytes() -> None:
    one = played(3, scored_at=5.0)
    one.gold_state, one.row_gold = b"\0\xff", RowGold("a", [], [], b"\0")
    report = Report(3, played=one, files={"a/roll.db": b"\xff"}, used=[(3, "agent", "m", Usage(calls=1))])
    assert decoded(Report, encoded(report)) == report
    one.outcome.stop_detail = "smile \ud83d"
    sent = decoded(Report, encoded(report)).played
    assert sent is not None
    assert sent.outcome.stop_detail == "smile ?"


def test_workers_share_the_limits_of_a_minute() -> None:
    config = EvaluationConfig(dataset="task.jsonl", max_concurrency=10, rpm=7, tpm=20_000)
    shared = worker_config(config, 7, concurrency=2)
    assert (shared["rpm"], shared["tpm"]) == (1, 2857)


def test_a_refused_key_stops_all_workers(
    bundle: Bundle, stub_llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stub_server import Answer

    monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong-key-0123456789")
    stub_llm.script("gpt-4o-mini", [Answer(status=401, error="Incorrect API key")])
    with pytest.raises(ModelSetupError, match="refuses the key") as raised:
        evaluate(bundle.dataset, model="openai/gpt-4o-mini", user="none", workers=2)
    assert raised.value.remedy is not None


def test_people_and_objects_of_this_process_cannot_play_in_others(bundle: Bundle) -> None:
    async def mine(_: object) -> str:
        return "Hello"

    for agent in ("human", mine):
        with pytest.raises(UsageError, match="--workers"):
            evaluate(bundle.dataset, agent=agent, user="none", workers=2)
    assert not list(Path("runs").rglob("*.db"))


def test_workers_end_with_a_command_that_is_killed(bundle: Bundle) -> None:
    options = ("--agent", bundle.player("waits"), "--user", "none", "--workers", "2", "--quiet")
    ran = start("agent-eval", "-d", bundle.dataset, *options)
    wait_for(lambda: len(list(Path().glob("began_*"))) == 9, ran)
    (server,) = children_of(ran.pid)
    workers = [server, *children_of(server)]
    assert len(workers) == 3
    ran.kill()
    assert ran.wait(60) == -9
    wait_for(lambda: all(map(gone, workers)))
