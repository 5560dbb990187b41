"""Workers that die, hang, freeze or do not start, and that none outlives its evaluation."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
from command import new_python

from reward_kit.agent.players.agents.fastworkflow import agent
from reward_kit.errors import ModelSetupError


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pid_of(factory: Any) -> int:
    (worker,) = factory.workers
    return worker.process.pid


async def until_gone(pid: int) -> None:
    """Returns when the process is gone; the time limit of the test ends it otherwise."""
    while exists(pid):  # noqa: ASYNC110 - the kernel sets no event of ours
        await asyncio.sleep(0.02)


async def test_a_worker_that_dies_is_replaced_and_its_rollouts_left_unjudged(opened: Any, talk: Any) -> None:
    factory = await opened()
    first = pid_of(factory)
    dead, other = await asyncio.gather(talk(factory, "say Hello", "die ."), talk(factory, "wait ."))
    for finished in (dead, other):
        assert finished.trace.stop_reason == "infrastructure_error"
        assert "a worker exited unexpectedly (exit code 3): out of memory" in finished.trace.stop_detail
        assert "sk-test-0123456789abcdef" not in finished.trace.stop_detail
        assert finished.trace.reward is None
    after = await talk(factory, "count .")
    assert after.lines[1].text == f"turn 1 in process {pid_of(factory)}"
    assert pid_of(factory) != first


async def test_a_turn_in_which_nothing_happens_ends_with_its_worker(
    opened: Any, talk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "TURN_LIMIT", 1.0)
    factory = await opened()
    first = pid_of(factory)
    finished = await talk(factory, "hang .")
    assert finished.trace.stop_reason == "infrastructure_error"
    assert "no model call and no tool call of a turn ended within 1 s" in finished.trace.stop_detail
    await until_gone(first)
    assert (await talk(factory, "say Hello")).trace.stop_reason == "user_stop"


async def test_a_rollout_past_its_time_is_called_off_and_its_worker_goes_on(opened: Any, talk: Any) -> None:
    factory = await opened()
    first = pid_of(factory)
    finished = await talk(factory, "wait .", timeout=0.3)
    assert finished.trace.stop_reason == "timeout"
    assert (await talk(factory, "say Hello")).trace.stop_reason == "user_stop"
    assert pid_of(factory) == first


async def test_a_worker_that_does_not_start_is_told_with_last_words(opened: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("FAKE_BROKEN", "1")
    with pytest.raises(ModelSetupError, match=r"a worker does not start: .*No module named 'torch'"):
        await opened(fastworkflow_workers=2)


async def test_nothing_is_left_when_the_evaluation_is_over(
    opened: Any, talk: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    factory = await opened(fastworkflow_workers=2)
    pids = [worker.process.pid for worker in factory.workers]
    assert any((tmp_path / "temporary").iterdir())
    unfinished = asyncio.ensure_future(talk(factory, "hang ."))
    await asyncio.sleep(0.1)
    await factory.close()
    assert (await unfinished).stop_reason == "infrastructure_error"
    assert [exists(pid) for pid in pids] == [False, False]
    assert list((tmp_path / "temporary").iterdir()) == []


PARENT = """
import asyncio, os, signal
from reward_kit.agent.players.agents.fastworkflow.agent import FastWorkflow
from reward_kit.agent.config import EvaluationConfig

async def main():
    factory = FastWorkflow(EvaluationConfig(agent="fastworkflow", fastworkflow_workers=2), [])
    await factory.open()
    print(*(worker.process.pid for worker in factory.workers), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.usefixtures("home")
def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    done = new_python("-c", PARENT, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.code == -9, done.err
    pids = [int(pid) for pid in done.out.split()]
    assert len(pids) == 2
    while any(exists(pid) for pid in pids):
        time.sleep(0.02)
