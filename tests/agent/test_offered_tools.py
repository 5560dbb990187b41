"""Which tools an agent showed its model, where it chose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from flight_bundle import Bundle, flight_bundle

from reward_kit.agent import RolloutRecord, agent_eval, load_rollout
from reward_kit.agent.pages.rollout_page import rollout_page
from reward_kit.agent.reports.transcript import transcript

AGENTS = """
async def plain(rollout):
    return "Sorry."


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


async def odd(rollout):
    rollout.tools = [{"type": "web_search"}, {"function": {"name": "sea\\udcffrch"}}, {"function": 1}, {}, 5]
    return "Sorry."


async def odder(rollout):
    rollout.tools = 7
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
    [
        ("plain", None),
        ("looking", None),
        ("narrowing", ALL[1:]),
        ("describing", ALL),
        ("hiding", []),
        ("odd", ["web_search", "sea?rch", "?", "?", "?"]),
        ("odder", None),
    ],
)
def test_the_trajectory_names_them(bundle: Bundle, agent: str, names: list[str] | None) -> None:
    assert played(bundle, agent).offered_tools == names


def test_readers_are_told(bundle: Bundle) -> None:
    chosen, hidden, plain = (played(bundle, agent) for agent in ("narrowing", "hiding", "plain"))
    assert "tools that the agent showed its model: create_booking, pay_booking\n" in transcript(chosen)
    assert "<dd>those that the agent showed its model: create_booking, pay_booking</dd>" in rollout_page(
        chosen
    )
    assert "tools that the agent showed its model: none\n" in transcript(hidden)
    assert "those that the agent showed its model: none<" in rollout_page(hidden)
    assert "showed its model" not in transcript(plain) + rollout_page(plain)


def test_trajectories_of_before_are_read_as_well(bundle: Bundle) -> None:
    record = played(bundle, "narrowing")
    assert record.path is not None
    plain = json.loads(record.path.read_text())
    del plain["offered_tools"]
    record.path.write_text(json.dumps(plain))
    assert load_rollout(record.path).offered_tools is None
