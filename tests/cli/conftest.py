"""The commands as real processes; ``agent-eval`` runs in the folder of a small bundle."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import Command, Finished, run_command
from command import start as start_command
from flight_bundle import Bundle


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine's own models reaches the command."""
    for name in list(os.environ):
        if name.endswith(("_API_KEY", "MODEL_AGENT", "MODEL_SIM", "OPENAI_API_BASE", "OPENAI_BASE_URL")):
            monkeypatch.delenv(name)


@pytest.fixture
def start(bundle: Bundle, environment: None) -> Callable[..., subprocess.Popen[str]]:
    """Start ``reward-kit agent-eval`` in the bundle's folder."""

    options = {"cwd": bundle.folder, "stdin": subprocess.DEVNULL}
    return lambda *arguments, **variables: start_command(
        "agent-eval", *arguments, env={**os.environ, **variables}, **options
    )


@pytest.fixture
def agent_eval(bundle: Bundle, environment: None) -> Command:
    """Run ``reward-kit agent-eval`` in the bundle's folder to its end."""

    def run(*arguments: str | Path, cwd: Path | None = None, **variables: str) -> Finished:
        env = {**os.environ, **variables}
        return run_command("agent-eval", *arguments, cwd=cwd or bundle.folder, env=env)

    return run


@pytest.fixture
def results(bundle: Bundle) -> Callable[[], dict[str, Any]]:
    """The results of the only evaluation in the bundle's ``runs/``."""

    def read() -> dict[str, Any]:
        (path,) = (bundle.folder / "runs" / "evals").glob("*.json")
        plain: dict[str, Any] = json.loads(path.read_text())
        return plain

    return read


@pytest.fixture
def command(request: pytest.FixtureRequest) -> Command:
    """Run the command that the test's file is named after."""
    name = request.path.stem.removeprefix("test_")
    return lambda *arguments: run_command(name, *arguments)
