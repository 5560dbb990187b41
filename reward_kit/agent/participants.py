"""Who plays: the agent, the simulated user and their models, found and checked before the first rollout."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from reward_kit.agent.faults import fault_line
from reward_kit.agent.model_clients.choice import find_models
from reward_kit.agent.own_models import checked_models
from reward_kit.agent.plugins import is_own, prepared, trial_of
from reward_kit.agent.providers import Gates
from reward_kit.errors import BundleError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reward_kit.agent.agents import Agent
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.completion import Model
    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.rollout import Role, Rollout
    from reward_kit.agent.runs.recording import Recordings
    from reward_kit.agent.users import User

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

NO_USER = "none"
WITHOUT_MODEL = frozenset({"fastworkflow", "gold", "human", NO_USER})
"""Agents and users that never ask a model of ours; a recording (``replay:``) and an address do not either."""


@dataclass(slots=True)
class Participants:
    """The agent and users of an evaluation; both are made anew for each rollout, the models are shared.

    ``user_specs`` holds the user of each row by row id. ``interactive`` says that a person takes part.
    ``recordings`` are what the agent replays, if it does. ``gates`` stand between the models and their
    providers.
    """

    agent_spec: str
    make_agent: Callable[[], Agent]
    user_specs: dict[str, str]
    make_user: dict[str, Callable[[], User | None]]
    models: dict[Role, Model] = field(default_factory=dict)
    gates: Gates = field(default_factory=Gates)
    interactive: bool = False
    recordings: Recordings | None = None

    def user(self, task: Task) -> User | None:
        """A new user for a rollout of ``task``."""
        return self.make_user[self.user_specs[task.row.id]]()

    def recorded_seed(self, row_id: str, index: int) -> int | None:
        """The seed of the rollout that is replayed: its tools drew their random numbers from it."""
        recording = self.recordings.find_or_none(row_id, index) if self.recordings else None
        return recording.seed if recording else None

    def models_of(self, rollout: Rollout) -> dict[str, str]:
        """The names of the models that have part in ``rollout``; a person's own agent may ask none."""
        asked = {call.role for call in rollout.model_calls}
        players = {"agent": self.agent_spec, "user": self.user_specs[rollout.row.id]}
        return {
            role: model.name
            for role, model in self.models.items()
            if role in asked or not is_own(players.get(role, ""))
        }

    async def open(self) -> None:
        """Start what the players and models share (servers, processes); raises what they raise."""
        for resource in self._shared():
            opening = getattr(resource, "open", None)
            if opening is not None:
                await opening()

    async def close(self) -> None:
        """Close what they share, also what was never opened; one that cannot be closed hinders no other."""
        for resource in self._shared():
            closing = getattr(resource, "close", None)
            if closing is None:
                continue
            try:
                await closing()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code; there is more to close
                logger.warning("%s cannot be closed: %s", type(resource).__name__, fault_line(error))

    def _shared(self) -> list[Any]:
        """Models and factories, each once; the ``open`` of a mere class belongs to what it makes."""
        makers = [make for make in (self.make_agent, *self.make_user.values()) if not inspect.isclass(make)]
        return list({id(resource): resource for resource in (*self.models.values(), *makers)}.values())


def agent_spec(config: EvaluationConfig) -> str:
    """The agent that is asked for; raises ``UsageError`` where nothing says which."""
    if config.agent:
        return config.agent
    config.from_environment(model=True)
    if config.model:
        return "tool-calling"
    raise UsageError(
        "nothing says which agent to evaluate",
        remedy="Name a model with --model or the environment variable MODEL_AGENT, "
        "or replay the ground truth offline with --agent gold.",
    )


def find_participants(
    config: EvaluationConfig,
    tasks: Sequence[Task],
    models: Mapping[Role, Model | Callable[..., Any]] | None = None,
    players: Mapping[Role, Any] | None = None,
) -> Participants:
    """Find agent, users and models, and check that they can play these tasks.

    ``models`` take the place of those that the configuration names, and give it their names. ``players`` are
    an agent and a user given as objects, which the configuration has the names of already.
    Raises ``UsageError`` for a model that is not named or is none, ``ModelSetupError`` for one that cannot be
    called (no key, no such provider), ``BundleError`` for an agent or user that is not there or cannot play a
    task.
    """
    from reward_kit.agent.agents import load_agent
    from reward_kit.agent.users import load_user, user_of

    models = checked_models(models or {})
    for role, option in (("agent", "model"), ("user", "sim_model")):
        if role in models:
            setattr(config, option, models[role].name)
    players = players or {}
    spec = agent_spec(config)
    asked = NO_USER if config.no_sim_user else config.user
    config.agent = spec
    user_specs = {task.row.id: user_of(task.row, spec, asked) for task in tasks}
    config.from_environment(model=uses_model(spec), sim_model=any(map(uses_model, user_specs.values())))
    make_agent = _factory(load_agent, "agent", players.get("agent", spec), config)
    make_user = {
        name: _factory(load_user, "user", players.get("user", name), config)
        for name in dict.fromkeys(user_specs.values())
    }
    participants = Participants(
        agent_spec=spec,
        make_agent=prepared(make_agent, config, tasks),
        user_specs=user_specs,
        make_user={name: prepared(make, config, tasks) for name, make in make_user.items()},
    )
    _check_agent(participants, tasks, config)
    _check_users(participants, tasks, config)
    _drop_silent_users(participants)
    participants.gates = Gates(
        ceiling=config.max_concurrency, rpm=config.rpm, tpm=config.tpm, patience=config.patience
    )
    participants.models = find_models(
        config,
        participants.gates,
        agent=uses_model(spec) and "agent" not in models,
        user=any(map(uses_model, participants.make_user)) and "user" not in models,
    )
    participants.models.update(models)
    return participants


