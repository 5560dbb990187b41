"""The line of an evaluation on a leaderboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.metrics import LEADERBOARD_KS
from reward_kit.agent.reports.markdown_table import markdown_table_lines
from reward_kit.agent.reports.wording import score
from reward_kit.agent.results import asked_model, leaderboard_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.results import EvaluationResult
    from reward_kit.agent.runs.stored_evaluation import StoredEvaluation

HEADINGS = ("Strategy", *(f"Pass^{k}" for k in LEADERBOARD_KS))


def strategy(evaluation: EvaluationResult | StoredEvaluation) -> str:
    """The agent and the model that it asked: ``tool-calling (openai/gpt-4o-mini)``."""
    agent = evaluation.configuration.get("agent")
    model = asked_model(evaluation.configuration, evaluation.usage, evaluation.outcomes)
    return f"{agent} ({model})" if model else f"{agent}"


def leaderboard_row(result: EvaluationResult) -> list[str]:
    """The cells below ``HEADINGS``."""
    return [strategy(result), *(score(value) for value in leaderboard_values(result))]


def leaderboard(results: Sequence[EvaluationResult]) -> str:
    """A Markdown table, the best first by overall score."""
    ranked = sorted(results, key=lambda result: -(result.score if result.score is not None else -1.0))
    rows = [HEADINGS, *map(leaderboard_row, ranked)]
    return "".join(f"{line}\n" for line in markdown_table_lines(rows, right=range(1, len(HEADINGS))))
