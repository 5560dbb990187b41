"""Which rows of two evaluations can be compared, and why the others cannot."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.results import row_result
from reward_kit.agent.runs.row_fields import row_fields
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.results import RowResult
    from reward_kit.agent.runs.stored_evaluation import StoredEvaluation

CHANGED = "changed in between"
CONTENT = ("row", "seed")
"""Fingerprints of what a row is: its fields, and the database that it begins with."""


@dataclass(frozen=True, slots=True)
class RowPair:
    """A row that both evaluations have judged rollouts of."""

    a: RowResult
    b: RowResult

    @property
    def row_id(self) -> str:
        return self.a.row_id

    @property
    def difference(self) -> float:
        """The success rate in B minus that in A."""
        return (self.b.c * self.a.n - self.a.c * self.b.n) / (self.a.n * self.b.n)

    @property
    def telling(self) -> RowResult:
        """The one of the two that failed more often: what went wrong is to be seen there."""
        return self.a if self.difference > 0 else self.b

    def failed_rollout(self) -> RolloutOutcome | None:
        """A failed rollout of ``telling``, of the most frequent class; None where none was judged."""
        failed = [outcome for outcome in self.telling.outcomes if outcome.judged and not outcome.success]
        counted = self.telling.failures
        return max(failed, key=lambda outcome: counted[outcome.failure or ""], default=None)

    def to_json(self) -> dict[str, Any]:
        failed = self.failed_rollout() if self.difference else None
        return {
            "id": self.row_id,
            "difference": self.difference,
            **{
                side: {"judged": row.n, "successes": row.c, "reward": row.reward, "failures": row.failures}
                for side, row in (("a", self.a), ("b", self.b))
            },
            "failed_rollout": failed.file if failed else None,
        }


def pair_rows(
    a: StoredEvaluation, b: StoredEvaluation, *, changed_rows: bool, errors_as_failures: bool
) -> tuple[list[RowPair], dict[str, list[str]]]:
    """The rows to compare, in A's order, and the ids of the others by the reason that leaves them out."""
    rows_a, rows_b = (_counted(one.rows, errors_as_failures=errors_as_failures) for one in (a, b))
    changed = set() if changed_rows else set(changed_between(a, b))
    pairs = []
    left_out: dict[str, list[str]] = {}
    for row_id in dict.fromkeys([*rows_a, *rows_b]):
        one, other = rows_a.get(row_id), rows_b.get(row_id)
        reason = _reason(one, other) if row_id not in changed else CHANGED
        if one is not None and other is not None and reason is None:
            pairs.append(RowPair(one, other))
        elif reason is not None:
            left_out.setdefault(reason, []).append(row_id)
    return pairs, left_out


def changed_between(a: StoredEvaluation, b: StoredEvaluation) -> list[str]:
    """The rows that are not what they were; unknown, so none, where one of the two has no log."""
    return [row_id for row_id in a.fingerprints if _differ(a, b, row_id, CONTENT)]


def changed_tools(a: StoredEvaluation, b: StoredEvaluation) -> list[str]:
    """The rows whose tools have other names, descriptions or parameters."""
    return [row_id for row_id in a.fingerprints if _differ(a, b, row_id, ("tools",))]


def changed_seed(a: StoredEvaluation, b: StoredEvaluation, row_id: str) -> bool:
    """Whether a row's seed is not what it was."""
    return _differ(a, b, row_id, ("seed",))


def changed_fields(a: StoredEvaluation, b: StoredEvaluation, row_id: str) -> list[str]:
    """The fields of a row that are not what they were, as far as trajectories tell."""
    before, now = (_fields(one, row_id) for one in (a, b))
    if before is None or now is None:
        return []
    return [
        name
        for name in dict.fromkeys([*before, *now])
        if name != "n_rollouts" and before.get(name) != now.get(name)
    ]


def _counted(rows: Sequence[RowResult], *, errors_as_failures: bool) -> dict[str, RowResult]:
    return {
        row.row_id: row_result(row.row_id, row.planned, row.outcomes, errors_as_failures=errors_as_failures)
        for row in rows
    }


def _reason(a: RowResult | None, b: RowResult | None) -> str | None:
    """Why a row is not compared; None if it is."""
    if a is None or b is None:
        return "only in A" if b is None else "only in B"
    for what, wanting in (
        ("not run", [not row.outcomes for row in (a, b)]),
        ("not judged", [row.n == 0 for row in (a, b)]),
    ):
        if any(wanting):
            sides = " and ".join(side for side, wants in zip("AB", wanting, strict=True) if wants)
            return f"{what} in {sides}"
    return None


def _differ(a: StoredEvaluation, b: StoredEvaluation, row_id: str, parts: Sequence[str]) -> bool:
    before, now = a.fingerprints[row_id], b.fingerprints.get(row_id)
    return now is not None and any(before.get(part) != now.get(part) for part in parts)


def _fields(stored: StoredEvaluation, row_id: str) -> Mapping[str, Any] | None:
    """A row's fields as its rollouts got them, as far as one of them can be read."""
    with suppress(StorageError):
        return next((row_fields(row, stored.folder) for row in stored.rows if row.row_id == row_id), None)
    return None
