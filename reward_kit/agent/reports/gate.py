"""The gate for pull requests: an evaluation against a baseline, as a verdict and as a Markdown comment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reward_kit.agent.base.text import count, one_line
from reward_kit.agent.comparison.baseline import measured_by, reasons
from reward_kit.agent.reports.console import failed_rollout_facts
from reward_kit.agent.reports.tables import markdown_table_lines
from reward_kit.agent.scoring.metrics import average
from reward_kit.agent.scoring.sequential import ALPHA, chance_of_loss

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.comparison.baseline import Baseline
    from reward_kit.agent.comparison.measures import RowPair
    from reward_kit.agent.scoring.sequential import Decision
    from reward_kit.agent.store.stored_evaluation import StoredEvaluation

SHOWN_ROWS, SHOWN_DIFFERENCES, LONGEST = 10, 3, 300
"""Rows, differing values of each, and characters of a text in a comment."""


@dataclass(frozen=True, slots=True)
class Gate:
    """The judgement of ``stored``; ``pairs`` are the compared rows, ``left_out`` the others by reason.

    ``lost`` are the ids of rows that always succeeded in the baseline and are certainly worse now. Rows that
    failed at times are flaky: they count in ``decision`` alone.
    """

    baseline: Baseline
    stored: StoredEvaluation
    decision: Decision
    pairs: list[RowPair]
    left_out: dict[str, list[str]]
    lost: list[str]

    @property
    def exit_code(self) -> int:
        """0 better or equal, 1 worse, 3 undecided."""
        if self.lost or self.decision.verdict == "worse":
            return 1
        return 0 if self.decision.is_final else 3


def judge(baseline: Baseline, stored: StoredEvaluation) -> Gate:
    """Judge an evaluation by its own ``--margin``; raises ``UsageError`` if no row can be compared.

    A row is certainly worse if its results have a chance of at most 2.5 %, divided by the number of rows and
    looks, at any success rate; "worse" in the decision has another 2.5 %.
    """
    options = {"margin": 5, "until_decided": False, **stored.configuration}
    decision = baseline.decide(stored, margin=options["margin"], until_decided=options["until_decided"])
    found, left_out = baseline.pairs(stored)
    pairs = [pair for pair in found if pair.b.n_scored]
    tests = len(pairs) * (decision.rounds if options["until_decided"] else 1)
    steady = [(pair.a.n, pair.b, pair.row_id) for pair in pairs if pair.a.c == pair.a.n]
    lost = [row_id for n, b, row_id in steady if tests * chance_of_loss(n, b.n, b.c) <= ALPHA / 2]
    return Gate(baseline, stored, decision, pairs, left_out, lost)


def verdict_lines(gate: Gate) -> Iterator[str]:
    """The decision, the rows that are certainly worse, and what was not compared or not the same."""
    yield str(gate.decision)
    if gate.lost:
        yield f"certainly worse, although they always succeeded in the baseline: {', '.join(gate.lost)}"
    if gate.stored.status != "complete":
        yield f"the evaluation is not complete ({gate.stored.status}: {one_line(gate.stored.reason or '')})"
    if gate.left_out:
        yield f"not compared: {reasons(gate.left_out)}"
    before, now = gate.baseline.measured, measured_by(gate.stored)
    for name in sorted(before.keys() | now.keys()):
        if (one := before.get(name)) != (other := now.get(name)):
            yield one_line(f"different: {name} was {one!r}, is {other!r}", LONGEST)


def comment_lines(gate: Gate) -> Iterator[str]:
    """A Markdown comment: the verdict, Pass^1 before and after, and the rows that got worse."""
    title = {0: "Better or equal", 1: "Worse", 3: "Cannot tell"}[gate.exit_code]
    name = gate.stored.eval_id
    yield f"### {title}: {_code(name)} against {_code(gate.baseline.name)}\n"
    if gate.decision.difference is not None:
        before = average([pair.a.c / pair.a.n for pair in gate.pairs])
        yield f"**Pass^1 {before:.3f} → {before + gate.decision.difference:.3f}**\n"
    yield from (f"- {_code(line)}" for line in verdict_lines(gate))
    worse = [pair for pair in gate.pairs if pair.difference < 0]
    if worse:
        yield f"\n{count(len(worse), 'row')} succeeded less often, flaky ones last:\n"
        worse.sort(key=lambda pair: (pair.row_id not in gate.lost, pair.a.c < pair.a.n, pair.difference))
        cells = (_cells(gate, pair) for pair in worse[:SHOWN_ROWS])
        yield from markdown_table_lines([("row", "before", "now", "", "a failed rollout"), *cells])
        more = f"and {len(worse) - SHOWN_ROWS} more. " if len(worse) > SHOWN_ROWS else ""
        yield f'\n{more}To read a rollout: `reward-kit show "{name} ROW#N"`'


def _cells(gate: Gate, pair: RowPair) -> tuple[str, ...]:
    kind = "certain" if pair.row_id in gate.lost else "flaky" if pair.a.c < pair.a.n else ""
    failed = pair.failed_rollout()
    facts = failed_rollout_facts(gate.stored, failed, SHOWN_DIFFERENCES) if failed is not None else ()
    trouble = "<br>".join(_code(f"{fact.strip()}: {text}") for fact, text in facts)
    return _code(pair.row_id), f"{pair.a.c}/{pair.a.n}", f"{pair.b.c}/{pair.b.n}", kind, trouble


def _code(text: str) -> str:
    """Text of models and people, so that Markdown shows it as it is."""
    return f"`{one_line(text, LONGEST).replace('`', chr(39))}`"
