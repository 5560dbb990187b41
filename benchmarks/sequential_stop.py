"""The stopping rule of ``--until-decided``: false alarms, and the rollouts that it saves.

    python benchmarks/sequential_stop.py [--draws 400] [--rows 115] [--rollouts 8] [EVALUATION ...]

Draws pairs of evaluations whose success rates are known and decides each pair as ``agent-eval --against
--until-decided --margin 5`` does. The rates are drawn from Beta distributions, or are those of the rows of
stored evaluations (names in ``runs``, or paths): their rollouts are then resampled. The new evaluation's
rates differ on the logit scale, by as much as makes the given mean difference. To reach: at most 5 % of the
pairs without a difference called better or worse, and at most 5 % with a difference of the margin called
within it (up to noise: twice √(0.05 · 0.95 / draws)).
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from reward_kit.agent import load_evaluation
from reward_kit.agent.scoring.sequential import RowProgress, decide

POINTS = (0, 3, 5, 8, 10)
AGENTS = {"strong": (4.0, 0.6), "middling": (1.2, 0.9), "weak": (0.3, 6.0)}
"""Beta distributions of the rows' success rates."""
SMALL = ((1, 8, 8), (3, 4, 4), (5, 8, 8), (10, 4, 4), (30, 4, 4), (30, 1, 8), (115, 2, 2))
"""Rows, the baseline's rollouts, and the new ones, for false alarms of other sizes."""
Rates = Callable[[random.Random, int], list[float]]


def shifted(rates: Sequence[float], points: float) -> list[float]:
    """Rates whose mean differs by ``points``, each moved equally far on the logit scale."""
    odds = [p / (1 - p) for p in (min(max(p, 1e-6), 1 - 1e-6) for p in rates)]
    wanted = sum(rates) / len(rates) + points / 100
    low, high = -40.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        mean = sum(1 / (1 + math.exp(-middle) / one) for one in odds) / len(odds)
        low, high = (middle, high) if mean < wanted else (low, middle)
    return [1 / (1 + math.exp(-low) / one) for one in odds]


def verdicts(
    rates: Rates, rows: int, before: int, most: int, points: float, draws: int
) -> tuple[Counter[str], float]:
    """The verdicts on ``draws`` pairs, and the share of the rollouts that were played."""
    rng = random.Random(7)
    found: Counter[str] = Counter()
    played = 0
    for _ in range(draws):
        old = rates(rng, rows)
        # downward: strong agents have no room above
        new = shifted(old, -points) if points else old
        pairs = [
            RowProgress(
                before,
                sum(rng.random() < p for _ in range(before)),
                [rng.random() < q for _ in range(most)],
                most,
            )
            for p, q in zip(old, new, strict=True)
        ]
        decision = decide(pairs, margin=5, until_decided=True, baseline="")
        found[decision.verdict] += 1
        played += decision.round
    return found, played / draws / most


def of_beta(a: float, b: float) -> Rates:
    return lambda rng, rows: [rng.betavariate(a, b) for _ in range(rows)]


def sources(names: Sequence[str]) -> Iterator[tuple[str, Rates, int | None]]:
    """Name, rates and number of rows (None: any) of each agent."""
    for name in names:
        stored = [row.c / row.n for row in load_evaluation(name).rows if row.n]
        yield name, lambda _, __, stored=stored: stored, len(stored)  # type: ignore[misc]
    for name, shape in {} if names else AGENTS.items():
        yield name, of_beta(*shape), None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("evaluations", nargs="*", metavar="EVALUATION")
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--rows", type=int, default=115)
    parser.add_argument("--rollouts", type=int, default=8, help="of each row, in both evaluations")
    given = parser.parse_args()
    line = "{:12}{:>6}{:>9}{:>8}{:>8}{:>8}{:>9}{:>11}{:>8}"
    headings = ("agent", "rows", "rollouts", "worse", "better", "within", "not dec.", "points", "saved")
    print(line.format(*headings))

    def show(name: str, rates: Rates, rows: int, before: int, most: int, points: float, draws: int) -> None:
        found, played = verdicts(rates, rows, before, most, points, draws)
        shares = (f"{100 * found[one] / draws:.1f}%" for one in ("worse", "better", "within the margin"))
        undecided = f"{100 * found['not decided'] / draws:.1f}%"
        saved = f"{100 * (1 - played):.0f}%"
        print(
            line.format(name, rows, f"{before}+{most}", *shares, undecided, f"{-points:g}", saved), flush=True
        )

    for name, rates, number in sources(given.evaluations):
        for points in POINTS:
            if name != "weak" or points <= 3:  # a weak agent's Pass^1 is below 5 %
                show(name, rates, number or given.rows, given.rollouts, given.rollouts, points, given.draws)
    for name, shape in {} if given.evaluations else AGENTS.items():
        for rows, before, most in SMALL:
            draws = given.draws * max(1, min(5, given.rows // rows))
            show(name, of_beta(*shape), rows, before, most, 0, draws)


if __name__ == "__main__":
    main()
