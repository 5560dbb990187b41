"""Play a row's gold calls, or others in their place, and ask the reward about the result."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from reward_kit.agent.database.changes import Changes
from reward_kit.agent.players.agents.gold import GoldAgent
from reward_kit.agent.rollout.episode import Episode
from reward_kit.agent.rollout.gold import FAULTY
from reward_kit.agent.rollout.outcome import is_success
from reward_kit.agent.rollout.rollout import RolloutStopped
from reward_kit.errors import BundleError, RewardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.base.types import ToolCall, Violations
    from reward_kit.agent.bundles.bundle import Task
    from reward_kit.agent.database import Database
    from reward_kit.agent.rows.task_row import Action


@dataclass(frozen=True, slots=True)
class PlayedGold:
    """The result of a rollout: its calls by the number of their action, and the rows that it changed.

    ``reaches_goal`` says if the row's ``end_goal_sql`` is true at its end; None if it has none.
    """

    reward: float | None
    reason: str | None
    error: str | None
    calls: dict[int, ToolCall] = field(default_factory=dict)
    changes: Changes = field(default_factory=Changes)
    violations: Violations | None = None
    reaches_goal: bool | None = None

    @property
    def reached(self) -> bool:
        """True if the reward counts as success."""
        return self.reward is not None and is_success(self.reward)

    @property
    def is_sound(self) -> bool:
        """True if all calls could be made as they are written, and led to success."""
        statuses = {call.status for call in self.calls.values()}
        return self.reached and not self.error and not statuses & FAULTY


async def play_idle(task: Task, untouched: Database, gold_database: Database | None) -> PlayedGold:
    """Judge a rollout in which nothing is done, on a fork that the reward only reads."""
    episode = Episode(task, database=untouched)
    episode.reply("…")
    return await _judged(episode, gold_database)


async def play_gold(
    task: Task,
    base: Database,
    gold_database: Database,
    *,
    plan: Sequence[tuple[int, Action]] | None = None,
    reply: str | None = None,
) -> PlayedGold:
    """Judge a rollout of the gold agent, or of one that makes the calls of ``plan`` instead.

    It says ``reply`` instead of the outputs, if that is given.
    """
    agent = GoldAgent(plan, tries_all=True)
    fault: str | None = None
    with Episode(task, base=base) as episode:
        agent.episode = episode
        try:
            outputs = await agent.respond(episode.rollout)
            episode.reply(outputs if reply is None else reply)
        except RolloutStopped:
            fault = episode.trace.stop_detail if episode.trace.stop_reason == "agent_error" else None
        except BundleError as error:  # a reference to a result that is not there
            episode.stop("agent_error")
            fault = str(error)
        await episode.settle()
        played = await _judged(episode, gold_database)
        changes = Changes(tuple(episode.changes()))
        goal = task.row.end_goal_sql if plan is None and reply is None else None
        reaches_goal = None if goal is None else bool(episode.database.read_only().execute(goal).scalar())
    return replace(
        played,
        error=fault or played.error,
        calls=agent.made,
        changes=changes,
        violations=episode.trace.violations,
        reaches_goal=reaches_goal,
    )


async def _judged(episode: Episode, gold_database: Database | None) -> PlayedGold:
    try:
        result = await episode.finish(gold_database)
    except RewardError:
        return PlayedGold(None, None, episode.trace.error)
    return PlayedGold(float(result.score), result.reason, None)
