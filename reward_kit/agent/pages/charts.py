"""Charts as SVG: coordinates for the template ``charts.html``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from reward_kit.agent.reports.numbers import dollars, estimate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reward_kit.agent.scoring.metrics import Estimate

WIDTH, HEIGHT = 360, 200
LEFT, RIGHT, TOP, BOTTOM = 34, 14, 10, 24
"""Margins of the plot, which leave room for the labels of its axes."""


class Point(NamedTuple):
    """A point with its interval: coordinates in pixels, a ``title`` in words, and the ``label`` beside it."""

    x: float
    y: float
    high: float
    low: float
    title: str
    label: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Points over two axes; ``ticks`` and ``lines`` are labels at places along them, in pixels."""

    points: Sequence[Point]
    ticks: Sequence[tuple[float, str]]
    x_label: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM

    @property
    def lines(self) -> list[tuple[float, str]]:
        """The labels of the axis of scores."""
        return [(_y(value), f"{value:g}") for value in (0, 0.5, 1)]

    @property
    def line(self) -> str:
        """The points of a line through all points."""
        return " ".join(f"{one.x},{one.y}" for one in self.points)

    @property
    def band(self) -> str:
        """The outline of the band of their intervals."""
        above = [f"{one.x},{one.high}" for one in self.points]
        return " ".join([*above, *(f"{one.x},{one.low}" for one in reversed(self.points))])


def pass_curve(powers: Mapping[int, Estimate], ks: Sequence[int]) -> Chart | None:
    """Pass^k by k with intervals; None for fewer than two ``ks``."""
    if len(ks) < 2:
        return None
    places = {k: _x((k - 1) / (ks[-1] - 1)) for k in ks}
    points = [_point(places[k], powers[k], f"Pass^{k} {estimate(powers[k])}") for k in ks]
    return Chart(points, [(place, str(k)) for k, place in places.items()], "k")


def cost_chart(evaluations: Sequence[tuple[str, float, Estimate]]) -> Chart | None:
    """Pass^1 over the mean cost of a rollout in dollars, by evaluation; None unless two have a cost.

    The label of a point is its evaluation's number, from 1.
    """
    most = max((cost for _, cost, _ in evaluations), default=0)
    if len(evaluations) < 2 or most <= 0:
        return None
    points = [
        _point(
            _x(cost / most), score, f"{name}: {dollars(cost)}, Pass^1 {estimate(score)}", str(number), name
        )
        for number, (name, cost, score) in enumerate(evaluations, 1)
    ]
    ticks = [(_x(share), dollars(share * most) if share else "$0") for share in (0, 0.5, 1)]
    return Chart(points, ticks, "cost of a rollout")


def _point(x: float, score: Estimate, title: str, label: str = "", name: str = "") -> Point:
    low, high = score.interval or (score.value, score.value)
    return Point(x, _y(score.value), _y(high), _y(low), title, label, name)


def _x(share: float) -> float:
    return round(LEFT + 6 + share * (WIDTH - LEFT - RIGHT - 12), 1)


def _y(value: float) -> float:
    return round(HEIGHT - BOTTOM - value * (HEIGHT - BOTTOM - TOP), 1)
