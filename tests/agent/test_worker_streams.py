"""What tools do to the standard streams of a process among several, and what is left when nobody listens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from flight_bundle import GOLD, TOOLS, Bundle, flight_bundle

from reward_kit.agent import agent_eval, load_rollout
from reward_kit.agent.results import EvaluationResult

ODD_TOOLS = """
import os

@R.tool(parameters={})
def reads():
    return input("? ")

@R.tool(parameters={})
def writes(texts: list):
    for number in range(3, 60):
        for text in texts:
            try:
                os.write(number, text.encode("latin-1"))
            except OSError:
                pass
"""
FORKS = """
import multiprocessing
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

POOL = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))

@R.tool(parameters={})
def pools():
    Path(f"child_{POOL.submit(os.getpid).result()}").touch()

@R.tool(parameters={})
def crashes():
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    Path(f"child_{child.pid}").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
"""What a process of a pool leaves behind, and one that dies."""
STUCK = """
import re
import sys
from reward_kit.agent.executors.left_alone import end_when_left_alone

end_when_left_alone(0, 0.1)
print("begun", flush=True)
if sys.argv[1] == "stuck":
    re.match(r"(a+)+$", "a" * 64 + "b")
"""


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    made = flight_bundle(tmp_path)
    made.write("tools.py", TOOLS + ODD_TOOLS)
    monkeypatch.chdir(tmp_path)
    return made


def played(bundle: Bundle, name: str, *, retries: int = 3, **arguments: object) -> EvaluationResult:
    odd = {"id": "odd", "actions": [*GOLD, {"name": name, "arguments": arguments}], "n_rollouts": 2}
    bundle.rows(odd, {"id": "sound", "actions": GOLD, "n_rollouts": 4})
    return agent_eval(bundle.dataset, agent="gold", workers=2, retries=retries)


def test_a_tool_that_reads_finds_the_end_of_the_input(bundle: Bundle) -> None:
    result = played(bundle, "reads")
    odd = [outcome for outcome in result.outcomes if outcome.row_id == "odd"]
    assert len(odd) == 2
    for outcome in odd:
        assert load_rollout(result.folder / outcome.file).tool_calls[-1].content == (
            "Error: EOF when reading a line"
        )
    assert result.complete


@pytest.mark.parametrize("text", ["\xff", "noise\n", "[1]\n", "\n\n"])
def test_what_a_tool_writes_among_the_lines_of_its_process_costs_no_other_rollout(
    bundle: Bundle, text: str
) -> None:
    result = played(bundle, "writes", texts=[text])
    assert len(result.outcomes) == 6
    assert result.complete
    assert all(outcome.success for outcome in result.outcomes)


def test_a_line_that_cannot_be_read_costs_the_rollouts_of_that_process_alone(bundle: Bundle) -> None:
    result = played(bundle, "writes", texts=["\n{damaged\n"])
    sound = [outcome for outcome in result.outcomes if outcome.row_id == "sound"]
    assert [outcome.success for outcome in sound] == [True] * 4
    odd = [outcome for outcome in result.outcomes if outcome.row_id == "odd"]
    assert {outcome.unjudged_reason for outcome in odd} == {"infrastructure_error"}
    assert "wrote into what it says" in odd[0].trouble


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_pool_that_tools_share_ends_with_its_process(bundle: Bundle) -> None:
    bundle.write("tools.py", TOOLS + ODD_TOOLS + FORKS)
    result = played(bundle, "pools")
    assert (len(result.outcomes), result.complete) == (6, True)
    children = forked()
    assert children
    until = time.monotonic() + 30
    while any(map(runs, children)):
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_the_death_of_a_process_is_noticed_though_what_it_has_forked_lives_on(bundle: Bundle) -> None:
    bundle.write("tools.py", TOOLS + ODD_TOOLS + FORKS)
    begun = time.monotonic()
    try:
        result = played(bundle, "crashes", retries=0)
        assert time.monotonic() - begun < 120
        assert dict(result.unjudged) == {"infrastructure_error": 2}
        assert len(result.outcomes) == 6
    finally:
        for child in forked():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def forked() -> list[int]:
    return [int(path.name.partition("_")[2]) for path in Path().glob("child_*")]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(("way", "code"), [("stuck", -9), ("ends", 0)])
@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_process_whose_python_stands_still_is_ended_when_nobody_listens(way: str, code: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUCK, way], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"begun\n"
            process.stdin.close()
            assert process.wait(60) == code
            assert process.stdout.read() == b"", "the other process holds nothing of this one's"
        finally:
            process.kill()
