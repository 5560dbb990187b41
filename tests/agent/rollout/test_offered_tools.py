"""The tools that an agent chose to show its model."""

from __future__ import annotations

from pathlib import Path

import pytest
from flight_bundle import Bundle, flight_bundle

from reward_kit.agent import RolloutRecord, agent_eval, load_rollout

AGENTS = """
async def looking(rollout):
    return ", ".join(tool["function"]["name"] for tool in rollout.tools)


async def narrowing(rollout):
    rollout.tools = [tool for tool in rollout.tools if "booking" in tool["function"]["name"]]
    return "Sorry."


async def describing(rollout):
    for tool in rollout.tools:
        tool["function"]["description"] = "Use me!"
    return "Sorry."


async def hiding(rollout):
    rollout.tools = []
    return "Sorry."
"""
ALL = ["search_flights", "create_booking", "pay_booking"]


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.chdir(tmp_path)
    Path("choosing_agents.py").write_text(AGENTS)
    return flight_bundle(tmp_path)


def played(bundle: Bundle, agent: str) -> RolloutRecord:
    result = agent_eval(bundle.dataset, agent=f"choosing_agents:{agent}", user="none", n_rollouts=1)
    return load_rollout(result.folder / result.outcomes[0].file)


@pytest.mark.parametrize(
    ("agent", "names"),
    [("looking", None), ("narrowing", ALL[1:]), ("describing", ALL), ("hiding", [])],
)
def test_the_trajectory_names_them(bundle: Bundle, agent: str, names: list[str] | None) -> None:
    assert played(bundle, agent).offered_tools == names
