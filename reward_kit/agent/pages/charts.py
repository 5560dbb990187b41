"""Charts as SVG: coordinates for the template ``charts.html``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from reward_kit.agent.reports.numbers import dollars, estimate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reward_kit.agent.scoring.metrics import Estimate

WIDTH, HEIGHT = 360, 200
LEFT, RIGHT, TOP, BOTTOM = 34, 346, 10, 176
"""Edges of the plot in pixels, around which lie the labels of its axes."""


class Point(NamedTuple):
    """A point with its interval for tasks like these, in pixels; ``title`` is in words."""

    x: float
    y: float
    high: float
    low: float
    title: str
    name: str = ""


class Chart(NamedTuple):
    """Points over the axis of scores; ``ticks`` are labels of the other axis at places in pixels."""

    points: Sequence[Point]
    ticks: Sequence[tuple[float, str]]


def pass_curve(powers: Mapping[int, Estimate], ks: Sequence[int]) -> Chart | None:
    """Pass^k by k with intervals; None for fewer than two ``ks``."""
    if len(ks) < 2:
        return None
    places = {k: _x((k - 1) / (ks[-1] - 1)) for k in ks}
    points = [_point(places[k], powers[k], f"Pass^{k} {estimate(powers[k])}") for k in ks]
    return Chart(points, [(place, str(k)) for k, place in places.items()])


def cost_chart(evaluations: Sequence[tuple[str, float, Estimate]]) -> Chart | None:
    """Pass^1 over the mean cost of a rollout in dollars, by evaluation; None unless two have a cost."""
    most = max((cost for _, cost, _ in evaluations), default=0)
    if len(evaluations) < 2 or most <= 0:
        return None
    points = [
        _point(_x(cost / most), score, f"{name}: {dollars(cost)}, Pass^1 {estimate(score)}", name)
        for name, cost, score in evaluations
    ]
    ticks = [(_x(share), dollars(share * most) if share else "$0") for share in (0, 0.5, 1)]
    return Chart(points, ticks)


def _point(x: float, score: Estimate, title: str, name: str = "") -> Point:
    low, high = score.intervals.tasks_like_these or score.intervals.these_tasks or (score.value, score.value)
    return Point(x, _y(score.value), _y(high), _y(low), title, name)


def _x(share: float) -> float:
    return round(LEFT + 6 + share * (RIGHT - LEFT - 12), 1)


def _y(value: float) -> float:
    return round(BOTTOM - value * (BOTTOM - TOP), 1)
