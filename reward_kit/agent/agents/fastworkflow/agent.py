"""``--agent fastworkflow``: FastWorkflow's agent, played in processes of its own on the rollout's tools."""

from __future__ import annotations

import contextlib
import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.agents.fastworkflow import preflight
from reward_kit.agent.agents.fastworkflow.environment import FastWorkflowHome
from reward_kit.agent.agents.fastworkflow.model_faults import raise_fault
from reward_kit.agent.agents.fastworkflow.session import Session
from reward_kit.agent.agents.fastworkflow.settings import (
    ROLES,
    hidden_arguments,
    worker_environment,
)
from reward_kit.agent.agents.fastworkflow.workers import Patience, Worker, WorkerPool
from reward_kit.agent.temporary_folder import temporary_folder
from reward_kit.errors import AgentError, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.completion import Message
    from reward_kit.agent.doors import ToolDoor
    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.rollout import Rollout

logger = logging.getLogger(__name__)

WORKER_PROGRAM = Path(__file__).with_name("worker.py")


class FastWorkflowAgent:
    """One rollout, played by one of the workers that the evaluation shares."""

    def __init__(self, shared: FastWorkflow) -> None:
        self._shared = shared
        self._session: Session | None = None

    @classmethod
    def configured(cls, config: EvaluationConfig, tasks: Sequence[Task]) -> FastWorkflow:
        """What makes the agents of an evaluation, and holds the processes that they share."""
        return FastWorkflow(config, tasks)

    async def respond(self, rollout: Rollout) -> str | Message:
        """Hand over what the user said last; FastWorkflow's answer or question is what the user hears.

        Raises ``ModelError`` where a model or the worker failed, ``AgentError`` where FastWorkflow did.
        """
        if self._session is None:
            self._session = await self._shared.session(rollout)
        answer = await self._session.turn(_heard(rollout))
        if rollout.stop_reason is not None:
            return ""  # not said to anybody: the conversation is over
        if "error" in answer:
            raise_fault(answer["error"])
        if answer["status"] == "stopped":
            raise ModelError("the turn was called off", place="FastWorkflow", retryable=True)
        return _said(answer)

    async def close(self) -> None:
        """Free the worker of this rollout; a turn that is still running is called off."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class FastWorkflow:
    """The factory of an evaluation: the tool door and the workers, opened before the first rollout."""

    def __init__(
        self,
        config: EvaluationConfig,
        tasks: Sequence[Task],
        *,
        home: FastWorkflowHome | None = None,
        patience: Patience | None = None,
        warn: Callable[[str], None] = logger.warning,
    ) -> None:
        self.patience = patience or Patience()
        self.versions: dict[str, str] = {}
        """Of the packages that play, by name; known once it is open."""
        self.models: dict[str, str] = {}
        """Of FastWorkflow's roles, by role; known once it is open."""
        self._config = config
        self._warn = warn
        self._tasks = tasks
        self._home = home or FastWorkflowHome.find()
        self._resources = contextlib.AsyncExitStack()
        self._door: ToolDoor | None = None
        self._pool: WorkerPool | None = None

    def __call__(self) -> FastWorkflowAgent:
        return FastWorkflowAgent(self)

    async def open(self) -> None:
        """Check everything that can be checked, then start the workers.

        Raises ``ModelSetupError`` with all that is missing.
        """
        environment = worker_environment(self._config)
        faults, warnings = preflight.faults_of_tools(self._home, self._tasks)
        of_home = preflight.faults_of_home(self._home)
        faults = [*of_home, *preflight.faults_of_settings(environment), *_local_model(self._config), *faults]
        if of_home:
            preflight.check(faults)
        await self._start(environment)
        assert self._pool is not None, "_start makes it"
        description = await self._pool.workers[0].ask("describe")
        if "error" in description:
            raise_fault(description["error"])
        preflight.check([*faults, *preflight.faults_of_worker(description)])
        self.versions = description["versions"]
        self.models = {role: environment[f"LLM_{role}"] for role in ROLES}
        logger.debug("FastWorkflow runs with %s", self.versions)
        for warning in warnings:
            self._warn(warning)

    async def close(self) -> None:
        """End the workers, then the door."""
        await self._resources.aclose()
        self._door = self._pool = None

    async def session(self, rollout: Rollout) -> Session:
        """Begin ``rollout`` in one of the workers."""
        if self._pool is None or self._door is None:
            raise RuntimeError("open() comes first")
        policy = rollout.task.system_prompt if self._config.fastworkflow_policy == "insights" else None
        session = Session(rollout, self._pool, await self._pool.take(), self.patience)
        await session.begin(self._door, policy)
        return session

    @property
    def workers(self) -> list[Worker]:
        """The processes; empty while it is not open."""
        return self._pool.workers if self._pool is not None else []

    async def _start(self, environment: dict[str, str]) -> None:
        from reward_kit.agent.doors import ToolDoor

        workflow = self._home.workflow()
        assert workflow is not None, "the preflight says so otherwise"
        folder = temporary_folder("fastworkflow")
        self._resources.callback(shutil.rmtree, folder, ignore_errors=True)
        self._door = ToolDoor()
        await self._door.open()
        self._resources.push_async_callback(self._door.close)
        # -I: nothing of this project's or the user's import path reaches the other environment
        command = [str(self._home.python), "-I", "-X", "utf8", str(WORKER_PROGRAM), str(workflow)]
        hidden = hidden_arguments(self._config)
        self._pool = WorkerPool(
            lambda: Worker(command, environment, folder, self.patience, hidden=hidden),
            self._config.fastworkflow_workers,
        )
        self._resources.push_async_callback(self._pool.close)
        await self._pool.open()


def _local_model(config: EvaluationConfig) -> list[str]:
    """FastWorkflow asks its models itself; it does not start them."""
    from reward_kit.agent.local_models import names_local_model

    if not config.model or not names_local_model(config.model, provider=config.provider):
        return []
    remedy = "such as --model hosted_vllm/NAME --model-arg api_base=http://127.0.0.1:8000/v1"
    return [f"--model {config.model} is a file or folder: serve it and name it as LiteLLM does, {remedy}"]


def _heard(rollout: Rollout) -> str:
    """The user's last line; at the beginning, whatever was said before it too."""
    lines = rollout.lines
    if not lines:
        raise AgentError("FastWorkflow answers a user, and nobody has said anything")
    if rollout.turns > 1 or len(lines) == 1:
        return lines[-1].text
    return "\n".join(f"{line.speaker}: {line.text}" for line in lines)


def _said(answer: dict[str, Any]) -> Message:
    """The assistant message; FastWorkflow's steps stand where a model's reasoning would."""
    text = str(answer.get("text") or "").strip()
    if not text:
        raise AgentError(f"FastWorkflow gave no answer ({answer.get('reason') or answer['status']})")
    thoughts = answer.get("thoughts") or ""
    if answer.get("reason"):
        thoughts = f"{thoughts}\n[{answer['status']}: {answer['reason']}]".strip()
    message: Message = {"role": "assistant", "content": text}
    if thoughts:
        message["reasoning_content"] = thoughts
    return message
