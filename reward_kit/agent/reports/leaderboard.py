"""The line of an evaluation on a leaderboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reward_kit.agent.metrics import LEADERBOARD_KS
from reward_kit.agent.reports.wording import score
from reward_kit.agent.results import leaderboard_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reward_kit.agent.results import EvaluationResult

HEADINGS = ("Strategy", *(f"Pass^{k}" for k in LEADERBOARD_KS))


def strategy(configuration: Mapping[str, Any]) -> str:
    """The agent and its model: ``tool-calling (openai/gpt-4o-mini)``."""
    agent, model = configuration.get("agent"), configuration.get("model")
    return f"{agent} ({model})" if model else f"{agent}"


def leaderboard_row(result: EvaluationResult) -> list[str]:
    """The cells below ``HEADINGS``."""
    return [strategy(result.configuration), *(score(value) for value in leaderboard_values(result))]


def leaderboard(results: Sequence[EvaluationResult]) -> str:
    """A Markdown table, the best first by overall score."""
    ranked = sorted(results, key=lambda result: -(result.score if result.score is not None else -1.0))
    lines = [HEADINGS, ("---", *("---:" for _ in LEADERBOARD_KS)), *map(leaderboard_row, ranked)]
    return "".join(f"| {' | '.join(_cell(cell) for cell in cells)} |\n" for cells in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
