"""What an evaluation is asked for with, from the command line or Python, as one configuration."""

from __future__ import annotations

import os
from typing import Any

from reward_kit.agent.cut_text import cut
from reward_kit.agent.evaluation_config import DEFAULTS, EvaluationConfig
from reward_kit.agent.results import EvaluationResult
from reward_kit.agent.runs.resume import resumed_options
from reward_kit.errors import UsageError

LONGEST_SHOWN = 80
"""Characters of a wrong value that an error shows."""
_EITHER = "Give the path of a dataset, with options beside it, or an EvaluationConfig."


def make_config(options: dict[str, Any]) -> EvaluationConfig:
    """The configuration from the given options; with ``resume``, over those stored with the evaluation.

    ``resume`` may be the result of the evaluation that is to go on: it is looked for where that lies.
    """
    resume = options.get("resume")
    if isinstance(resume, EvaluationResult):
        options = {"output_dir": str(resume.folder), **options, "resume": resume.eval_id}
    if resume:
        options = resumed_options(options)
    return EvaluationConfig(**options)


def config_of(what: object, options: dict[str, Any]) -> EvaluationConfig:
    """The configuration of an evaluation from Python: ``what`` itself, or of a dataset with options.

    Raises ``UsageError`` for anything else, and for what the command line alone does: an evaluation would
    cost money instead.
    """
    config = _given(what, options) if isinstance(what, EvaluationConfig) else _asked(what, options)
    _check_heeded(config)
    return config


def _given(config: EvaluationConfig, options: dict[str, Any]) -> EvaluationConfig:
    if options:
        name = next(iter(options))
        raise UsageError(
            f"{name}= does not go beside an EvaluationConfig",
            remedy=f"Say it there: EvaluationConfig({name}=...).",
        )
    if config.resume and not config.eval_id:
        stated = {name: getattr(config, name) for name in DEFAULTS}
        return make_config({name: value for name, value in stated.items() if value != DEFAULTS[name]})
    return config


def _asked(dataset: object, options: dict[str, Any]) -> EvaluationConfig:
    if isinstance(dataset, str | os.PathLike):
        options = {**options, "dataset": os.fspath(dataset)}
    elif dataset is not None:
        remedy = "Give its entries as options: agent_eval(**options)." if isinstance(dataset, dict) else None
        raise UsageError(
            f"an evaluation is of a dataset, not of {cut(repr(dataset), LONGEST_SHOWN)}",
            remedy=remedy or _EITHER,
        )
    return make_config(options)


def _check_heeded(config: EvaluationConfig) -> None:
    for name, instead in (
        ("validate_only", "reward_kit.agent.validate(bundle) checks a bundle"),
        ("json", "the result has to_json()"),
        ("fail_under", "the result has pass_power"),
        ("format", "the result has to_json(); agent-eval --resume ID --format tau-bench writes the other"),
    ):
        if getattr(config, name) != DEFAULTS[name]:
            raise UsageError(f"{name} is for the command line; from Python {instead}")
