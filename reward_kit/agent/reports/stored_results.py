"""The results of an evaluation, counted up from its store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.scoring.results import EvaluationResult
from reward_kit.agent.storage.stored_evaluation import read_notes
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from reward_kit.agent.comparison.replay import ReplayComparison
    from reward_kit.agent.explain.explanation import Explanations
    from reward_kit.agent.storage.stored_evaluation import StoredEvaluation
    from reward_kit.agent.tau_bench.replay import Agreement


def result_of(
    stored: StoredEvaluation,
    *,
    agreement: Agreement | None = None,
    explanations: Explanations | None = None,
    compared_with: ReplayComparison | None = None,
) -> EvaluationResult:
    """The results of an evaluation, with what only the run that has just ended knows."""
    return EvaluationResult(
        eval_id=stored.eval_id,
        status=stored.status,
        reason=stored.reason,
        configuration={"errors_as_failures": False, "model": None, **stored.configuration},
        versions=stored.versions,
        rows=stored.rows,
        usage=stored.usage,
        broken_off=stored.broken_off,
        seconds=stored.seconds,
        folder=stored.folder,
        agreement=agreement,
        explanations=explanations,
        compared_with=compared_with,
    )


def stored_result(stored: StoredEvaluation) -> EvaluationResult:
    """The results of an evaluation that was read back; the rest is a note of its last run.

    Raises ``StorageError`` if that note is damaged.
    """
    results = stored.results
    agreement: Agreement | None = None
    compared: ReplayComparison | None = None
    try:
        if "agreement" in results:
            from pydantic import TypeAdapter

            from reward_kit.agent.tau_bench.replay import Agreement

            agreement = TypeAdapter(Agreement).validate_python(results["agreement"])
        if "compared_with" in results:
            from pydantic import TypeAdapter

            from reward_kit.agent.comparison.replay import ReplayComparison

            compared = TypeAdapter(ReplayComparison).validate_python(results["compared_with"])
        explanations = _explanations(stored) if "explanations" in results else None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StorageError(f"holds damaged results: {error!r}", place=str(stored.path)) from error
    return result_of(stored, agreement=agreement, explanations=explanations, compared_with=compared)


def _explanations(stored: StoredEvaluation) -> Explanations:
    """The judgements that the results count, from the notes that hold them whole."""
    from reward_kit.agent.explain.explanation import Explanation, Explanations

    plain = stored.results["explanations"]
    notes = map(Explanation.from_json, read_notes(stored.path, "explanation"))
    known = {one.rollout: one for one in notes if one.model == plain["model"]}
    made = [known[one["id"]] for one in plain["rollouts"] if one["id"] in known]
    return Explanations(plain["model"], made, plain["missing"], plain["reason"], stored.path)
