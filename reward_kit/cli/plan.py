"""``reward-kit plan``: the smallest difference that numbers of rows and rollouts can show."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from reward_kit.agent.base.text import count
from reward_kit.cli.common_options import command, file_option, print_report, runs_option
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.scoring.plan import RowRates

ROWS, ROLLOUTS, SPREAD = (10, 30, 100, 300), (1, 2, 4, 8, 16), 0.3
"""Defaults; the numbers of rows without an evaluation."""
SHARE, POWER = click.FloatRange(0, 1), click.FloatRange(0.5, 0.999)


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
    from reward_kit.agent.reports.comparison import QUESTIONS
    from reward_kit.agent.reports.tables import table_lines

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
            sizes = [table[n, k][at] for k in rollouts]
            cells.append([count(n, "row"), *("-" if size is None else f"{100 * size:.1f}" for size in sizes)])
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
    from reward_kit.agent.scoring.plan import RowRates, row_rates
    from reward_kit.agent.store.stored_evaluation import load_evaluation

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
        what = (
            f"the spread of rows needs two judged rows, and two rollouts of a row, in {' and '.join(names)}"
        )
        raise UsageError(what, remedy="Give --rate and --spread instead.")
    around = sorted({max(number // 4, 2), max(number // 2, 2), number, 2 * number, 4 * number})
    return found, around, f"{' and '.join(names)}, {count(number, 'row')}"
