"""Agents on tools with a database: what bundles, agents, simulated users and scripts build on.

Names are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reward_kit.lazy_names import lazy_names

if TYPE_CHECKING:
    from reward_kit.agent.agents import Agent, load_agent
    from reward_kit.agent.bundle import Task, TaskBundle
    from reward_kit.agent.bundles.task_row import Action, TaskRow
    from reward_kit.agent.calls import ToolCall
    from reward_kit.agent.completion import Completion, Model, Usage
    from reward_kit.agent.database import Changes, Database, ReadOnlyDatabase, Row, RowChange
    from reward_kit.agent.evaluation import agent_eval, run_evaluation
    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.limits import RolloutLimits
    from reward_kit.agent.llm import LiteLLMModel
    from reward_kit.agent.models import StepData
    from reward_kit.agent.orchestrator import FinishedRollout, run_rollout
    from reward_kit.agent.results import EvaluationResult
    from reward_kit.agent.rollout import Rollout, RolloutStopped
    from reward_kit.agent.runs.rollout_record import RolloutRecord, load_rollout
    from reward_kit.agent.tool_registry import ToolRegistry
    from reward_kit.agent.tools.execution import ToolResult
    from reward_kit.agent.users import User, load_user
    from reward_kit.agent.validation import validate
    from reward_kit.errors import ToolError

__all__ = [
    "Action",
    "Agent",
    "Changes",
    "Completion",
    "Database",
    "EvaluationConfig",
    "EvaluationResult",
    "FinishedRollout",
    "LiteLLMModel",
    "Model",
    "ReadOnlyDatabase",
    "Rollout",
    "RolloutLimits",
    "RolloutRecord",
    "RolloutStopped",
    "Row",
    "RowChange",
    "StepData",
    "Task",
    "TaskBundle",
    "TaskRow",
    "ToolCall",
    "ToolError",
    "ToolRegistry",
    "ToolResult",
    "Usage",
    "User",
    "agent_eval",
    "load_agent",
    "load_rollout",
    "load_user",
    "run_evaluation",
    "run_rollout",
    "validate",
]

_find = lazy_names(
    __name__,
    {
        "reward_kit.agent.agents": ["Agent", "load_agent"],
        "reward_kit.agent.bundle": ["Task", "TaskBundle"],
        "reward_kit.agent.calls": ["ToolCall"],
        "reward_kit.agent.completion": ["Completion", "Model", "Usage"],
        "reward_kit.agent.database": ["Changes", "Database", "ReadOnlyDatabase", "Row", "RowChange"],
        "reward_kit.agent.evaluation": ["agent_eval", "run_evaluation"],
        "reward_kit.agent.evaluation_config": ["EvaluationConfig"],
        "reward_kit.agent.limits": ["RolloutLimits"],
        "reward_kit.agent.llm": ["LiteLLMModel"],
        "reward_kit.agent.models": ["StepData"],
        "reward_kit.agent.orchestrator": ["FinishedRollout", "run_rollout"],
        "reward_kit.agent.results": ["EvaluationResult"],
        "reward_kit.agent.rollout": ["Rollout", "RolloutStopped"],
        "reward_kit.agent.runs.rollout_record": ["RolloutRecord", "load_rollout"],
        "reward_kit.agent.bundles.task_row": ["Action", "TaskRow"],
        "reward_kit.agent.tools.execution": ["ToolResult"],
        "reward_kit.agent.tool_registry": ["ToolRegistry"],
        "reward_kit.agent.users": ["User", "load_user"],
        "reward_kit.agent.validation": ["validate"],
        "reward_kit.errors": ["ToolError"],
    },
)


def __getattr__(name: str) -> Any:
    value = _find(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
