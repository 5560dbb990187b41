"""The results of a stored evaluation as they were when it ended, so that it can be reported again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reward_kit.agent.averages import averages_of
from reward_kit.agent.explain import Explanation, Explanations
from reward_kit.agent.results import EvaluationResult, passes_of
from reward_kit.agent.runs.comparison import CallDifference, Comparison, RolloutDifference
from reward_kit.agent.runs.resume import EXPLANATIONS
from reward_kit.agent.tau_bench.agreement import Agreement, Disagreement
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from reward_kit.agent.runs.stored_evaluation import StoredEvaluation


def stored_result(stored: StoredEvaluation) -> EvaluationResult:
    """Count it up again; what only the results file tells comes from there.

    Raises ``StorageError`` where that file is incomplete.
    """
    seed = stored.configuration.get("seed", 0)
    results = stored.results
    try:
        return EvaluationResult(
            eval_id=stored.eval_id,
            status=stored.status,
            reason=stored.reason,
            configuration={"errors_as_failures": False, "model": None, **stored.configuration},
            versions=stored.versions,
            rows=stored.rows,
            passes=passes_of(stored.rows, seed=seed),
            averages=averages_of(stored.rows, seed=seed),
            usage=stored.usage,
            broken_off=stored.broken_off,
            seconds=stored.seconds,
            folder=stored.folder,
            agreement=_agreement(results["agreement"]) if "agreement" in results else None,
            explanations=_explanations(stored) if "explanations" in results else None,
            compared_with=_compared(results["compared_with"]) if "compared_with" in results else None,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        place = str(stored.path.with_suffix(".json"))
        raise StorageError(f"is not the results of an evaluation: {error!r}", place=place) from error


def _agreement(plain: Mapping[str, Any]) -> Agreement:
    return Agreement(
        compared=plain["compared"],
        disagreements=tuple(Disagreement(**one) for one in plain["disagreements"]),
        pass_power={int(k): value for k, value in plain["pass_power"].items()},
        tool_results=plain["tool_results"],
        different_results=tuple(plain["different_results"]),
    )


def _compared(plain: Mapping[str, Any]) -> Comparison:
    differences = (
        RolloutDifference(**{**one, "call": CallDifference(**one["call"]) if one["call"] else None})
        for one in plain["differences"]
    )
    return Comparison(plain["source"], plain["compared"], tuple(differences), plain["untold"])


def _explanations(stored: StoredEvaluation) -> Explanations:
    """The judgements that the results count, from the file that holds them whole."""
    plain = stored.results["explanations"]
    path = stored.folder / "evals" / f"{stored.eval_id}{EXPLANATIONS}.jsonl"
    known = {one.rollout: one for one in _read_explanations(path) if one.model == plain["model"]}
    made = [known[one["id"]] for one in plain["rollouts"] if one["id"] in known]
    return Explanations(plain["model"], made, plain["missing"], plain["reason"], path)


def _read_explanations(path: Path) -> list[Explanation]:
    """The whole lines of the file, none if it is missing."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        return []
    return [Explanation.from_json(json.loads(line)) for line in lines if line.endswith(b"\n")]
