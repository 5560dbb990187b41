"""The worker program in its real environment: every command, and what is checked before a run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import AGENT, ROOT
from stub_server import Answer, StubServer

from reward_kit.agent import TaskBundle
from reward_kit.agent.config import EvaluationConfig
from reward_kit.agent.database import Database
from reward_kit.agent.players.agents.fastworkflow.agent import FastWorkflow
from reward_kit.agent.players.agents.fastworkflow.setup import FastWorkflowHome
from reward_kit.agent.rollout.episode import Episode
from reward_kit.cli import main
from reward_kit.errors import ModelSetupError

MORE = {
    "find_user_id_by_email": {"email": "yusuf.rossi7301@example.com"},
    "list_all_product_types": {},
    "transfer_to_human_agents": {"summary": "wants a person"},
}
"""Calls of the commands that no row's actions may have."""


@pytest.fixture
async def factory(
    trained: FastWorkflowHome, models: StubServer, tmp_path: Path
) -> AsyncIterator[FastWorkflow]:
    """An open factory with one worker."""
    factory = FastWorkflow(EvaluationConfig(agent="fastworkflow"), [], home=trained)
    await factory.open()
    yield factory
    await factory.close()


def calls_of(rows: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A call of each tool, taken from the rows' actions."""
    calls = dict(MORE)
    for row in rows.values():
        for action in row["actions"]:
            calls.setdefault(action["name"], action["arguments"])
    return calls


@pytest.fixture
def episodes(tmp_path: Path) -> Iterator[Callable[[], Episode]]:
    """``episodes()`` is a new episode of the first retail row."""
    with TaskBundle.load(ROOT / "tau_retail_task" / "task.jsonl") as bundle:
        task = bundle.tasks[0]
        with Database.seed(tmp_path / "base.db", task.seed.sql, origin=task.seed.origin) as base:
            yield lambda: Episode(task, 0, database=base.fork())


async def test_every_command_calls_its_tool_on_the_rollouts_database(
    factory: FastWorkflow,
    retail_rows: dict[str, Any],
    trained: FastWorkflowHome,
    episodes: Callable[[], Episode],
) -> None:
    calls = calls_of(retail_rows)
    commands = {path.stem for path in (trained.workflow() / "_commands").glob("*.py")}
    assert len(commands) == 15
    assert commands == set(calls)
    for name, arguments in calls.items():
        with episodes() as rollout:
            agent = factory()
            worker = await agent.join(rollout.rollout)
            answer = await worker.ask("action", rollout=rollout.id, command=name, parameters=arguments)
            assert len(rollout.tool_calls) == 1, (name, answer)
            (call,) = rollout.tool_calls
            assert (call.name, call.arguments) == (name, arguments)
            if name == "transfer_to_human_agents":
                assert rollout.stop_reason == "terminal_tool"
            else:
                assert call.content in answer["text"]
            await agent.close()


async def test_the_same_call_in_two_turns_is_made_twice(
    factory: FastWorkflow, episodes: Callable[[], Episode]
) -> None:
    with episodes() as rollout:
        worker = await factory().join(rollout.rollout)
        for _ in range(2):
            answer = await worker.ask(
                "action", rollout=rollout.id, command="calculate", parameters={"expression": "1 + 1"}
            )
            assert "2" in answer["text"]
        assert len(rollout.tool_calls) == 2


async def test_a_turn_that_is_called_off_ends_before_its_next_model_call(
    factory: FastWorkflow, models: StubServer, episodes: Callable[[], Episode]
) -> None:
    models.script(AGENT, lambda _request, _place: Answer(content="late", delay=1.0))
    with episodes() as rollout:
        worker = await factory().join(rollout.rollout)
        turn = asyncio.ensure_future(worker.ask("turn", rollout=rollout.id, text="Hello"))
        while not models.requests_for(AGENT):  # noqa: ASYNC110 - the server is in another thread
            await asyncio.sleep(0.02)
        assert list(worker._folder.glob("rollout-*"))
        assert "error" not in await worker.ask("close", rollout=rollout.id)
        assert (await turn)["status"] == "stopped"
        assert len(models.requests_for(AGENT)) == 1
        assert worker.process is not None
        assert not list(worker._folder.glob("rollout-*")), "a rollout leaves nothing behind"


async def test_an_untrained_workflow_is_told_before_the_run(
    untrained: FastWorkflowHome, models: StubServer
) -> None:
    factory = FastWorkflow(EvaluationConfig(agent="fastworkflow"), [], home=untrained)
    with pytest.raises(ModelSetupError, match="the workflow is not trained"):
        await factory.open()
    await factory.close()


async def test_keys_that_are_missing_are_told_before_the_run(
    trained: FastWorkflowHome, models: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setenv("LLM_PLANNER", "mistral/mistral-small-latest")
    monkeypatch.setenv("LLM_PARAM_EXTRACTION", "litellm_proxy/small")
    monkeypatch.setenv("LITELLM_API_KEY_AGENT", "sk-0123456789")
    factory = FastWorkflow(EvaluationConfig(agent="fastworkflow"), [], home=trained)
    with pytest.raises(ModelSetupError) as caught:
        await factory.open()
    await factory.close()
    fault = str(caught.value)
    assert "LLM_PLANNER needs MISTRAL_API_KEY: set it, or LITELLM_API_KEY_PLANNER, in" in fault
    assert "LLM_PARAM_EXTRACTION needs LITELLM_PROXY_API_BASE: set it, in" in fault
    assert "LLM_AGENT" not in fault


def test_check_says_that_all_is_ready(
    trained: FastWorkflowHome, models: StubServer, capfd: pytest.CaptureFixture[str]
) -> None:
    dataset = str(ROOT / "tau_retail_task")
    assert main(["fastworkflow", "check", "--dir", str(trained.folder), "-d", dataset]) == 0
    out, err = capfd.readouterr()
    assert out == f"FastWorkflow 2.30.1 is ready: {trained.workflow()}\n"
    assert "never calls: think" in err


def test_the_prepared_workflow_holds_none_of_the_examples_data(untrained: FastWorkflowHome) -> None:
    workflow = untrained.workflow()
    example = untrained.package / "examples" / "retail_workflow"
    assert list(workflow.rglob("*.json")) == [workflow / "context_inheritance_model.json"]
    for command in (example / "_commands").glob("*.py"):
        assert (workflow / "_commands" / command.name).read_bytes() == command.read_bytes()
    assert json.loads((workflow / "context_inheritance_model.json").read_text()) is not None
