"""The gate for pull requests: better or equal, worse, or undecided against a baseline.

A baseline is an evaluation, or the card of one in the repository::

    gate = judge(load("baseline.json", "runs"), load_evaluation("pr"), margin=5)
    gate.exit_code, str(gate.decision)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from reward_kit.agent.comparison.measures import RowPair, changed_parts
from reward_kit.agent.scoring.sequential import ALPHA, Decision, RowProgress, chance_of_loss, decide
from reward_kit.agent.store.evaluation_file import reading
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reward_kit.agent.store.results import EvaluationResult

FORMAT = "reward-kit.gate/1"
SHOWN = 5  # rows that a list of reasons names
UNJUDGED = "not judged in the evaluation"
_PLANS = "SELECT row_id, iif(n_rollouts, ifnull(fields ->> 'n_rollouts', 1), 0) FROM rows"
"""SQL: the rollouts that each row asks for; 0 of one that the last run has left out."""


@dataclass(frozen=True, slots=True)
class Gate:
    """The judgement of ``stored``; ``pairs`` are the compared rows, ``left_out`` the others by reason.

    ``lost`` are the ids of rows that always succeeded in the baseline and are certainly worse now. Rows that
    failed at times are flaky: they count in ``decision`` alone. While a row is not judged, nothing shows that
    the evaluation is not worse.
    """

    baseline: EvaluationResult
    stored: EvaluationResult
    decision: Decision
    pairs: list[RowPair]
    left_out: Mapping[str, list[str]]
    lost: list[str]

    @property
    def exit_code(self) -> int:
        """0 better or equal, 1 worse, 3 undecided."""
        if self.lost or self.decision.verdict == "worse":
            return 1
        return 0 if self.decision.is_final and UNJUDGED not in self.left_out else 3

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "format": FORMAT,
            "baseline": self.baseline.eval_id,
            "evaluation": self.stored.eval_id,
            "exit_code": self.exit_code,
            "decision": self.decision.to_json(),
            "certainly_worse": self.lost,
            "left_out": self.left_out,
            "rows": [pair.to_json() for pair in self.pairs],
        }


def judge(baseline: EvaluationResult, stored: EvaluationResult, *, margin: float | None = None) -> Gate:
    """Judge an evaluation by ``margin`` (points), by default its own; errors as in ``decide_against``.

    A row is certainly worse if its results have a chance of at most 2.5 %, divided by the number of rows and
    looks, at any success rate; "worse" in the decision has another 2.5 %.
    """
    stopping = bool(stored.configuration.get("until_decided"))
    margin = stored.configuration.get("margin", 5) if margin is None else margin
    decision = decide_against(baseline, stored, margin=margin, until_decided=stopping)
    found, left_out = comparable(baseline, stored)
    pairs = [pair for pair in found if pair.b.n_scored]
    if unjudged := [pair.row_id for pair in found if not pair.b.n_scored]:
        left_out[UNJUDGED] = unjudged
    tests = len(pairs) * (decision.rounds if stopping else 1)
    steady = [(pair.a.n_scored, pair.b, pair.row_id) for pair in pairs if pair.a.passed == pair.a.n_scored]
    lost = [row for n, b, row in steady if tests * chance_of_loss(n, b.n_scored, b.passed) <= ALPHA / 2]
    return Gate(baseline, stored, decision, pairs, left_out, lost)


def decide_against(
    baseline: EvaluationResult, stored: EvaluationResult, *, margin: float, until_decided: bool
) -> Decision:
    """The decision on an evaluation, which may still run; see ``sequential`` for the options.

    Raises ``UsageError`` if no row can be compared.
    """
    strict, asked = _strict(baseline, stored), stored.configuration.get("n_rollouts")
    plans: dict[str, int] = {}
    if until_decided:
        with reading(stored.log_path) as connection:
            plans = dict(connection.execute(_PLANS))
    rows = []
    for pair in comparable(baseline, stored)[0]:
        results: list[bool | None] = [n < pair.b.passed for n in range(pair.b.n_scored)]
        most = len(results)
        if until_decided:
            results = []
            for outcome in pair.b.outcomes:
                if outcome.index != len(results):
                    break  # another rollout of an earlier round is still to come
                results.append(outcome.success if outcome.scored or strict else None)
            planned = plans.get(pair.row_id, 1)
            most = max(asked or planned, pair.b.planned) if planned else len(results)
        rows.append(RowProgress(pair.a.n_scored, pair.a.passed, results, most))
    return decide(rows, margin=margin, until_decided=until_decided, baseline=baseline.eval_id)


def comparable(
    baseline: EvaluationResult, stored: EvaluationResult
) -> tuple[list[RowPair], dict[str, list[str]]]:
    """The rows to compare, and the ids of others by reason, as ``left_out_of``."""
    strict = _strict(baseline, stored)
    baseline, stored = (
        replace(one, rows=tuple(row.recounted(errors_as_failures=strict) for row in one.rows))
        for one in (baseline, stored)
    )
    prints = {row.row_id: stored.fingerprints.get(row.row_id, {}) for row in stored.rows}
    left_out = left_out_of(baseline, prints, stored.eval_id)
    same = prints.keys() - {row_id for ids in left_out.values() for row_id in ids}
    before = {row.row_id: row for row in baseline.rows}
    return [RowPair(before[row.row_id], row) for row in stored.rows if row.row_id in same], left_out


def _strict(*evaluations: EvaluationResult) -> bool:
    """True if unjudged rollouts count as failed: both evaluations are configured so."""
    return all(one.configuration.get("errors_as_failures") for one in evaluations)


def left_out_of(
    baseline: EvaluationResult, prints: Mapping[str, Mapping[str, Any]], eval_id: str
) -> dict[str, list[str]]:
    """The ids of rows that cannot be compared with an evaluation's rows of these fingerprints, by reason.

    Raises ``UsageError`` if no row can be.
    """
    known = {row.row_id for row in baseline.rows if row.n_scored}
    found: dict[str, list[str]] = {}
    for row_id in (every := dict.fromkeys([*prints, *sorted(known)])):
        if row_id not in known:
            found.setdefault("not in the baseline", []).append(row_id)
        elif row_id not in prints:
            found.setdefault("only in the baseline", []).append(row_id)
        elif changed := changed_parts(baseline.fingerprints[row_id], prints[row_id]):
            found.setdefault(f"changed since the baseline ({' and '.join(changed)})", []).append(row_id)
    if sum(map(len, found.values())) == len(every):
        raise UsageError(
            f"no row can be compared: {reasons(found) or 'there are none'}",
            place=f"{baseline.eval_id} and {eval_id}",
            remedy="Write the baseline again: reward-kit export EVALUATION --format card --out FILE",
        )
    return found


def reasons(left_out: Mapping[str, list[str]]) -> str:
    """``2 changed since the baseline (seed): a, b; 1 only in the baseline: c``."""
    return "; ".join(
        f"{len(ids)} {reason}: {', '.join(ids[:SHOWN])}{', …' if len(ids) > SHOWN else ''}"
        for reason, ids in left_out.items()
    )
