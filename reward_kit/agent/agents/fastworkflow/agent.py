"""``--agent fastworkflow``: FastWorkflow's agent in worker processes, on the rollout's tools."""

from __future__ import annotations

import contextlib
import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.agents.fastworkflow import preflight
from reward_kit.agent.agents.fastworkflow.home import FastWorkflowHome
from reward_kit.agent.agents.fastworkflow.preflight import ROLES, hidden_arguments, worker_environment
from reward_kit.agent.agents.fastworkflow.workers import Patience, Session, Worker, WorkerPool, raise_fault
from reward_kit.agent.base.files import temporary_folder
from reward_kit.errors import AgentError, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reward_kit.agent.base.types import Message
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.rollout.rollout import Rollout
    from reward_kit.agent.servers.endpoint import ToolEndpoint

logger = logging.getLogger(__name__)

WORKER_PROGRAM = Path(__file__).with_name("worker.py")


class FastWorkflowAgent:
    """Plays one rollout in a worker that the evaluation's rollouts share."""

    def __init__(self, shared: FastWorkflow) -> None:
        self._shared = shared
        self._session: Session | None = None

    @classmethod
    def configured(cls, config: EvaluationConfig, tasks: Sequence[Task]) -> FastWorkflow:
        """Return the factory of an evaluation's agents, which owns their processes."""
        return FastWorkflow(config, tasks)

    async def respond(self, rollout: Rollout) -> str | Message:
        """Pass the user's last line on and return FastWorkflow's answer or question.

        Raises ``ModelError`` if a model or the worker failed, ``AgentError`` if FastWorkflow did.
        """
        if self._session is None:
            self._session = await self._shared.session(rollout)
        answer = await self._session.turn(_heard(rollout))
        if rollout.stop_reason is not None:
            return ""  # the conversation is over
        if "error" in answer:
            raise_fault(answer["error"])
        if answer["status"] == "stopped":
            raise ModelError("the turn was cancelled", place="FastWorkflow", retryable=True)
        return _said(answer)

    async def close(self) -> None:
        """Leave the worker; a running turn is cancelled."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class FastWorkflow:
    """Factory of the agents: tool endpoint and workers, opened before the first rollout."""

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
        """Package versions by name, known after ``open``."""
        self.models: dict[str, str] = {}
        """Models by role, known after ``open``."""
        self._config = config
        self._warn = warn
        self._tasks = tasks
        self._home = home or FastWorkflowHome.find()
        self._resources = contextlib.AsyncExitStack()
        self._door: ToolEndpoint | None = None
        self._pool: WorkerPool | None = None

    def __call__(self) -> FastWorkflowAgent:
        return FastWorkflowAgent(self)

    async def open(self) -> None:
        """Check the set-up, then start the workers.

        Raises ``ModelSetupError`` with everything that is missing.
        """
        environment = worker_environment(self._config)
        faults, warnings = preflight.faults_of_tools(self._home, self._tasks)
        of_home = preflight.faults_of_home(self._home)
        faults = [*of_home, *preflight.faults_of_settings(environment), *_local_model(self._config), *faults]
        if of_home:
            preflight.check(faults)
        await self._start(environment)
        assert self._pool is not None, "set by _start"
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
        """Stop the workers, then the endpoint."""
        await self._resources.aclose()
        self._door = self._pool = None

    async def session(self, rollout: Rollout) -> Session:
        """Begin ``rollout`` in one of the workers."""
        if self._pool is None or self._door is None:
            raise RuntimeError("call open() first")
        policy = rollout.system_prompt if self._config.fastworkflow_policy == "insights" else None
        session = Session(rollout, self._pool, await self._pool.take(), self.patience)
        await session.begin(self._door, policy)
        return session

    @property
    def workers(self) -> list[Worker]:
        """The processes; empty unless open."""
        return self._pool.workers if self._pool is not None else []

    async def _start(self, environment: dict[str, str]) -> None:
        from reward_kit.agent.servers.endpoint import ToolEndpoint

        workflow = self._home.workflow()
        assert workflow is not None, "checked by the preflight"
        folder = temporary_folder("fastworkflow")
        self._resources.callback(shutil.rmtree, folder, ignore_errors=True)
        self._door = ToolEndpoint()
        await self._door.open()
        self._resources.push_async_callback(self._door.close)
        # -I: keeps this process's import path out of the other environment
        command = [str(self._home.python), "-I", "-X", "utf8", str(WORKER_PROGRAM), str(workflow)]
        hidden = hidden_arguments(self._config)
        self._pool = WorkerPool(
            lambda: Worker(command, environment, folder, self.patience, hidden=hidden),
            self._config.fastworkflow_workers,
        )
        self._resources.push_async_callback(self._pool.close)
        await self._pool.open()


def _local_model(config: EvaluationConfig) -> list[str]:
    """Refuse a local model path: FastWorkflow calls its models itself and starts no server."""
    from reward_kit.agent.models.local import names_local_model

    if not config.model or not names_local_model(config.model, provider=config.provider):
        return []
    remedy = "such as --model hosted_vllm/NAME --model-arg api_base=http://127.0.0.1:8000/v1"
    return [f"--model {config.model} is a file or folder: serve it and name it as LiteLLM does, {remedy}"]


def _heard(rollout: Rollout) -> str:
    """Return the user's last line; in the first turn, with everything said before it."""
    lines = rollout.lines
    if not lines:
        raise AgentError("FastWorkflow needs a user's line, and there is none")
    if rollout.turns > 1 or len(lines) == 1:
        return lines[-1].text
    return "\n".join(f"{line.speaker}: {line.text}" for line in lines)


def _said(answer: dict[str, Any]) -> Message:
    """Build the assistant message, with FastWorkflow's steps as its reasoning."""
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
