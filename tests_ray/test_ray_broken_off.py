"""What actors have spent on rollouts that an interruption breaks off. Needs Ray: ``make test-ray``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from flight_bundle import Bundle
from ray.cluster_utils import Cluster

from reward_kit.agent.store.layout import load_evaluation

PAYS = """
import asyncio
import os
from pathlib import Path

from reward_kit.agent.base.types import Usage


class Pays:
    async def respond(self, rollout):
        marks = Path(os.environ["REWARD_KIT_TEST_MARKS"])
        rollout.count_usage(Usage(calls=1, input_tokens=10, cost=0.5), model="mine")
        (marks / f"paid-{rollout.id}").touch()
        while rollout.index and not (marks / "go").exists():
            await asyncio.sleep(0.05)
        return "Hello"
"""


def test_an_interruption_loses_no_call(cluster: Cluster, bundle: Bundle, marks: Path) -> None:
    name = f"pays_{abs(hash(marks))}"
    (marks.parent / f"{name}.py").write_text(PAYS)

    def command(*options: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "reward_kit", "agent-eval", "-d", str(bundle.dataset), "--quiet"]
        words += ["--agent", f"{name}:Pays", "--user", "none", "--eval-id", "mine", *options]
        return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def paid() -> int:
        return len(list(marks.glob("paid-*")))

    def stored() -> int:
        path = Path("runs/evals/mine.db")
        return len(load_evaluation(path).outcomes) if path.exists() else 0

    ran = command("--ray", cluster.address, "--workers", "2")
    try:
        wait_until(lambda: paid() == 9 and stored() == 3)
        os.killpg(ran.pid, signal.SIGINT)
        _, said = ran.communicate(timeout=100)
        assert ran.returncode == 130, said
    finally:
        ran.kill()
        ran.wait()
    first = load_evaluation("mine")
    assert (first.usage["agent"].calls, first.broken_off.usage["agent"].calls) == (3, 6)
    (marks / "go").touch()
    assert command().wait(100) == 0
    whole = load_evaluation("mine")
    assert (whole.complete, whole.spent.calls, whole.spent.cost) == (True, paid(), 0.5 * paid())


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
