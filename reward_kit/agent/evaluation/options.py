"""From options to the configuration of a run, which nothing changes any more::

config = config_of("my_task", {"model": "openai/gpt-4o-mini", "resume": "latest"})
config = resolve(config, rows.rows)
"""

from __future__ import annotations

import os
import random
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from reward_kit.agent.base.text import cut
from reward_kit.agent.bundles.task import NO_TICKET, SOLO, rollout_seed, select_tasks
from reward_kit.agent.config import DEFAULTS, OPTIONS, RESULTS_FILE, EvaluationConfig, flag_of
from reward_kit.agent.players.names import NO_USER, name_of, user_of, uses_model
from reward_kit.agent.rows.task_row import RowFaults, TaskRow
from reward_kit.agent.scoring.groups import values_at
from reward_kit.agent.store.layout import origin_of
from reward_kit.agent.store.results import EvaluationResult
from reward_kit.agent.store.resume import resumed_options
from reward_kit.errors import BundleError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from reward_kit.agent.base.types import Model, Role
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.evaluation.progress import Progress
    from reward_kit.agent.players.agents import Agent
    from reward_kit.agent.players.users import User

_Row = TypeVar("_Row", "Task", TaskRow)


class EvaluationOptions(TypedDict, total=False):
    """The keywords of ``evaluate``; ``EvaluationConfig`` says what each of the options means."""

    agent: str | Agent | Callable[..., Any] | None
    user: str | User | Callable[..., Any] | None
    models: Mapping[Role, Model | Callable[..., Any]] | None
    progress: Progress | bool | None
    task_dir: str | os.PathLike[str] | None
    task_ids: str | Iterable[str | int] | None
    start_index: int | None
    end_index: int | None
    filter: Mapping[str, Any]
    shuffle: bool
    max_tasks: int | None
    n_rollouts: int | None
    seed: int
    model: str | None
    provider: str | None
    temperature: float | None
    model_args: Mapping[str, Any]
    client: str
    prompt_cache: bool
    parallel_tool_calls: bool
    few_shot_displays: str | os.PathLike[str] | None
    fastworkflow_policy: str
    fastworkflow_workers: int
    skip_unplayable: bool
    mode: str | None
    no_sim_user: bool
    sim_model: str | None
    user_provider: str | None
    user_model_args: Mapping[str, Any]
    guard_user: bool
    retry_user_errors: int
    max_concurrency: int
    workers: int | Literal["auto"] | None
    worker_memory: int | None
    ray: str | None
    max_steps: int | None
    timeout: float | None
    retries: int
    max_cost: float | None
    max_tokens: int | None
    max_rollout_tokens: int | None
    max_rollout_cost: float | None
    call_timeout: float
    rpm: int | None
    tpm: int | None
    patience: float
    against: str | os.PathLike[str] | None
    until_decided: bool
    margin: float
    output_dir: str | os.PathLike[str]
    eval_id: str | None
    resume: str | EvaluationResult | None
    keep_db: str | None
    cache: bool
    clear_cache: bool
    explain: str | None
    errors_as_failures: bool
    branch_of: Mapping[str, Any]
    json: str | None
    format: str
    from_tau_bench: str | None
    fail_under: float | None
    validate_only: bool
    strict: bool
    quiet: bool
    debug: bool


def make_config(options: Mapping[str, Any]) -> EvaluationConfig:
    """Make the configuration; with ``resume`` (a name or a result), over the options of that evaluation."""
    resume = options.get("resume")
    if isinstance(resume, EvaluationResult):
        options = {"output_dir": str(resume.folder), **options, "resume": resume.eval_id}
    config = EvaluationConfig(**(resumed_options(options) if resume else options))
    if (name := options.get("eval_id")) not in (None, config.eval_id):
        fault = f"--eval-id {name} is not {config.eval_id}, which --resume continues"
        raise UsageError(fault, remedy=f"To continue {name}, write --resume {name}.")
    return config


