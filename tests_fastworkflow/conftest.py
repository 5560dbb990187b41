"""The real FastWorkflow, in an environment that ``reward-kit fastworkflow setup`` makes once.

A stub server plays the models; the intent models have random weights.

REWARD_KIT_FASTWORKFLOW_TEST names the folder of that environment, which is kept between runs. These tests
bring torch, and are run by ``make test-fastworkflow`` alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reward_kit.agent.players.agents.fastworkflow.setup import CONSTANTS, FastWorkflowHome, prepare_workflow

if TYPE_CHECKING:
    from scripted_retail import RetailScript
    from stub_server import StubServer

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests" / "agent"), str(ROOT / "tests" / "docs")]

AGENT, CUSTOMER = "gpt-4o-mini", "gpt-3.5-turbo"


@pytest.fixture(scope="session")
def installed() -> FastWorkflowHome:
    """The environment that the variable names; ``make test-fastworkflow`` makes it and sets the variable."""
    home = FastWorkflowHome(Path(os.environ.get("REWARD_KIT_FASTWORKFLOW_TEST", "")).absolute())
    if not home.has_right_version:
        pytest.exit("REWARD_KIT_FASTWORKFLOW_TEST names no environment; run `make test-fastworkflow`", 2)
    # written by the package itself, with paths through the links that an earlier run has made
    own = home.package / "_workflows" / "command_metadata_extraction" / "___command_info"
    (own / "command_directory.json").unlink(missing_ok=True)
    return home


@pytest.fixture(scope="session")
def untrained(installed: FastWorkflowHome, tmp_path_factory: pytest.TempPathFactory) -> FastWorkflowHome:
    """The same environment with a freshly prepared workflow."""
    home = FastWorkflowHome(tmp_path_factory.mktemp("untrained"))
    home.venv.symlink_to(installed.venv)
    prepare_workflow(home, "retail_workflow")
    return home


@pytest.fixture(scope="session")
def trained(installed: FastWorkflowHome, tmp_path_factory: pytest.TempPathFactory) -> FastWorkflowHome:
    """The same environment with a workflow whose intent models are made up."""
    home = FastWorkflowHome(tmp_path_factory.mktemp("trained"))
    home.venv.symlink_to(installed.venv)
    workflow = prepare_workflow(home, "retail_workflow")
    program = Path(__file__).with_name("made_up_models.py")
    environment = {**os.environ, **CONSTANTS, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([str(home.python), "-I", str(program), str(workflow)], check=True, env=environment)
    return home


@pytest.fixture
def retail_rows() -> dict[str, Any]:
    """The test rows of the retail bundle, by id."""
    lines = (ROOT / "tau_retail_task" / "task.jsonl").read_text().splitlines()
    return {row["id"]: row for row in map(json.loads, lines)}


@pytest.fixture
def script(retail_rows: dict[str, Any]) -> RetailScript:
    """What the models say; a test may change the steps of a row."""
    from scripted_retail import RetailScript

    return RetailScript(list(retail_rows.values()))


@pytest.fixture
def models(script: RetailScript, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubServer]:
    """The server that plays all models, which the environment points at."""
    from stub_server import StubServer

    stub = StubServer()
    stub.script(AGENT, script.agent)
    stub.script(CUSTOMER, script.customer)
    monkeypatch.setenv("OPENAI_API_BASE", stub.url)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789abcdef")
    for role in ("AGENT", "PLANNER", "PARAM_EXTRACTION"):
        monkeypatch.setenv(f"LLM_{role}", f"openai/{AGENT}")
    yield stub
    stub.close()
