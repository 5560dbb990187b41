"""The figures of all contenders as one Markdown table."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

TURNS = 10
Runs = list[dict[str, Any]]


def make_table(results: dict[str, Any], crowds: list[int], ideal: float) -> str:
    """Contenders side by side, figures one below the other; ``(n)``: a median of fewer runs than asked."""
    contenders = results["contenders"]
    lines = ["| | " + " | ".join(contenders) + " |", "|---|" + "---|" * len(contenders)]
    for title, find in _figures(crowds, ideal):
        cells = [find(one) for one in contenders.values()]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _figures(crowds: list[int], ideal: float) -> list[tuple[str, Callable[[dict[str, Any]], str]]]:
    rows: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("durable when a rollout is over", lambda contender: contender["durable"])
    ]
    for scenario in ("saved", "in memory"):
        rows.append(
            (
                f"rollouts/s, {scenario}",
                _of(scenario, lambda run: run["rollouts"] / run["wall_s"], "{:.0f}"),
            )
        )
        rows.append(
            (
                f"CPU ms per turn, {scenario}",
                _of(scenario, lambda run: 1e3 * run["cpu_s"] / run["rollouts"] / TURNS, "{:.2f}"),
            )
        )
    for crowd in crowds:
        scenario = f"{crowd} at once"
        rows.append((f"{crowd} at once: wall s", _of(scenario, lambda run: run["wall_s"], "{:.1f}")))
        rows.append(
            (f"{crowd} at once: whole process s", _of(scenario, lambda run: run["process_s"], "{:.1f}"))
        )
        rows.append((f"{crowd} at once: / ideal", _of(scenario, lambda run: run["wall_s"] / ideal, "{:.2f}")))
        rows.append(
            (
                f"{crowd} at once: CPU ms per turn",
                _of(scenario, lambda run: 1e3 * run["cpu_s"] / run["rollouts"] / TURNS, "{:.2f}"),
            )
        )
        rows.append(
            (
                f"{crowd} at once: peak MB, all processes",
                _of(scenario, lambda run: run["all_peak_kb"] / 1024, "{:.0f}"),
            )
        )
        rows.append(
            (
                f"{crowd} at once: KB per rollout",
                _of(
                    scenario,
                    lambda run: (run["all_peak_kb"] - run["rss_before_kb"]) / run["rollouts"],
                    "{:.0f}",
                ),
            )
        )
    for title, key in (
        ("import, s", "import"),
        ("`--help`, s", "help"),
        ("whole process, 5 rollouts, s", "small"),
    ):
        rows.append((title, _timed(key)))
    return rows


def _of(
    scenario: str, figure: Callable[[dict[str, Any]], float], pattern: str
) -> Callable[[dict[str, Any]], str]:
    def find(contender: dict[str, Any]) -> str:
        runs: Runs = contender["runs"].get(scenario, [])
        good = [figure(run) for run in runs if "failed" not in run]
        if not good:
            return str(runs[0]["failed"]) if runs else "not run"
        few = f" ({len(good)})" if len(good) < contender["asked"] else ""
        return pattern.format(median(good)) + few

    return find


def _timed(key: str) -> Callable[[dict[str, Any]], str]:
    def find(contender: dict[str, Any]) -> str:
        good = [seconds for seconds in contender[key] if seconds is not None]
        return f"{median(good):.2f}" if good else "failed" if contender[key] else ""

    return find