def config_of(what: object, options: Mapping[str, Any]) -> EvaluationConfig:
    """The configuration that Python asks for: ``what`` itself, or that of a dataset with ``options``.

    Raises ``UsageError`` for anything else, and for options that only the command line acts on.
    """
    if isinstance(what, EvaluationConfig):
        for name in options:
            fault = f"{name}= cannot be given beside an EvaluationConfig"
            raise UsageError(fault, remedy=f"Set it there: EvaluationConfig({name}=...).")
        config = what
        if what.resume and not what.eval_id:
            stated = {name: getattr(what, name) for name in DEFAULTS}
            config = make_config({name: value for name, value in stated.items() if value != DEFAULTS[name]})
    elif what is None:
        config = make_config(options)
    elif isinstance(what, str | os.PathLike):
        config = make_config({**options, "dataset": os.fspath(what)})
    else:
        remedy = "Give the path of a dataset, with options beside it, or an EvaluationConfig."
        if isinstance(what, dict):
            remedy = "Give its entries as options: evaluate(**options)."
        raise UsageError(f"expected a dataset, got {cut(repr(what), 80)}", remedy=remedy)
    for name, option in OPTIONS.items():
        if option.scope == "command" and getattr(config, name) != DEFAULTS[name]:
            raise UsageError(f"{name} is for the command line; from Python {option.in_python}")
    return config


def new_name() -> str:
    """Make a name for an evaluation: the time and a random part."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def resolve(
    config: EvaluationConfig,
    rows: Sequence[TaskRow],
    *,
    players: Mapping[Role, Any],
    models: Mapping[Role, Model],
    against: str | None = None,
) -> EvaluationConfig:
    """The configuration of a run: with its name, its agent, and the models that the environment names.

    ``players`` and ``models`` are objects, whose names it gets; ``against`` is the path of the baseline.
    Raises ``UsageError`` if there is no agent, ``BundleError`` for rows that are not there.
    """
    known: dict[str, Any] = {role: name_of(one) for role, one in players.items()}
    known |= {"eval_id": config.eval_id or new_name(), "against": against}
    if (results := config.results_file) is not None:  # each trial is a rollout, and comes out the same
        recorded: dict[str, Any] = {"agent": RESULTS_FILE + results, "retries": 0, "retry_user_errors": 0}
        return replace(replace(config, **known), **recorded, n_rollouts=None)
    options: dict[Role, str] = {"agent": "model", "user": "sim_model"}
    known |= {options[role]: model.name for role, model in models.items()}
    agent = known.get("agent") or config.agent
    if not agent:
        if not (known.get("model") or config.or_environment("model")):
            remedy = "Name a model with --model or the environment variable MODEL_AGENT, "
            remedy += "or replay the ground truth offline with --agent gold."
            raise UsageError("no agent specified", remedy=remedy)
        known["agent"] = agent = "tool-calling"
    chosen = chosen_tasks(rows, config)
    if config.mode == SOLO:
        faults = RowFaults()
        for row in chosen:
            if row.ticket is None:
                faults.add(row, "ticket", NO_TICKET)
        faults.raise_if_any()
    asked = NO_USER if config.no_sim_user else known.get("user") or config.user
    if uses_model(agent):
        known.setdefault("model", config.or_environment("model"))
    if any(uses_model(name) for name in {user_of(row, agent, asked) for row in chosen}):
        known.setdefault("sim_model", config.or_environment("sim_model"))
    return replace(config, **known)


def chosen_tasks(tasks: Sequence[_Row], config: EvaluationConfig) -> list[_Row]:
    """The tasks (or rows) that the configuration selects, in the order in which they run.

    Shuffling comes before ``max_tasks``, so that both together draw a sample. Raises ``BundleError`` for
    unknown rows.
    """
    chosen = select_tasks(
        tasks,
        task_ids=config.task_ids,
        start_index=config.start_index,
        end_index=config.end_index,
        called=flag_of,
    )
    for field, value in config.filter.items():
        fields = [(one if isinstance(one, TaskRow) else one.row).reward_fields() for one in chosen]
        chosen = [one for one, has in zip(chosen, fields, strict=True) if value in values_at(has, field)]
    if not chosen:
        wanted = ", ".join(f"{field}={value}" for field, value in config.filter.items())
        raise BundleError(f"no row has {wanted}", place=flag_of("filter"))
    if config.shuffle:
        random.Random(config.seed).shuffle(chosen)  # noqa: S311 - an order that can be had again, not a secret
    return chosen[: config.max_tasks]


def seed_of(config: EvaluationConfig, row_id: str, index: int, attempt: int = 0) -> int:
    """The seed of one rollout of an evaluation; branches have others than their origin."""
    place = f"{row_id} {origin_of(config.branch_of)}" if config.branch_of else row_id
    return rollout_seed(config.seed, place, index, attempt)
