"""Evaluations that run within others, and several that overlap on one event loop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from flight_bundle import GOLD, Bundle, flight_bundle


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.chdir(tmp_path)
    made = flight_bundle(tmp_path)
    made.rows({"evaluation_criteria": {"actions": GOLD}, "actions": GOLD, "sim_user_prompt": None})
    return made


def test_an_agent_that_waits_for_an_evaluation_gets_its_result(bundle: Bundle) -> None:
    """In a process of its own, which ends where the loop of the inner evaluation never does."""
    script = (
        "from reward_kit.agent import agent_eval\n"
        "said = []\n"
        "def asks(rollout):\n"
        f"    said.append(agent_eval({str(bundle.dataset)!r}, agent='gold').score)\n"
        "    return 'asked'\n"
        f"agent_eval({str(bundle.dataset)!r}, agent=asks, n_rollouts=3)\n"
        "print(said)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stderr, done.stdout) == ("", "[1.0, 1.0, 1.0]\n")