def check_asked_user(participants: Participants, asked: str | None) -> None:
    """Refuse a user that is asked for and plays in none of the rows.

    Only whoever knows all rows can ask this: a share of them may well have no user.
    """
    from reward_kit.agent.users import FROM_PROMPT

    if asked in FROM_PROMPT and set(participants.user_specs.values()) == {NO_USER}:
        raise UsageError(
            f"--user {asked} has no part to play: none of the chosen rows has a sim_user_prompt",
            remedy="Add the field to the rows, or leave --user out.",
        )


def _factory(
    load: Callable[[Any], Callable[[], _T]], role: Role, spec: Any, config: EvaluationConfig
) -> Callable[[], _T]:
    """What ``load`` makes of ``spec``.

    Where an evaluation goes on, this may be the name of what was given from Python at first.
    """
    try:
        return load(spec)
    except BundleError as error:
        if config.resume is None or not isinstance(spec, str) or not is_own(spec) or error.remedy:
            raise
        raise BundleError(
            error.fault,
            place=error.place,
            remedy=f"If it was given from Python, give it again: agent_eval(resume=..., {role}=...).",
        ) from error


def uses_model(spec: str) -> bool:
    """Whether this agent or user may ask a model."""
    return spec not in WITHOUT_MODEL and not spec.lower().startswith(("replay:", "http://", "https://"))


def _check_agent(participants: Participants, tasks: Sequence[Task], config: EvaluationConfig) -> None:
    from reward_kit.agent.agents.replay import ReplayAgent

    agent = trial_of(participants.make_agent)
    if getattr(agent, "needs_model", False) and not config.model:
        raise UsageError(
            f"the agent {participants.agent_spec} needs a model",
            remedy="Name one with --model or the environment variable MODEL_AGENT.",
        )
    participants.interactive |= bool(getattr(agent, "interactive", False))
    _check_tasks(agent, tasks, config)
    if isinstance(agent, ReplayAgent):
        participants.recordings = agent.recordings


def _check_users(participants: Participants, tasks: Sequence[Task], config: EvaluationConfig) -> None:
    for name, make in participants.make_user.items():
        user = trial_of(make)
        if user is None:
            continue
        if getattr(user, "needs_model", False) and not config.sim_model:
            raise UsageError(
                f"the simulated user ({name}) needs a model of its own",
                remedy="Name one with --sim-model or the environment variable MODEL_SIM, "
                "or do without a user: --no-sim-user.",
            )
        participants.interactive |= bool(getattr(user, "interactive", False))
        _check_tasks(user, [task for task in tasks if participants.user_specs[task.row.id] == name], config)


def _drop_silent_users(participants: Participants) -> None:
    """A replay of rollouts without a user has none either: waiting for its first line would end them."""
    from reward_kit.agent.users import load_user
    from reward_kit.agent.users.replay import ReplayUser

    users = {name: trial_of(make) for name, make in participants.make_user.items()}
    for row_id, name in participants.user_specs.items():
        user = users[name]
        if isinstance(user, ReplayUser) and not user.recordings.with_user(row_id):
            participants.user_specs[row_id] = NO_USER
            participants.make_user.setdefault(NO_USER, load_user(NO_USER))


def _check_tasks(player: Any, tasks: Sequence[Task], config: EvaluationConfig) -> None:
    from reward_kit.agent.agents.replay import ReplayAgent
    from reward_kit.agent.users.replay import ReplayUser

    check = getattr(player, "check", None)
    for task in tasks:
        if check is not None:
            check(task)
        if isinstance(player, ReplayAgent | ReplayUser):
            player.recordings.check_rollouts(task.row.id, config.n_rollouts or task.row.n_rollouts)
