"""The page about FastWorkflow says what the code does; `make test-fastworkflow` follows its commands."""

from __future__ import annotations

from pages import ROOT, blocks

from reward_kit.agent.agents.fastworkflow import home, preflight, setup
from reward_kit.agent.agents.fastworkflow.workers import Patience
from reward_kit.agent.config import OPTIONS
from reward_kit.cli_commands.fastworkflow import fastworkflow

PAGE = ROOT / "docs" / "fastworkflow.md"
TEXT = " ".join(PAGE.read_text(encoding="utf-8").split())


def test_every_command_is_shown() -> None:
    typed = "\n".join(block.text for block in blocks(PAGE) if block.language in ("bash", "sh"))
    for name in fastworkflow.commands:
        assert f"reward-kit fastworkflow {name}" in typed


def test_every_option_and_variable_is_explained() -> None:
    for option in (
        "fastworkflow_workers",
        "fastworkflow_policy",
        "model",
        "temperature",
        "model_args",
        "retries",
    ):
        assert f"`{OPTIONS[option].flags[0]}" in TEXT
    for choice in OPTIONS["fastworkflow_policy"].choices:
        assert f"`{choice}`:" in TEXT
    for role in (*preflight.ROLES, preflight.TRAINING_ROLE):
        assert f"| `LLM_{role}` |" in TEXT
    assert home.HOME_VARIABLE in TEXT


def test_versions_and_limits_are_those_of_the_code() -> None:
    oldest, newest = (".".join(map(str, version)) for version in setup.PYTHON)
    assert f"Python {oldest} to {newest}" in TEXT
    assert f"FastWorkflow {home.VERSION}" in TEXT
    assert f"workflows/{home.DEFAULT_WORKFLOW}/" in TEXT
    assert Patience().turn == 900.0
    assert "finishes no call for 15 minutes" in TEXT
