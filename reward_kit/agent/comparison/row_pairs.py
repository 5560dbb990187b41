"""Pair the comparable rows of two evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

from reward_kit.agent.scoring.rows import row_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.records.outcome import RolloutOutcome
    from reward_kit.agent.scoring.rows import RowResult
    from reward_kit.agent.storage.stored_evaluation import StoredEvaluation

CHANGED = "changed in between"
CONTENT = ("row", "seed")
"""Fingerprints of a row's content: its fields, and its seeded database."""


@dataclass(frozen=True, slots=True)
class RowPair:
    """A row with judged rollouts in both evaluations."""

    a: RowResult
    b: RowResult

    @property
    def row_id(self) -> str:
        return self.a.row_id

    @property
    def difference(self) -> float:
        """The success rate in B minus that in A."""
        return self.b.passed / self.b.judged - self.a.passed / self.a.judged

    @property
    def weaker(self) -> RowResult:
        """The side that failed more often."""
        return self.a if self.difference > 0 else self.b

    def failed_rollout(self) -> RolloutOutcome | None:
        """Return a failed rollout of the weaker side, of its most frequent failure class."""
        failed = [outcome for outcome in self.weaker.outcomes if outcome.judged and not outcome.success]
        counted = self.weaker.failures
        return max(failed, key=lambda outcome: counted[outcome.failure or ""], default=None)

    def to_json(self) -> dict[str, Any]:
        failed = self.failed_rollout() if self.difference else None
        a, b = (
            {"judged": row.judged, "successes": row.passed, "reward": row.reward, "failures": row.failures}
            for row in (self.a, self.b)
        )
        return {
            "id": self.row_id,
            "difference": self.difference,
            "a": a,
            "b": b,
            "failed_rollout": failed.id if failed else None,
        }


def pair_rows(
    a: StoredEvaluation, b: StoredEvaluation, *, changed_rows: bool, errors_as_failures: bool
) -> tuple[list[RowPair], dict[str, list[str]]]:
    """Return the row pairs in A's order, and the ids of other rows by the reason for leaving them out."""
    rows_a, rows_b = (
        {
            row.row_id: row_result(
                row.row_id, row.planned, row.outcomes, errors_as_failures=errors_as_failures
            )
            for row in one.rows
        }
        for one in (a, b)
    )
    changed = set() if changed_rows else set(changed_rows_between(a, b))
    pairs = []
    left_out: dict[str, list[str]] = {}
    for row_id in dict.fromkeys([*rows_a, *rows_b]):
        one, other = rows_a.get(row_id), rows_b.get(row_id)
        reason = CHANGED if row_id in changed else _reason(one, other)
        if reason is not None:
            left_out.setdefault(reason, []).append(row_id)
        elif one is not None and other is not None:
            pairs.append(RowPair(one, other))
    return pairs, left_out


def changed_rows_between(
    a: StoredEvaluation, b: StoredEvaluation, parts: Sequence[str] = CONTENT
) -> list[str]:
    """Return the rows of both evaluations that differ in ``parts`` of their fingerprints."""
    return [
        row_id
        for row_id, before in a.fingerprints.items()
        if (now := b.fingerprints.get(row_id)) is not None
        and any(before.get(part) != now.get(part) for part in parts)
    ]


def changed_fields(a: StoredEvaluation, b: StoredEvaluation, row_id: str) -> list[str]:
    """Return the names of a row's changed fields."""
    before, now = (one.fields_of(row_id) or {} for one in (a, b))
    return [name for name in {**before, **now} if name != "n_rollouts" and before.get(name) != now.get(name)]


def _reason(a: RowResult | None, b: RowResult | None) -> str | None:
    if a is None or b is None:
        return "only in A" if b is None else "only in B"
    for what, wanting in (
        ("not run", (not a.outcomes, not b.outcomes)),
        ("not judged", (not a.judged, not b.judged)),
    ):
        if any(wanting):
            return f"{what} in {' and '.join(compress('AB', wanting))}"
    return None
