"""Agents on tools with a database: the names that bundles, agents, simulated users and scripts build on.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.lazy_names import lazy_names

if TYPE_CHECKING:
    from reward_kit.agent.after.explainer import explain as explain
    from reward_kit.agent.after.explainer import explain_async as explain_async
    from reward_kit.agent.after.export import export as export
    from reward_kit.agent.after.rescore import rescore as rescore
    from reward_kit.agent.after.rescore import rescore_async as rescore_async
    from reward_kit.agent.base.types import Completion as Completion
    from reward_kit.agent.base.types import Model as Model
    from reward_kit.agent.base.types import RolloutStopped as RolloutStopped
    from reward_kit.agent.base.types import Tokens as Tokens
    from reward_kit.agent.base.types import ToolCall as ToolCall
    from reward_kit.agent.base.types import Usage as Usage
    from reward_kit.agent.bundles.bundle import Seed as Seed
    from reward_kit.agent.bundles.bundle import Task as Task
    from reward_kit.agent.bundles.bundle import TaskBundle as TaskBundle
    from reward_kit.agent.checks import validate as validate
    from reward_kit.agent.checks import validate_async as validate_async
    from reward_kit.agent.comparison.compare import compare as compare
    from reward_kit.agent.comparison.compare import compare_with as compare_with
    from reward_kit.agent.config import EvaluationConfig as EvaluationConfig
    from reward_kit.agent.database import Changes as Changes
    from reward_kit.agent.database import Database as Database
    from reward_kit.agent.database import ReadOnlyDatabase as ReadOnlyDatabase
    from reward_kit.agent.database import Row as Row
    from reward_kit.agent.database import RowChange as RowChange
    from reward_kit.agent.evaluation.progress import Progress as Progress
    from reward_kit.agent.evaluation.run import agent_eval as agent_eval
    from reward_kit.agent.evaluation.run import branch as branch
    from reward_kit.agent.evaluation.run import branch_async as branch_async
    from reward_kit.agent.evaluation.run import evaluate as evaluate
    from reward_kit.agent.evaluation.run import evaluate_async as evaluate_async
    from reward_kit.agent.evaluation.run import run_evaluation as run_evaluation
    from reward_kit.agent.models.function import FunctionModel as FunctionModel
    from reward_kit.agent.models.litellm import LiteLLMModel as LiteLLMModel
    from reward_kit.agent.players.agents import Agent as Agent
    from reward_kit.agent.players.names import load_agent as load_agent
    from reward_kit.agent.players.names import load_user as load_user
    from reward_kit.agent.players.users import User as User
    from reward_kit.agent.rollout.episode import Episode as Episode
    from reward_kit.agent.rollout.orchestrator import judge as judge
    from reward_kit.agent.rollout.orchestrator import judge_async as judge_async
    from reward_kit.agent.rollout.orchestrator import judge_sync as judge_sync
    from reward_kit.agent.rollout.orchestrator import run_rollout as run_rollout
    from reward_kit.agent.rollout.orchestrator import run_rollout_async as run_rollout_async
    from reward_kit.agent.rollout.rollout import Rollout as Rollout
    from reward_kit.agent.rollout.rollout import RolloutLimits as RolloutLimits
    from reward_kit.agent.rollout.rollout import TaskView as TaskView
    from reward_kit.agent.rollout.rollout import UserRollout as UserRollout
    from reward_kit.agent.rollout.trace import RolloutRecord as RolloutRecord
    from reward_kit.agent.rollout.trace import Trace as Trace
    from reward_kit.agent.rows.task_row import Action as Action
    from reward_kit.agent.rows.task_row import TaskRow as TaskRow
    from reward_kit.agent.store.layout import load_evaluation as load_evaluation
    from reward_kit.agent.store.loading import load_rollout as load_rollout
    from reward_kit.agent.store.results import EvaluationResult as EvaluationResult
    from reward_kit.agent.tools.execution import ToolResult as ToolResult
    from reward_kit.agent.tools.registry import ToolRegistry as ToolRegistry
    from reward_kit.errors import ToolError as ToolError
    from reward_kit.models import StepData as StepData

_OLDER = ["RolloutRecord", "agent_eval", "judge_sync", "run_evaluation"]
__getattr__, __dir__, globals()["__all__"] = lazy_names(__name__, older=_OLDER)
