"""Fixtures for the tests of ``--agent fastworkflow`` against a fake worker."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # this folder is no package

from fake_home import make_home
from small_task import ScriptedUser, play, small_task

from reward_kit.agent.config import EvaluationConfig
from reward_kit.agent.players.agents.fastworkflow.agent import FastWorkflow

Opening = Callable[..., Awaitable[FastWorkflow]]


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings that FastWorkflow needs."""
    for role in ("AGENT", "PLANNER", "PARAM_EXTRACTION"):
        monkeypatch.setenv(f"LLM_{role}", f"openai/{role.lower()}")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789abcdef")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of the fake worker, which REWARD_KIT_FASTWORKFLOW names."""
    folder = make_home(tmp_path / "fastworkflow")
    monkeypatch.setenv("REWARD_KIT_FASTWORKFLOW", str(folder))
    return folder


@pytest.fixture
async def opened(home: Path, tmp_path: Path) -> AsyncIterator[Opening]:
    """``await opened(option=value)`` is an open factory; closed at the end of the test."""
    factories: list[FastWorkflow] = []

    async def open_factory(**options: Any) -> FastWorkflow:
        config = EvaluationConfig(agent="fastworkflow", **options)
        factory = FastWorkflow(config, [small_task(tmp_path)])
        factories.append(factory)
        await factory.open()
        return factory

    yield open_factory
    for factory in factories:
        await factory.close()


@pytest.fixture
def talk(tmp_path: Path) -> Callable[..., Awaitable[Any]]:
    """``await talk(factory, "line", ...)`` plays a rollout in which the user says these lines."""

    async def run(factory: FastWorkflow, *lines: str, **options: Any) -> Any:
        first, *more = lines
        task = small_task(
            tmp_path,
            initial_messages=[{"role": "user", "content": first}],
            **{name: options.pop(name) for name in ("system_prompt", "max_steps") if name in options},
        )
        return await play(task, factory(), user=ScriptedUser(more), **options)

    return run
