"""A small Ray cluster of two nodes on this machine, and a bundle with players that tell where they play."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(
    0, str(Path(__file__).parents[1] / "tests" / "agent")
)  # flight_bundle and stub_server lie there

from flight_bundle import GOLD, Bundle, flight_bundle
from ray.cluster_utils import Cluster

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
SMALL = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}

PLAYERS = '''
import asyncio
import ctypes
import os
from pathlib import Path

import companions

MARKS = Path(os.environ["REWARD_KIT_TEST_MARKS"])


def mark(text, name=""):
    (MARKS / f"{text}-{os.environ['RAY_RAYLET_PID']}-{os.getpid()}-{name}").touch()


async def books(rollout):
    """Books and pays in two rollouts of three; where it runs is left in a file."""
    if "RAY_RAYLET_PID" in os.environ:
        mark("played")
        (MARKS / "code").write_text(f"{__file__} {companions.__file__}")
    print("noise on standard output")
    if rollout.index % 3 == 2:
        return "I am sorry."
    booked = await rollout.call_tool("create_booking", {"flight_id": 1, "passenger": "Alice"})
    await rollout.call_tool("pay_booking", {"booking_id": booked.partition(': "')[2].partition('"')[0]})
    return companions.GOODBYE


async def dies(rollout):
    """Takes its process with it in one rollout, always, at once."""
    if (rollout.row_id, rollout.index) == ("row-1", 0):
        os._exit(7)
    await asyncio.sleep(0.05)
    return "Hello"


async def dies_once(rollout):
    await asyncio.sleep(0.05)
    if rollout.index == 1 and not (MARKS / "died").exists():
        (MARKS / "died").touch()
        os.kill(os.getpid(), 9)
    return "Hello"


async def blocks(rollout):
    """Never gives up control, nor lets other threads run, in one rollout."""
    if (rollout.row_id, rollout.index) == ("row-0", 1):
        ctypes.PyDLL(None).sleep(600)
    return "Hello"


async def waits(rollout):
    """Goes on when it is told to."""
    if "RAY_RAYLET_PID" in os.environ:
        mark("began", f"{rollout.row_id}-{rollout.index}")
    while rollout.index and not (MARKS / "go").exists():
        await asyncio.sleep(0.05)
    return "Hello"


class Spends:
    async def respond(self, rollout):
        from reward_kit.agent import Usage

        rollout.count_usage(Usage(calls=1, input_tokens=10, cost=0.5), model="mine")
        await asyncio.sleep(0.3)
        return "Hello"
'''


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    made = Cluster(initialize_head=True, head_node_args=SMALL)
    made.add_node(num_cpus=1, object_store_memory=SMALL["object_store_memory"])
    yield made
    made.shutdown()


@pytest.fixture
def third_node(cluster: Cluster) -> Any:
    """A node to lose."""
    return cluster.add_node(num_cpus=1, object_store_memory=SMALL["object_store_memory"])


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that all nodes see, which real nodes have not."""
    folder = tmp_path / "marks"
    folder.mkdir()
    monkeypatch.setenv("REWARD_KIT_TEST_MARKS", str(folder))
    return folder


@pytest.fixture
def bundle(tmp_path: Path, marks: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    made = flight_bundle(tmp_path)
    made.rows(*({"id": f"row-{number}", "actions": GOLD, "n_rollouts": 3} for number in range(3)))
    monkeypatch.chdir(tmp_path)
    for name in ("MODEL_AGENT", "MODEL_SIM", "OPENAI_API_KEY", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "companions", raising=False)
    made.players = f"players_{abs(hash(tmp_path))}"
    (tmp_path / f"{made.players}.py").write_text(PLAYERS)
    (tmp_path / "companions.py").write_text('GOODBYE = "Booked."\n')
    return made


@pytest.fixture
def player(bundle: Any) -> Any:
    return lambda name: f"{bundle.players}:{name}"


@pytest.fixture
def stub_llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    from stub_server import StubServer

    stub = StubServer()
    monkeypatch.setenv("OPENAI_API_BASE", stub.url)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789abcdef")
    yield stub
    stub.close()
