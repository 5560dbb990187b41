"""A baseline: the successes of each row of an evaluation, in a file small enough for a repository.

::

    {"format": "reward-kit.baseline/1", "evaluation": "main", "measured": {"agent": "react"},
     "totals": {"rows": 1, "rollouts": 8, "successes": 7},
     "rows": [{"id": "flight.1", "content": "0b7e…", "n": 8, "c": 7}]}

``measured`` holds the options that results depend on, ``content`` a fingerprint of the row's fields and seed;
``n`` counts judged rollouts, ``c`` successes. Rows are sorted by id and have a line each.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import cut
from reward_kit.agent.comparison.measures import CONTENT, RowPair
from reward_kit.agent.config import DEFAULTS, OPTIONS
from reward_kit.agent.scoring.rows import RowResult
from reward_kit.agent.scoring.sequential import Decision, RowProgress, decide
from reward_kit.agent.store.evaluation_file import read_fields
from reward_kit.agent.store.resume import fingerprint
from reward_kit.agent.store.stored_evaluation import load_evaluation
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from reward_kit.agent.store.stored_evaluation import StoredEvaluation

FORMAT = "reward-kit.baseline/1"
SHOWN, LONGEST = 5, 300
"""Rows that a list of reasons names, and characters of a fault."""
WRITE = "Write it: reward-kit gate --baseline FILE --write-baseline EVALUATION"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The rows of an evaluation by id, without their rollouts, and the fingerprint of each one's content.

    ``path`` is the file of the baseline or the evaluation.
    """

    name: str
    measured: Mapping[str, Any]
    rows: Mapping[str, RowResult]
    contents: Mapping[str, str]
    path: Path

    def to_json(self) -> dict[str, Any]:
        """The content of a baseline's file."""
        return {
            "format": FORMAT,
            "evaluation": self.name,
            "measured": dict(self.measured),
            "totals": _totals(self.rows.values()),
            "rows": [
                {"id": row_id, "content": self.contents[row_id], "n": row.n_scored, "c": row.passed}
                for row_id, row in sorted(self.rows.items())
            ],
        }

    def left_out(self, prints: Mapping[str, Mapping[str, Any]], eval_id: str) -> dict[str, list[str]]:
        """The ids of rows that cannot be compared with an evaluation's rows of these fingerprints, by reason.

        Raises ``UsageError`` if no row can be.
        """
        found: dict[str, list[str]] = {}
        for row_id in (every := dict.fromkeys([*prints, *self.rows])):
            if row_id not in self.rows:
                found.setdefault("not in the baseline", []).append(row_id)
            elif row_id not in prints:
                found.setdefault("only in the baseline", []).append(row_id)
            elif self.contents[row_id] != _content(prints[row_id]):
                found.setdefault("changed since the baseline", []).append(row_id)
        if sum(map(len, found.values())) == len(every):
            fault = f"no row can be compared: {reasons(found)}"
            raise UsageError(fault, place=f"{self.name} and {eval_id}")
        return found

    def pairs(self, stored: StoredEvaluation) -> tuple[list[RowPair], dict[str, list[str]]]:
        """The rows to compare, and the ids of others by reason, as ``left_out``."""
        prints = {row.row_id: stored.fingerprints.get(row.row_id, {}) for row in stored.rows}
        left_out = self.left_out(prints, stored.eval_id)
        same = prints.keys() - {row_id for ids in left_out.values() for row_id in ids}
        return [RowPair(self.rows[row.row_id], row) for row in stored.rows if row.row_id in same], left_out

    def decide(self, stored: StoredEvaluation, *, margin: float, until_decided: bool) -> Decision:
        """The decision on an evaluation, which may still run; see ``sequential`` for the options.

        Raises ``UsageError`` if no row can be compared.
        """
        strict = bool(stored.configuration.get("errors_as_failures"))
        asked = stored.configuration.get("n_rollouts")
        fields = read_fields(stored.path) if until_decided and not asked else {}
        rows = []
        for pair in self.pairs(stored)[0]:
            results: list[bool | None] = []
            for outcome in pair.b.outcomes:
                if until_decided and outcome.index != len(results):
                    break  # another rollout of an earlier round is still to come
                results.append(outcome.success if outcome.scored or strict else None)
            planned = asked or fields.get(pair.row_id, {}).get("n_rollouts", 1)
            most = max(planned, pair.b.planned) if until_decided else len(results)
            rows.append(RowProgress(pair.a.n_scored, pair.a.passed, results, most))
        return decide(rows, margin=margin, until_decided=until_decided, baseline=self.name)


