"""Agents on tools with a database: the names that bundles, agents, simulated users and scripts build on.

Each name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reward_kit.agent.agents import Agent as Agent
    from reward_kit.agent.base.task_row import Action as Action
    from reward_kit.agent.base.task_row import TaskRow as TaskRow
    from reward_kit.agent.base.types import Completion as Completion
    from reward_kit.agent.base.types import Model as Model
    from reward_kit.agent.base.types import ToolCall as ToolCall
    from reward_kit.agent.base.types import Usage as Usage
    from reward_kit.agent.bundles.bundle import Seed as Seed
    from reward_kit.agent.bundles.bundle import Task as Task
    from reward_kit.agent.comparison.compare import compare as compare
    from reward_kit.agent.comparison.compare import compare_with as compare_with
    from reward_kit.agent.config import EvaluationConfig as EvaluationConfig
    from reward_kit.agent.database import Changes as Changes
    from reward_kit.agent.database import Database as Database
    from reward_kit.agent.database import ReadOnlyDatabase as ReadOnlyDatabase
    from reward_kit.agent.database import Row as Row
    from reward_kit.agent.database import RowChange as RowChange
    from reward_kit.agent.exporting.export import export as export
    from reward_kit.agent.models.function import FunctionModel as FunctionModel
    from reward_kit.agent.models.litellm import LiteLLMModel as LiteLLMModel
    from reward_kit.agent.players.loading import load_agent as load_agent
    from reward_kit.agent.players.loading import load_user as load_user
    from reward_kit.agent.records.loading import load_rollout as load_rollout
    from reward_kit.agent.records.rollout_record import RolloutRecord as RolloutRecord
    from reward_kit.agent.rescoring.rescore import rescore as rescore
    from reward_kit.agent.rollout.budgets import RolloutLimits as RolloutLimits
    from reward_kit.agent.rollout.episode import Episode as Episode
    from reward_kit.agent.rollout.judge import judge as judge
    from reward_kit.agent.rollout.judge import judge_sync as judge_sync
    from reward_kit.agent.rollout.opening import TaskBundle as TaskBundle
    from reward_kit.agent.rollout.orchestrator import FinishedRollout as FinishedRollout
    from reward_kit.agent.rollout.orchestrator import run_rollout as run_rollout
    from reward_kit.agent.rollout.rollout import Rollout as Rollout
    from reward_kit.agent.rollout.rollout import RolloutStopped as RolloutStopped
    from reward_kit.agent.rollout.rollout import TaskView as TaskView
    from reward_kit.agent.rollout.rollout import UserRollout as UserRollout
    from reward_kit.agent.runner.evaluation import agent_eval as agent_eval
    from reward_kit.agent.runner.evaluation import evaluate as evaluate
    from reward_kit.agent.runner.evaluation import evaluate_async as evaluate_async
    from reward_kit.agent.runner.evaluation import run_evaluation as run_evaluation
    from reward_kit.agent.runner.progress import Progress as Progress
    from reward_kit.agent.scoring.results import EvaluationResult as EvaluationResult
    from reward_kit.agent.storage.stored_evaluation import load_evaluation as load_evaluation
    from reward_kit.agent.tools.execution import ToolResult as ToolResult
    from reward_kit.agent.tools.registry import ToolRegistry as ToolRegistry
    from reward_kit.agent.users import User as User
    from reward_kit.agent.validation import validate as validate
    from reward_kit.errors import ToolError as ToolError
    from reward_kit.models import StepData as StepData

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
