"""What is missing before a run is told in one message, each with its remedy."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from fake_home import make_home
from small_task import BOOKED, small_task

from reward_kit.agent.config import EvaluationConfig
from reward_kit.agent.players.agents.fastworkflow.agent import FastWorkflow
from reward_kit.agent.players.agents.fastworkflow.preflight import ARTIFACTS, training_of
from reward_kit.agent.players.agents.fastworkflow.setup import FastWorkflowHome
from reward_kit.errors import ModelSetupError


async def fault_of(*tasks: Any, **options: Any) -> str:
    """What keeps an evaluation from starting."""
    factory = FastWorkflow(EvaluationConfig(agent="fastworkflow", **options), tasks)
    try:
        with pytest.raises(ModelSetupError) as caught:
            await factory.open()
    finally:
        await factory.close()
    return str(caught.value)


async def test_without_an_environment_setup_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARD_KIT_FASTWORKFLOW", str(tmp_path / "none"))
    fault = await fault_of()
    assert f"there is no environment in {tmp_path / 'none'}: run `reward-kit fastworkflow setup`" in fault


async def test_another_version_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version, told in (("", "has no fastworkflow"), ("2.24.1", "fastworkflow 2.24.1 is installed")):
        home = make_home(tmp_path / f"home{version}", version=version)
        monkeypatch.setenv("REWARD_KIT_FASTWORKFLOW", str(home))
        assert told in await fault_of()


async def test_a_model_that_lies_in_a_folder_has_to_be_served(home: Path) -> None:
    assert "--model ./model is a file or folder: serve it" in await fault_of(model="./model")


async def test_tools_without_a_command_are_warned_of(opened: Any, caplog: pytest.LogCaptureFixture) -> None:
    await opened()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == ["tools without a FastWorkflow command, which it never calls: hang, ping, transfer"]


async def test_all_that_is_missing_is_in_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARD_KIT_FASTWORKFLOW", str(make_home(tmp_path / "home", commands=["upgrade"])))
    monkeypatch.setenv("FAKE_UNTRAINED", "1")
    monkeypatch.setenv("FAKE_LACKING", json.dumps({"PLANNER": ["OPENAI_API_KEY"]}))
    monkeypatch.delenv("LLM_AGENT")
    fault = await fault_of(small_task(tmp_path, actions=BOOKED))
    head, *listed = fault.splitlines()
    assert head == "--agent fastworkflow: FastWorkflow is not ready:"
    expected = [
        "  - LLM_AGENT not set: name a model, as LiteLLM names it, in the environment or .env; --model NAME",
        "  - commands of the workflow airline without a tool in the bundle: upgrade (row book). A workflow",
        "  - tools in the rows' actions without a command in the workflow: create_booking (row book), pay_",
        "  - the workflow is not trained (*): run `reward-kit fastworkflow train`",
        "  - the model of LLM_PLANNER needs OPENAI_API_KEY: set it, or LITELLM_API_KEY_PLANNER, in the",
    ]
    assert [line[: len(told)] for line, told in zip(listed, expected, strict=True)] == expected


def test_it_lives_where_the_environment_says_or_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    monkeypatch.setenv("REWARD_KIT_FASTWORKFLOW", "/there")
    assert FastWorkflowHome.find("/here").folder == Path("/here")
    assert FastWorkflowHome.find().folder == Path("/there")
    monkeypatch.delenv("REWARD_KIT_FASTWORKFLOW")
    assert FastWorkflowHome.find().folder == Path("/cache/reward-kit/fastworkflow")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ann")
    assert FastWorkflowHome.find().folder == Path("/home/ann/.cache/reward-kit/fastworkflow")


def test_every_trained_part_is_looked_at(tmp_path: Path) -> None:
    home = FastWorkflowHome(make_home(tmp_path / "home"))
    internal = tmp_path / "home/venv/lib/python3.12/site-packages/fastworkflow/_workflows/cme"
    (internal / "_commands").mkdir(parents=True)
    assert training_of(home) == (
        [],
        ["FastWorkflow's internal workflow cme is not trained: run `reward-kit fastworkflow train`"],
    )
    for workflow, context in ((internal, "global"), (home.workflow(), "global")):
        for name in ARTIFACTS:
            file = workflow / "___command_info" / context / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    assert training_of(home) == ([], [])
    for workflow in (internal, home.workflow()):
        (workflow / "___command_info" / "global" / "largemodel.pth").unlink()
    (fault,), (warning,) = training_of(home)
    assert fault.startswith("the training of airline is not complete (global: largemodel.pth): run")
    assert "cme is not trained (global: largemodel.pth)" in warning