def baseline_of(stored: StoredEvaluation) -> Baseline:
    """The baseline that an evaluation is; raises ``UsageError`` if nothing of it is judged."""
    rows = {
        row.row_id: replace(row, planned=row.n_scored, outcomes=()) for row in stored.rows if row.n_scored
    }
    if not rows:
        raise UsageError("none of its rollouts is judged", place=f"evaluation {stored.eval_id}")
    contents = {row_id: _content(stored.fingerprints[row_id]) for row_id in rows}
    return Baseline(stored.eval_id, measured_by(stored), rows, contents, stored.path.absolute())


def measured_by(stored: StoredEvaluation) -> dict[str, Any]:
    """The options that results depend on, as far as they are not the defaults."""
    options = {**stored.configuration, "model": stored.asked_model}
    fixed = {name: options.get(name, DEFAULTS[name]) for name, option in OPTIONS.items() if option.fixed}
    return {name: value for name, value in fixed.items() if value not in (DEFAULTS[name], {})}


def load_baseline(name: str | Path, output_dir: str | Path) -> Baseline:
    """The baseline in a file, or that an evaluation is.

    Raises ``UsageError`` if there is none, or for a file that is no baseline.
    """
    path = Path(name)
    if path.suffix != ".json" or path.with_suffix(".db").is_file():
        return baseline_of(load_evaluation(name, output_dir))
    place = str(path)
    try:
        return _parsed(json.loads(path.read_bytes()), path)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", place=place, remedy=WRITE) from error
    except json.JSONDecodeError as error:
        raise UsageError(f"is no JSON: {error.msg}", place=f"{place}:{error.lineno}", remedy=WRITE) from error
    except ValueError as error:
        raise UsageError(cut(str(error), LONGEST), place=place, remedy=WRITE) from error


def reasons(left_out: Mapping[str, list[str]]) -> str:
    """``2 changed since the baseline (a, b), 1 only in the baseline (c)``."""
    return ", ".join(
        f"{len(ids)} {reason} ({', '.join(ids[:SHOWN])}{', …' if len(ids) > SHOWN else ''})"
        for reason, ids in left_out.items()
    )


def _parsed(plain: Any, path: Path) -> Baseline:
    """The baseline that ``plain`` is; raises ``ValueError`` with the fault if it is none."""
    match plain:
        case {"format": "reward-kit.baseline/1", "evaluation": str(name), "measured": dict(measured)}:
            rows, totals = plain.get("rows"), plain.get("totals")
        case _:
            raise ValueError(f"is no baseline ({FORMAT})")
    known: dict[str, RowResult] = {}
    contents: dict[str, str] = {}
    for row in rows if isinstance(rows, list) else ():
        match row:
            case {"id": str(row_id), "content": str(content), "n": int(n), "c": int(c)} if (
                0 <= c <= n > 0 and row_id not in known
            ):
                known[row_id], contents[row_id] = RowResult(row_id, n, (), n, c), content
            case _:
                raise ValueError(f"expected a row with its own id, content, n > 0 and c <= n, got {row}")
    if totals != (counted := _totals(known.values())):
        raise ValueError(f"its totals are {totals}, those of its rows {counted}")
    return Baseline(name, measured, known, contents, path.resolve())


def _totals(rows: Collection[RowResult]) -> dict[str, int]:
    n, c = sum(row.n_scored for row in rows), sum(row.passed for row in rows)
    return {"rows": len(rows), "rollouts": n, "successes": c}


def _content(fingerprints: Mapping[str, Any]) -> str:
    return fingerprint([fingerprints.get(name) for name in CONTENT])
