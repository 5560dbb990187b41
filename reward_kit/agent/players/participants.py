"""The agent, the simulated users and their models, found and checked before the first rollout."""

from __future__ import annotations

import inspect
import json
import logging
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.redaction import REDACTED
from reward_kit.agent.base.text import count
from reward_kit.agent.models.calls import Limiters
from reward_kit.agent.models.litellm import remote_model
from reward_kit.agent.models.local.backends import LocalFile, check_tools, names_local_model
from reward_kit.agent.models.local.model import LocalModel
from reward_kit.agent.models.local.server import ModelServer
from reward_kit.agent.models.providers import find_endpoint
from reward_kit.agent.players.names import (
    FROM_PROMPT,
    NO_USER,
    is_own,
    load_agent,
    load_user,
    no_user,
    user_of,
    uses_model,
)
from reward_kit.agent.players.wrappers import OwnFactory, call_hook, foreign_code
from reward_kit.agent.rewards.criteria import check_judge
from reward_kit.agent.rollout.orchestrator import close_quietly
from reward_kit.agent.rollout.rollout import TaskView
from reward_kit.errors import BundleError, ModelSetupError, RewardError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.base.types import Model, Role
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.players.agents import Agent
    from reward_kit.agent.players.users import User
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.store.loading import Recordings

logger = logging.getLogger(__name__)

_MODEL_REMEDIES = {
    "agent": "Name one with --model or the environment variable MODEL_AGENT.",
    "user": "Name one with --user-model or the environment variable MODEL_SIM, "
    "or do without a user: --user none.",
}


LITELLM = "reward_kit.agent.models.litellm_library:import_litellm"


def large_library(config: EvaluationConfig) -> str:
    """The library that the first model call needs, as ``pkgutil.resolve_name`` finds it; "" for none."""
    if needs_litellm(config):
        return LITELLM
    return "aiohttp" if any(_asked(config)) else ""


def needs_litellm(config: EvaluationConfig) -> bool:
    """True if LiteLLM has to ask a model that the options or the environment name."""
    with suppress(ModelSetupError):  # it is raised again where the models are made
        return any(config.client != "direct" or find_endpoint(*one) is None for one in _asked(config))
    return False


def _asked(config: EvaluationConfig) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """The models of providers that the options or the environment name, with providers and arguments."""
    named = (
        (config.or_environment("model"), config.provider, dict(config.model_args)),
        (config.or_environment("sim_model"), config.user_provider, dict(config.user_model_args)),
    )
    if not config.agent or uses_model(config.agent):
        for name, provider, args in named:
            if name and not names_local_model(name, provider=provider, model_args=args):
                yield name, provider, args


@dataclass(slots=True)
class Participants:
    """The agent and users of an evaluation; both are made anew for each rollout, the models are shared.

    ``user_specs`` holds the user of each row by row id. ``interactive`` says that a person takes part.
    ``recordings`` are set for a replay. ``limiters`` stand between the models and their providers.
    ``unplayable`` are the rows to leave out, by id, each with the reason.
    """

    agent_spec: str
    make_agent: Callable[[], Agent]
    user_specs: dict[str, str]
    make_user: dict[str, Callable[[], User | None]]
    models: dict[Role, Model] = field(default_factory=dict)
    limiters: Limiters = field(default_factory=Limiters)
    interactive: bool = False
    recordings: Recordings | None = None
    warnings: list[str] = field(default_factory=list)
    unplayable: dict[str, BundleError] = field(default_factory=dict)

    def user(self, task: Task) -> User | None:
        """Return a new user for a rollout of ``task``."""
        return self.make_user[self.user_specs[task.row.id]]()

    def models_of(self, trace: Trace) -> dict[str, str]:
        """Return the names of the models that took part; a custom agent may ask none."""
        asked = {call.role for call in trace.model_calls}
        players = {"agent": self.agent_spec, "user": self.user_specs[trace.row_id]}
        return {
            role: model.name
            for role, model in self.models.items()
            if role in asked or not is_own(players.get(role, ""))
        }

    async def open(self) -> None:
        """Start what the players and models share (servers, processes); raises what they raise."""
        for resource in self._shared():
            if hasattr(resource, "open"):
                await call_hook(resource, "open")

    async def close(self) -> None:
        """Close what they share, also what was never opened; one that fails to close is logged."""
        for resource in self._shared():
            await close_quietly(resource, logging.WARNING)

    def _shared(self) -> list[Any]:
        """Models and factories, each once; the ``open`` of a mere class belongs to its products."""
        found = (*self.models.values(), self.make_agent, *self.make_user.values())
        return list({id(one): one for one in found if not inspect.isclass(one)}.values())


