"""Agents on tools with a database: the names that bundles, agents, simulated users and scripts build on.

Each name is imported when it is first used.
"""
# ruff: noqa: F401

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reward_kit.agent.agents import Agent
    from reward_kit.agent.base.task_row import Action, TaskRow
    from reward_kit.agent.base.types import Completion, Model, ToolCall, Usage
    from reward_kit.agent.bundles.bundle import Seed, Task
    from reward_kit.agent.comparison.compare import compare, compare_with
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.database import Changes, Database, ReadOnlyDatabase, Row, RowChange
    from reward_kit.agent.exporting.export import export
    from reward_kit.agent.models.function import FunctionModel
    from reward_kit.agent.models.litellm import LiteLLMModel
    from reward_kit.agent.players.loading import load_agent, load_user
    from reward_kit.agent.records.loading import load_rollout
    from reward_kit.agent.records.rollout_record import RolloutRecord
    from reward_kit.agent.rescoring.rescore import rescore
    from reward_kit.agent.rollout.budgets import RolloutLimits
    from reward_kit.agent.rollout.episode import Episode
    from reward_kit.agent.rollout.judge import judge, judge_sync
    from reward_kit.agent.rollout.opening import TaskBundle
    from reward_kit.agent.rollout.orchestrator import FinishedRollout, run_rollout
    from reward_kit.agent.rollout.rollout import Rollout, RolloutStopped, TaskView, UserRollout
    from reward_kit.agent.runner.evaluation import agent_eval, evaluate, evaluate_async, run_evaluation
    from reward_kit.agent.runner.progress import Progress
    from reward_kit.agent.scoring.results import EvaluationResult
    from reward_kit.agent.storage.stored_evaluation import load_evaluation
    from reward_kit.agent.tools.execution import ToolResult
    from reward_kit.agent.tools.registry import ToolRegistry
    from reward_kit.agent.users import User
    from reward_kit.agent.validation import validate
    from reward_kit.errors import ToolError
    from reward_kit.models import StepData

_HOMES = {
    "Action": "reward_kit.agent.base.task_row",
    "Agent": "reward_kit.agent.agents",
    "Changes": "reward_kit.agent.database",
    "Completion": "reward_kit.agent.base.types",
    "Database": "reward_kit.agent.database",
    "Episode": "reward_kit.agent.rollout.episode",
    "EvaluationConfig": "reward_kit.agent.config",
    "EvaluationResult": "reward_kit.agent.scoring.results",
    "FinishedRollout": "reward_kit.agent.rollout.orchestrator",
    "FunctionModel": "reward_kit.agent.models.function",
    "LiteLLMModel": "reward_kit.agent.models.litellm",
    "Model": "reward_kit.agent.base.types",
    "Progress": "reward_kit.agent.runner.progress",
    "ReadOnlyDatabase": "reward_kit.agent.database",
    "Rollout": "reward_kit.agent.rollout.rollout",
    "RolloutLimits": "reward_kit.agent.rollout.budgets",
    "RolloutRecord": "reward_kit.agent.records.rollout_record",
    "RolloutStopped": "reward_kit.agent.rollout.rollout",
    "Row": "reward_kit.agent.database",
    "RowChange": "reward_kit.agent.database",
    "Seed": "reward_kit.agent.bundles.bundle",
    "StepData": "reward_kit.models",
    "Task": "reward_kit.agent.bundles.bundle",
    "TaskBundle": "reward_kit.agent.rollout.opening",
    "TaskRow": "reward_kit.agent.base.task_row",
    "TaskView": "reward_kit.agent.rollout.rollout",
    "ToolCall": "reward_kit.agent.base.types",
    "ToolError": "reward_kit.errors",
    "ToolRegistry": "reward_kit.agent.tools.registry",
    "ToolResult": "reward_kit.agent.tools.execution",
    "Usage": "reward_kit.agent.base.types",
    "User": "reward_kit.agent.users",
    "UserRollout": "reward_kit.agent.rollout.rollout",
    "agent_eval": "reward_kit.agent.runner.evaluation",
    "compare": "reward_kit.agent.comparison.compare",
    "compare_with": "reward_kit.agent.comparison.compare",
    "evaluate": "reward_kit.agent.runner.evaluation",
    "evaluate_async": "reward_kit.agent.runner.evaluation",
    "export": "reward_kit.agent.exporting.export",
    "judge": "reward_kit.agent.rollout.judge",
    "judge_sync": "reward_kit.agent.rollout.judge",
    "load_agent": "reward_kit.agent.players.loading",
    "load_evaluation": "reward_kit.agent.storage.stored_evaluation",
    "load_rollout": "reward_kit.agent.records.loading",
    "load_user": "reward_kit.agent.players.loading",
    "rescore": "reward_kit.agent.rescoring.rescore",
    "run_evaluation": "reward_kit.agent.runner.evaluation",
    "run_rollout": "reward_kit.agent.rollout.orchestrator",
    "validate": "reward_kit.agent.validation",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
