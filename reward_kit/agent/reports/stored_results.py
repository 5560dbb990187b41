"""The results of an evaluation that was read back, with what its last run alone knew."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from reward_kit.agent.after.explainer import Explanations
    from reward_kit.agent.store.stored_evaluation import StoredEvaluation


def stored_result(stored: StoredEvaluation) -> StoredEvaluation:
    """The results of an evaluation that was read back; the rest is a note of its last run.

    Raises ``StorageError`` if that note is damaged.
    """
    from reward_kit.agent.comparison.replay import ReplayComparison
    from reward_kit.agent.scoring.sequential import Decision

    found = stored.results
    kinds: dict[str, type[Any]] = {"compared_with": ReplayComparison, "decision": Decision}
    if "agreement" in found:
        from reward_kit.agent.tau.results.agreement import Agreement

        kinds["agreement"] = Agreement
    try:
        parts: dict[str, Any] = {
            name: TypeAdapter(kind).validate_python(found[name])
            for name, kind in kinds.items()
            if name in found
        }
        if "explanations" in found:
            parts["explanations"] = _explanations(stored)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StorageError(f"holds damaged results: {error!r}", place=str(stored.path)) from error
    return replace(stored, **parts)


def _explanations(stored: StoredEvaluation) -> Explanations:
    """The judgements that the results count, from the notes that hold them whole."""
    from reward_kit.agent.after.explainer import Explanations, stored_explanations

    plain = stored.results["explanations"]
    known = {one.rollout: one for one in stored_explanations(stored.path) if one.model == plain["model"]}
    made = [known[one["id"]] for one in plain["rollouts"] if one["id"] in known]
    return Explanations(plain["model"], made, plain["missing"], plain["reason"])