def find_participants(
    config: EvaluationConfig,
    tasks: Sequence[Task],
    models: Mapping[Role, Model],
    players: Mapping[Role, Any],
) -> Participants:
    """Find agent, users and models, and check that they can play these tasks.

    ``models`` and ``players`` are objects, whose names the configuration has.
    Raises ``UsageError`` for a model that is not named, ``ModelSetupError`` for one that cannot be
    called (no key, no such provider), ``BundleError`` for an agent or user that is not there or cannot play a
    task, and for criteria without a judge.
    """
    spec = config.agent
    assert spec is not None, "the configuration is resolved"
    asked = NO_USER if config.no_sim_user else config.user
    user_specs = {task.row.id: user_of(task.row, spec, asked) for task in tasks}
    users = dict.fromkeys(user_specs.values())
    if config.guard_user and not FROM_PROMPT & users.keys() and "user" not in players:
        raise UsageError(
            "--guard-user has no effect: no model plays a simulated user", remedy="Leave --guard-user out."
        )
    if config.user in FROM_PROMPT and users.keys() == {NO_USER}:
        raise UsageError(
            f"--user {config.user} has no effect: none of the selected rows has a sim_user_prompt",
            remedy="Add the field to the rows, or leave --user out.",
        )
    user_asks = any(map(uses_model, users))
    participants = Participants(
        agent_spec=spec,
        make_agent=_maker("agent", players.get("agent", spec), config, tasks),
        user_specs=user_specs,
        make_user={name: _maker("user", players.get("user", name), config, tasks) for name in users},
    )
    participants.recordings = _check(participants, "agent", spec, tasks, config)
    silent = [one.row for one in tasks if one.row.sim_user_prompt and not one.row.initial_messages]
    silent = [row for row in silent if user_specs[row.id] == NO_USER]
    if silent and spec != "gold" and participants.recordings is None and config.mode != "solo":
        rows = f"{count(len(silent), 'row')} without first message and user, such as {silent[0].id!r}"
        participants.warnings.append(f"{rows}: nobody tells the agent what to do")
    for name in users:
        of_user = [task for task in tasks if user_specs[task.row.id] == name]
        recordings = _check(participants, "user", name, of_user, config)
        for task in of_user:
            # waiting for the first line of a user who says none would end the replay
            if recordings is not None and not recordings.with_user(task.row.id):
                user_specs[task.row.id] = NO_USER
                participants.make_user.setdefault(NO_USER, no_user)
    participants.limiters = Limiters(
        ceiling=config.max_concurrency, rpm=config.rpm, tpm=config.tpm, patience=config.patience
    )
    asks = {"agent": uses_model(spec) and "agent" not in models, "user": user_asks and "user" not in models}
    if any(asks.values()):
        participants.models = find_models(config, participants.limiters, **asks)
    participants.models.update(models)
    for task in tasks:
        try:
            if task.asks_judge:
                check_judge(task.row.judge_model, task.judge)
        except RewardError as error:
            fault = f"row {task.row.id!r}: {error.fault}"
            raise BundleError(fault, place=task.row.place, remedy=error.remedy) from error
    return participants


