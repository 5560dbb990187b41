"""docs/fastworkflow.md, followed word by word: all but the training."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from conftest import AGENT, ROOT
from pages import follow
from scripted_retail import RetailScript
from stub_server import StubServer

from reward_kit.agent.players.agents.fastworkflow.setup import FastWorkflowHome


@pytest.mark.timeout(600)
def test_the_page_leads_to_a_score(
    trained: FastWorkflowHome, models: StubServer, script: RetailScript, tmp_path: Path
) -> None:
    models.script("gpt-4o", script.customer)
    (tmp_path / "tau_retail_task").symlink_to(ROOT / "tau_retail_task")
    environment = {
        **os.environ,
        "REWARD_KIT_FASTWORKFLOW": str(trained.folder),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    follow(ROOT / "docs" / "fastworkflow.md", tmp_path, environment)
    assert models.requests_for(AGENT)
    assert (tmp_path / "runs" / "evals" / "first.json").exists()
