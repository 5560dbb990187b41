"""Differences of evaluations: ``compare`` measures them, ``plan`` says how small a one can be shown."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from reward_kit.agent.base.files import TO_OUTPUT, write_output
from reward_kit.agent.base.printing import print_lines, terminal_width
from reward_kit.agent.base.text import count
from reward_kit.cli.options import Range, command, file_option, print_report, runs_option
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reward_kit.agent.scoring.sequential import RowRates

ROWS, ROLLOUTS, SPREAD = (10, 30, 100, 300), (1, 2, 4, 8, 16), 0.3
"""Defaults of ``plan``; the numbers of rows without an evaluation."""
SHARE, POWER = Range(0, 1), Range(0.5, 0.999)


@command("compare")
@click.argument("evaluations", metavar="A [B]...", nargs=-1)
@runs_option
@click.option(
    "--gate", is_flag=True, help="Judge B (default: latest) by A: exit 0, 1 (worse) or 3 (unclear)."
)
@click.option(
    "--margin",
    type=Range(0, 100),
    metavar="POINTS",
    help="With --gate: a difference that does not matter. Default: that of the evaluation, 5.",
)
@file_option("--json", help="Write numbers and all rows as JSON.")
@file_option("--markdown", help="Write a table to share and the verdicts; with --gate, a comment.")
@click.option("--changed-rows", is_flag=True, help="Also compare rows whose fields or seed have changed.")
@click.option("--fail-if-worse", is_flag=True, hidden=True)
@click.option("--baseline", hidden=True)
@click.option("--eval", "judged", hidden=True)
def compare(
    evaluations: tuple[str, ...],
    gate: bool,
    margin: float | None,
    json_path: str | None,
    markdown_path: str | None,
    output_dir: str,
    **options: Any,
) -> int:
    """Compare evaluations: which is better, or is it noise?

    \b
      reward-kit compare main candidate
      reward-kit compare baseline.json latest --gate --markdown comment.md

    A, B … are names of evaluations (latest: the last), or paths of their files or cards. Each is compared
    with A; branches, which may be named alone, with the rollout that they continue from. A difference has two
    95 % intervals: for these tasks, where only the rollouts are random, and for tasks like these, where the
    rows are a sample as well.

    With --gate, the exit code is 0 for better or equal (within the margin), 1 for worse, 3 if it cannot be
    told. An evaluation card in the repository serves as the baseline: export A --format card --out FILE.
    """
    from reward_kit.agent.comparison import compare as comparing
    from reward_kit.agent.comparison.gate import judge
    from reward_kit.agent.reports import comparison as reports
    from reward_kit.agent.store.layout import load_evaluation

    names = [name for name in (options["baseline"], *evaluations, options["judged"]) if name is not None]
    changed_rows, to_stderr = options["changed_rows"], TO_OUTPUT in (json_path, markdown_path)
    lines: Iterable[str]
    if gate:
        if len(names) > 2 or not names or changed_rows:
            raise click.UsageError("--gate takes the baseline and one evaluation.")
        stored = load_evaluation([*names, "latest"][1], output_dir)  # a card has neither rounds nor margin
        verdict = judge(comparing.load(names[0], output_dir), stored, margin=margin)
        to_json, code = verdict.to_json, verdict.exit_code
        lines, markdown = reports.gate_lines(verdict), reports.comment_lines(verdict)
    else:
        first, *others = names or [""]
        if not others:
            others, first = [first], _origin(first, output_dir)
        if margin is not None:
            raise click.UsageError("--margin goes with --gate.")
        how: dict[str, Any] = {"output_dir": output_dir, "changed_rows": changed_rows}
        width = terminal_width(sys.stderr if to_stderr else sys.stdout)
        if len(others) == 1:
            several = [comparing.compare(first, *others, **how)]
        else:
            found = comparing.compare_with(first, others, **how)
            several = [*found.comparisons]
        if len(several) == 1:
            to_json, lines = several[0].to_json, reports.comparison_lines(several[0], width)
        else:
            to_json, lines = found.to_json, reports.baseline_lines(found, width)
        lines = [] if markdown_path == TO_OUTPUT else lines
        markdown = reports.markdown_lines(several)
        worse = any(one.success.verdicts.these_tasks == "worse" for one in several)
        code = int(options["fail_if_worse"] and worse)
    print_lines(lines, err=to_stderr)
    print_report([], to_json, json_path)
    if markdown_path is not None:
        stream = sys.stderr.buffer if json_path == TO_OUTPUT else None
        write_output(["".join(f"{line}\n" for line in markdown).encode()], markdown_path, stream)
    return code


compare.renamed = {"--write-baseline": "reward-kit export EVALUATION --format card --out FILE"}


def _origin(name: str, output_dir: str) -> str:
    """The file of the evaluation whose rollout those of ``name`` are branches of."""
    from reward_kit.agent.comparison.compare import load
    from reward_kit.agent.store.layout import origin_of

    if name:
        stored = load(name, output_dir)
        if (origin := origin_of(stored.configuration.get("branch_of"))) is not None:
            return str(origin.file(stored.log_path.parent))
    raise click.UsageError("Name the evaluations to compare: two or more.")


def _numbers(_context: click.Context, _option: click.Parameter, value: str | None) -> list[int] | None:
    parts = value.split(",") if value is not None else []
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise click.BadParameter(f"{value!r} is not a list of whole numbers from 1, such as 10,30,100")
    return sorted({int(part) for part in parts}) or None


@command("plan")
@click.argument("evaluations", metavar="[EVAL [EVAL]]", nargs=-1)
@runs_option
@click.option("--rate", type=SHARE, metavar="M", help="Assume this mean of the rows' rates, without EVAL.")
@click.option(
    "--spread", type=SHARE, metavar="S", help="With --rate: the rates' standard deviation. Default: 0.3."
)
@click.option(
    "--correlation",
    type=SHARE,
    metavar="R",
    help="The correlation of two agents' rates of the rows. Default: 0.8.",
)
@click.option(
    "--n-rows",
    "rows",
    callback=_numbers,
    metavar="N,N",
    help="Numbers of rows. Default: as many as EVAL has, half, twice ...",
)
@click.option(
    "--n-rollouts",
    "--rollouts",
    "rollouts",
    callback=_numbers,
    metavar="K,K",
    help="Numbers of rollouts of each row. Default: 1,2,4,8,16.",
)
@click.option("--power", type=POWER, metavar="P", default=0.8, help="The chance to show it. Default: 0.8.")
@file_option("--json", help="Write the table as JSON.")
def plan(evaluations: tuple[str, ...], json_path: str | None, **options: Any) -> None:
    """Say how small a difference your rows can show.

    The first table is for these tasks: only the rollouts are random. The second is for tasks like these: the
    rows are a sample, too. The third has the smallest --margin within which a gate can show that an agent is
    no worse. The rates of rows come from EVAL, or are assumed (--rate). A second evaluation shows how much
    the rates of two agents correlate.
    """
    from reward_kit.agent.base.encoding import as_json
    from reward_kit.agent.base.printing import table_lines
    from reward_kit.agent.reports.comparison import QUESTIONS

    rates, rows, source = _rates(evaluations, **options)
    if options["correlation"] is not None:
        rates = replace(rates, correlation=options["correlation"])
    facts = f"Pass^1 {rates.mean:.3f}, standard deviation of rows {rates.spread:.3f}"
    rows, rollouts, power = options["rows"] or rows, options["rollouts"] or ROLLOUTS, options["power"]
    table = {
        (n, k): (*rates.smallest_difference(n, k, power), rates.smallest_margin(n, k, power))
        for n in rows
        for k in rollouts
    }
    title = f"Smallest difference of Pass^1, in points, that is shown with power {100 * power:g} %"
    lines = [f"{source}: {facts}, correlation {rates.correlation:.2f}", f"{title}, by rollouts of each row"]
    for at, question in enumerate((*QUESTIONS, "no difference: --margin")):
        cells = [[question, *map(str, rollouts)]]
        for n in rows:
            sizes = [100 * (table[n, k][at] or 0.0) for k in rollouts]
            cells.append([count(n, "row"), *(f"{one:.1f}" if 0 < one <= 100 else "-" for one in sizes)])
        lines += ["", *table_lines(cells, right=range(1, len(cells[0])))]
    names = ("rows", "rollouts", "these_tasks", "tasks_like_these", "margin")
    designs = [dict(zip(names, (*size, *found), strict=True)) for size, found in table.items()]
    print_report(lines, lambda: {**as_json(rates), "power": power, "designs": designs}, json_path)


plan.renamed = {"--rows": "--n-rows"}


def _rates(
    names: tuple[str, ...], output_dir: str, rate: float | None, spread: float | None, **_: Any
) -> tuple[RowRates, Sequence[int], str]:
    """The rates, numbers of rows to plan for, and their source."""
    from reward_kit.agent.comparison.compare import compare
    from reward_kit.agent.scoring.sequential import RowRates, row_rates
    from reward_kit.agent.store.layout import load_evaluation

    if (rate is None) != bool(names) or len(names) > 2 or (names and spread is not None):
        raise click.UsageError("Name one evaluation or two, or give --rate, and --spread with it.")
    if rate is not None:
        most = math.sqrt(rate * (1 - rate))
        if spread is not None and spread > most:
            raise UsageError(f"--spread {spread:g} is too large: with --rate {rate:g} at most {most:.3f}")
        return RowRates(rate, min(SPREAD, most) if spread is None else spread), ROWS, "assumed"
    if len(names) == 2:
        pairs = compare(*names, output_dir=output_dir).rows
        sides = [[(one.a.n, one.a.c) for one in pairs], [(one.b.n, one.b.c) for one in pairs]]
    else:
        sides = [[(row.n, row.c) for row in load_evaluation(names[0], output_dir).rows if row.n]]
    found, number = row_rates(*sides), len(sides[0])
    if found is None:
        needed = "the spread of rows needs two judged rows, and two rollouts of a row"
        raise UsageError(f"{needed}, in {' and '.join(names)}", remedy="Give --rate and --spread instead.")
    around = sorted({max(number // 4, 2), max(number // 2, 2), number, 2 * number, 4 * number})
    return found, around, f"{' and '.join(names)}, {count(number, 'row')}"
