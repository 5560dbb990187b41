"""The gate for pull requests: for a terminal or a pipe, and as a Markdown comment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.base.text import count, one_line
from reward_kit.agent.comparison.compare import different_settings
from reward_kit.agent.comparison.gate import reasons
from reward_kit.agent.reports.comparison import SHOWN_ROWS
from reward_kit.agent.reports.facts import failed_rollout_facts
from reward_kit.agent.reports.tables import LONGEST_VALUE, code, markdown_table_lines
from reward_kit.agent.scoring.metrics import average

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.comparison.gate import Gate
    from reward_kit.agent.comparison.measures import RowPair

LONGEST_CELL = 120
"""Characters of a fact in a cell of the comment."""


def gate_lines(gate: Gate) -> Iterator[str]:
    """The decision, the rows that are certainly worse, and what was not compared or not the same."""
    yield str(gate.decision)
    if gate.lost:
        yield f"certainly worse, although they always succeeded in the baseline: {', '.join(gate.lost)}"
    if gate.stored.status != "complete":
        yield f"the evaluation is not complete ({gate.stored.status}: {one_line(gate.stored.reason or '')})"
    if gate.left_out:
        yield f"not compared: {reasons(gate.left_out)}"
    for setting in different_settings(gate.baseline, gate.stored):
        yield one_line(f"different: {setting.name} was {setting.a}, is {setting.b}", LONGEST_VALUE)


def comment_lines(gate: Gate) -> Iterator[str]:
    """A Markdown comment: the verdict, Pass^1 before and after, and the rows that got worse."""
    title = {0: "Better or equal", 1: "Worse", 3: "Cannot tell"}[gate.exit_code]
    name = gate.stored.eval_id
    yield f"### {title}: {code(name)} against {code(gate.baseline.eval_id)}\n"
    if gate.decision.difference is not None:
        before = average([pair.a.passed / pair.a.n_scored for pair in gate.pairs])
        yield f"**Pass^1 {before:.3f} → {before + gate.decision.difference:.3f}**\n"
    yield from (f"- {code(line)}" for line in gate_lines(gate))
    worse = [pair for pair in gate.pairs if pair.difference < 0]
    if worse and gate.exit_code:  # beside a better or equal result, it is chance
        yield f"\n{count(len(worse), 'row')} succeeded less often, flaky ones last:\n"
        worse.sort(
            key=lambda pair: (pair.row_id not in gate.lost, pair.a.passed < pair.a.n_scored, pair.difference)
        )
        cells = (_gated_cells(gate, pair) for pair in worse[:SHOWN_ROWS])
        yield from markdown_table_lines([("row", "before", "now", "", "a failed rollout"), *cells])
        more = f"and {len(worse) - SHOWN_ROWS} more. " if len(worse) > SHOWN_ROWS else ""
        yield f'\n{more}To read a rollout: `reward-kit show "{name} ROW#N"`'


def _gated_cells(gate: Gate, pair: RowPair) -> tuple[str, ...]:
    kind = "certain" if pair.row_id in gate.lost else "flaky" if pair.a.passed < pair.a.n_scored else ""
    failed = pair.failed_rollout()
    facts = failed_rollout_facts(gate.stored, failed) if failed is not None else ()
    trouble = "<br>".join(code(f"{fact.strip()}: {text}", LONGEST_CELL) for fact, text in facts)
    passed = (f"{one.passed}/{one.n_scored}" for one in (pair.a, pair.b))
    return (code(pair.row_id), *passed, kind, trouble)
