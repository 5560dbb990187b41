"""Checks of what a reward returned: a finite score, valid by its own account, that JSON can hold."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.strict_json import compact_json
from reward_kit.agent.base.text import cut
from reward_kit.errors import RewardError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeGuard

    from pydantic import ValidationError

    from reward_kit.models import EvaluateResult, RewardOutput

LONGEST_REASON = 300
"""Characters of why a score is not valid, in the error."""
EXPECTED = "expected an EvaluateResult, RewardOutput or a dict with 'score'"


def checked_result(result: Any, place: str) -> EvaluateResult | RewardOutput:
    """The result of the reward written at ``place``; raises ``RewardError`` if it is none."""
    from pydantic import ValidationError

    from reward_kit.models import EvaluateResult, RewardOutput

    if isinstance(result, dict):
        try:
            result = EvaluateResult.model_validate(result)
        except ValidationError as error:
            raise RewardError(result_fault(error), place=place) from None
    if not isinstance(result, EvaluateResult | RewardOutput):
        raise RewardError(f"returned {_shown(result)}, {EXPECTED}", place=place)
    score: Any = result.score
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise RewardError(f"returned the score {_shown(score)}, not a finite number", place=place)
    result.score = float(score)
    for name, number in _further_numbers(result):
        if not math.isfinite(number):
            raise RewardError(
                f"returned {name} of {number}, not a finite number",
                place=place,
                remedy="Leave it out where there is none: means are over the rollouts that have it.",
            )
    if isinstance(result, EvaluateResult) and (result.error or not result.is_score_valid):
        why = " ".join((result.error or result.reason or "").split())
        reason = f": {cut(why, LONGEST_REASON)}" if why else ""
        raise RewardError(f"says that its score is not valid{reason}", place=place)
    try:
        compact_json(result.to_dict() if isinstance(result, RewardOutput) else result.model_dump())
    except (TypeError, ValueError, RecursionError) as error:
        fault = f"returned a result that cannot be written as JSON: {type(error).__name__}: {error}"
        raise RewardError(fault, place=place) from None
    return result


def _further_numbers(result: EvaluateResult | RewardOutput) -> Iterator[tuple[str, float]]:
    for name, metric in result.metrics.items():
        yield f"the metric {name!r}", metric.score
    for step in getattr(result, "step_outputs", None) or ():
        yield f"the base_reward of step {step.step_index!r}", step.base_reward


def is_result_error(error: BaseException | None) -> TypeGuard[ValidationError]:
    """True if a result failed its checks: ``reward_function`` raises a ``ValueError`` over it."""
    from pydantic import ValidationError

    return isinstance(error, ValidationError) and error.title == "EvaluateResult"


def result_fault(error: ValidationError) -> str:
    """One line on the faults of a result, or of its fields."""
    faults = []
    for fault in error.errors(include_url=False, include_context=False):
        field = ".".join(map(str, fault["loc"]))
        if not field or (field == "score" and fault["type"] == "missing"):
            return f"returned {_shown(fault['input'])}, {EXPECTED}"
        if fault["type"] == "missing":
            faults.append(f"{field!r} is missing")
        else:
            faults.append(f"{field!r} is {_shown(fault['input'])}: {fault['msg']}")
    return f"returned a dict that is no result: {'; '.join(faults)}"


def _shown(value: Any) -> str:
    return "None" if value is None else f"{cut(repr(value), 80)} ({type(value).__name__})"