def find_models(
    config: EvaluationConfig, limiters: Limiters, *, agent: bool, user: bool
) -> dict[Role, Model]:
    """The models that agent and user ask, as far as they are wanted and named.

    Their calls go through ``limiters``, but for those of local servers.

    Raises ``ModelSetupError`` for one that cannot be called: no key, no such provider, a wrong address.
    """
    for flag, given in (("--model-arg", config.model_args), ("--user-model-arg", config.user_model_args)):
        hidden = [name for name, value in given.items() if REDACTED in json.dumps(value, default=str)]
        if hidden:
            raise ModelSetupError(
                f"the model argument {hidden[0]} is a secret, which is not stored with an evaluation",
                remedy=f"Give it again: {flag} {hidden[0]}=...",
            )
    common = {"client": config.client, "retries": config.retries, "timeout": config.call_timeout}
    agent_options = {**common, "temperature": config.temperature, "model_args": dict(config.model_args)}
    user_options = {**common, "model_args": dict(config.user_model_args)}
    servers: dict[Path, ModelServer] = {}  # agent and user share the server of a model

    def model(name: str, provider: str | None, options: dict[str, Any]) -> Model:
        if names_local_model(name, provider=provider, model_args=options["model_args"]):
            file = LocalFile.find(name)
            server = servers.setdefault(file.path.resolve(), ModelServer(file))
            if options is agent_options and config.agent == "tool-calling":
                check_tools(file, server.backend)
            return LocalModel(server, **options)
        return remote_model(name, provider, limiters=limiters, prompt_cache=config.prompt_cache, **options)

    models: dict[Role, Model] = {}
    if agent and config.model:
        models["agent"] = model(config.model, config.provider, agent_options)
    if user and config.sim_model:
        models["user"] = model(config.sim_model, config.user_provider, user_options)
    return models


def _maker(role: Role, given: Any, config: EvaluationConfig, tasks: Sequence[Task]) -> Callable[[], Any]:
    """Return the factory of an agent or user for this evaluation.

    A person's own sees no answers unless it says so. In a resumed evaluation, ``given`` may be the name of an
    object that was given from Python.
    """
    try:
        make = load_agent(given) if role == "agent" else load_user(given)
    except BundleError as error:
        if config.resume is None or not isinstance(given, str) or not is_own(given) or error.remedy:
            raise
        remedy = f"If it was given from Python, give it again: agent_eval(resume=..., {role}=...)."
        raise BundleError(error.fault, place=error.place, remedy=remedy) from error
    configured: Callable[..., Callable[[], Any]] | None = getattr(make, "configured", None)
    if configured is None:
        return make
    hidden = isinstance(make, OwnFactory) and not make.sees_answers
    return configured(config, [TaskView(task) for task in tasks] if hidden else tasks)


def _check(
    participants: Participants, role: Role, name: str, tasks: Sequence[Task], config: EvaluationConfig
) -> Recordings | None:
    """Check that a player has a model and can play ``tasks``; return the recordings of a replay."""
    from reward_kit.agent.players.agents.replay import ReplayAgent, ReplayUser
    from reward_kit.agent.rollout.trace import redacted_warning

    make: Any = participants.make_agent if role == "agent" else participants.make_user[name]
    player = make.trial() if isinstance(make, OwnFactory) else make()
    if getattr(player, "needs_model", False) and not (config.model if role == "agent" else config.sim_model):
        who = f"agent {name} needs a model"
        who = who if role == "agent" else f"simulated user ({name}) needs a model of its own"
        raise UsageError(f"the {who}", remedy=_MODEL_REMEDIES[role])
    participants.interactive |= bool(getattr(player, "interactive", False))
    if hasattr(player, "check"):
        sees_answers = role == "agent" and getattr(player, "sees_answers", False)
        hook = f"check() of the {role} {name}"
        if inspect.iscoroutinefunction(player.check):
            raise BundleError(f"{hook} is `async def`", remedy="Write `def check(self, task)`.")
        guarded = partial(foreign_code, f"{hook} raised") if isinstance(make, OwnFactory) else nullcontext
        for task in tasks:
            try:
                with guarded(task.row.place):
                    player.check(task if sees_answers else TaskView(task, for_user=role == "user"))
            except BundleError as error:
                if not config.skip_unplayable:
                    raise
                participants.unplayable[task.row.id] = error
    if not isinstance(player, ReplayAgent | ReplayUser):
        return None
    asked = {task.row.id: config.n_rollouts or task.row.n_rollouts for task in tasks}
    others = sum(player.recordings.check_rollouts(row_id, number) for row_id, number in asked.items())
    if others and role == "agent":
        said = f"{count(others, 'recorded rollout')} beyond those that the rows ask for: not replayed"
        participants.warnings.append(said)
    if redacted := player.recordings.redacted:
        participants.warnings.append(f"--{role} {name}: {redacted_warning(redacted)}")
    return player.recordings
