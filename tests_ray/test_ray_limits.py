"""Limits of providers that all actors keep together, counted by a real server.

Needs Ray: ``make test-ray``.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import Bundle
from ray.cluster_utils import Cluster

from reward_kit.agent import agent_eval
from reward_kit.agent.providers import leave

WINDOW = 2.0
LOST = 0.6
"""Seconds that a request may take longer to arrive than another."""

DEADLY = """
import os
from pathlib import Path


@R.tool(description="Ends its process, once", parameters={})
async def die():
    try:
        (Path(os.environ["REWARD_KIT_TEST_MARKS"]) / "died").touch(exist_ok=False)
    except FileExistsError:
        return {"ok": True}
    os._exit(9)
"""


@pytest.fixture
def arrivals(stub_llm: Any, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When requests came; each answer first calls a tool, then says a word."""
    from stub_server import Answer

    monkeypatch.setattr(leave, "MINUTE", WINDOW)
    times: list[float] = []

    def answer(request: dict[str, Any], place: int) -> Answer:
        times.append(time.monotonic())
        if place == 0 and any(tool["function"]["name"] == "die" for tool in request["tools"]):
            return Answer(tool_calls=[{"name": "die", "arguments": {}}])
        return Answer(content="Hello")

    stub_llm.script("gpt-4o-mini", answer)
    return times


def most(times: list[float]) -> int:
    return max(sum(begin <= time < begin + WINDOW - LOST for time in times) for begin in times)


def test_requests_per_minute_hold_for_all_actors_together(
    cluster: Cluster, bundle: Bundle, arrivals: list[float]
) -> None:
    result = agent_eval(
        bundle.dataset, model="openai/gpt-4o-mini", user="none", rpm=1, ray=cluster.address, n_rollouts=2
    )
    assert (len(result.outcomes), result.complete) == (6, True)
    assert len(arrivals) == 6
    assert most(arrivals) == 1


def test_an_actor_that_dies_midway_takes_nothing_of_the_limits_along(
    cluster: Cluster, bundle: Bundle, arrivals: list[float], marks: Path
) -> None:
    bundle.write("tools.py", (bundle.folder / "tools.py").read_text() + DEADLY)
    result = agent_eval(
        bundle.dataset,
        model="openai/gpt-4o-mini",
        user="none",
        rpm=4,
        tpm=1000,
        ray=cluster.address,
        n_rollouts=2,
    )
    assert (marks / "died").exists()
    assert (len(result.outcomes), result.complete) == (6, True)
    assert most(arrivals) <= 4
