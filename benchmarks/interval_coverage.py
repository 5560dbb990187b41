"""Coverage of the 95 % intervals, by simulation: the share of evaluations whose interval holds the truth.

    python benchmarks/interval_coverage.py [--evaluations 1000] [--seed 1]

Each evaluation draws the success rates of its rows from a beta distribution, then the rollouts. For *these
tasks* the truth is the mean of p^k over those rows, for *tasks like these* that over the whole distribution.
The second table is of two agents with the same row rates: the share whose interval of the difference holds
zero. A single row says nothing about tasks like it.
"""

from __future__ import annotations

import math
import random
from functools import cache
from typing import TYPE_CHECKING

import click

from reward_kit.agent.scoring.intervals import Interval, Intervals, RowCounts, difference_intervals

if TYPE_CHECKING:
    from collections.abc import Iterator

AGENTS = {"strong": (6.0, 0.3), "middling": (2.0, 2.0), "all or nothing": (0.5, 0.5), "weak": (0.3, 6.0)}
"""The parameters of the beta distribution of row rates."""
SIZES = ((115, 4), (30, 4), (10, 4), (5, 4), (1, 8))
"""Rows, and rollouts of each."""
KS = (1, 4)


def moment(a: float, b: float, k: int) -> float:
    """The mean of p^k."""
    return math.prod((a + r) / (a + b + r) for r in range(k))


def play(rng: random.Random, rates: list[float], rollouts: int) -> tuple[tuple[int, int], ...]:
    """Play each row; the order of rows, which has no meaning, is that of their counts."""
    return tuple((rollouts, sum(rng.random() < rate for _ in range(rollouts))) for rate in rates)


@cache
def intervals_of(counts: tuple[tuple[int, int], ...], k: int) -> Intervals:
    return RowCounts(counts).intervals(k)


@cache
def differences_of(pairs: tuple[tuple[tuple[int, int], tuple[int, int]], ...], k: int) -> Intervals:
    return difference_intervals(pairs, k)


def simulate(
    rng: random.Random, agent: tuple[float, float], size: tuple[int, int], evaluations: int
) -> tuple[list[str], list[str]]:
    """Return the cells of both tables: for each k and question coverage in percent, and mean width."""
    rows, rollouts = size
    held: dict[tuple[int, int, int], list[bool]] = {}
    widths: dict[tuple[int, int, int], list[float]] = {}
    for _ in range(evaluations):
        rates = [rng.betavariate(*agent) for _ in range(rows)]
        a, b = play(rng, rates, rollouts), play(rng, rates, rollouts)
        for k in KS:
            truths = sum(rate**k for rate in rates) / rows, moment(*agent, k)
            single = intervals_of(tuple(sorted(a)), k)
            paired = differences_of(tuple(sorted(zip(a, b, strict=True))), k)
            for table, intervals, aims in ((0, single, truths), (1, paired, (0.0, 0.0))):
                for question, (interval, truth) in enumerate(zip(intervals, aims, strict=True)):
                    if interval is not None:
                        held.setdefault((table, k, question), []).append(holds(interval, truth))
                        widths.setdefault((table, k, question), []).append(interval.high - interval.low)

    def cells(table: int) -> Iterator[str]:
        for k in KS:
            for question in (0, 1):
                found = held.get((table, k, question))
                width = widths.get((table, k, question))
                shown = "-" if not found or not width else f"{100 * sum(found) / len(found):.1f}"
                yield f"{shown} ({sum(width) / len(width):.2f})" if width else shown

    return list(cells(0)), list(cells(1))


def holds(interval: Interval, truth: float) -> bool:
    return interval.low <= truth <= interval.high


@click.command(help=__doc__)
@click.option("--evaluations", default=1000, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=1, show_default=True)
def main(evaluations: int, seed: int) -> None:
    rng = random.Random(seed)
    tables: tuple[list[list[str]], list[list[str]]] = ([], [])
    for size in SIZES:
        for name, agent in AGENTS.items():
            for table, cells in zip(tables, simulate(rng, agent, size, evaluations), strict=True):
                table.append([f"{size[0]} x {size[1]}", name, *cells])
    questions = [f"Pass^{k}, {question}" for k in KS for question in ("these tasks", "tasks like these")]
    for title, table in zip(("one agent", "two equal agents"), tables, strict=True):
        print(f"{title}: coverage in % (mean width), {evaluations} evaluations a line\n")
        for line in (["rows x rollouts", "agent", *questions], ["---"] * 6, *table):
            print(f"| {' | '.join(line)} |")
        print()


if __name__ == "__main__":
    main()
