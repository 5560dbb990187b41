"""The options of an evaluation as Python gives them, and the configuration made of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from reward_kit.agent.base.text import cut
from reward_kit.agent.config import DEFAULTS, OPTIONS, EvaluationConfig
from reward_kit.agent.store.results import EvaluationResult
from reward_kit.agent.store.resume import resumed_options
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class EvaluationOptions(TypedDict, total=False):
    """The keyword options of ``evaluate``; ``EvaluationConfig`` says what each one means."""

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
    json: str | None
    format: str
    from_tau_bench: str | None
    fail_under: float | None
    validate_only: bool
    strict: bool
    quiet: bool
    debug: bool


def make_config(options: Mapping[str, Any]) -> EvaluationConfig:
    """Make the configuration; with ``resume``, over the options stored with that evaluation.

    ``resume`` may be the result of the evaluation to continue, which knows its folder.
    """
    options = dict(options)
    resume = options.get("resume")
    if isinstance(resume, EvaluationResult):
        options = {"output_dir": str(resume.folder), **options, "resume": resume.eval_id}
    if resume:
        options = resumed_options(options)
    return EvaluationConfig(**options)


def config_of(what: object, options: Mapping[str, Any]) -> EvaluationConfig:
    """The configuration that Python asks for: ``what`` itself, or that of a dataset with ``options``.

    Raises ``UsageError`` for anything else, and for options that only the command line acts on.
    """
    if isinstance(what, EvaluationConfig):
        if options:
            name = next(iter(options))
            raise UsageError(
                f"{name}= cannot be given beside an EvaluationConfig",
                remedy=f"Set it there: EvaluationConfig({name}=...).",
            )
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
