"""Play a row's gold calls, or others in their place, and ask the reward about the result."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reward_kit.agent.base.text import foreign_text
from reward_kit.agent.base.types import RolloutStopped
from reward_kit.agent.database.changes import Changes
from reward_kit.agent.players.agents.replay import GoldAgent
from reward_kit.agent.rollout.calls import judged_once
from reward_kit.agent.rollout.episode import Episode
from reward_kit.agent.rollout.gold import FAULTY
from reward_kit.agent.rollout.outcome import is_success
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

    ``is_played`` is False if not all of the calls could be made; ``error`` says why.
    """

    reward: float | None
    reason: str | None
    error: str | None
    calls: dict[int, ToolCall] = field(default_factory=dict)
    changes: Changes = field(default_factory=Changes)
    violations: Violations | None = None
    is_played: bool = True

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
    return PlayedGold(*await _judged(episode, gold_database))


@dataclass(slots=True)
class GoldRollout:
    """A rollout that has made its ``calls``, by the number of their action; its episode is to be closed.

    ``fault`` says why it could not make them all.
    """

    episode: Episode
    calls: dict[int, ToolCall]
    fault: str | None = None

    async def judged(self, gold_database: Database) -> PlayedGold:
        """The reward of the rollout, which may itself be what leads to ``gold_database``."""
        reward, reason, error = await _judged(self.episode, gold_database)
        found = self.calls, self.episode.changes(), self.episode.trace.violations, self.fault is None
        return PlayedGold(reward, reason, self.fault or error, *found)


async def play_calls(
    task: Task, base: Database, *, plan: Sequence[tuple[int, Action]] | None = None, reply: str | None = None
) -> GoldRollout:
    """Play the gold agent, or one that makes the calls of ``plan`` instead.

    It says ``reply`` instead of the outputs, if that is given.
    """
    agent = GoldAgent(plan, tries_all=True)
    agent.episode = episode = Episode(task, base=base)
    rollout = GoldRollout(episode, agent.made)
    with ExitStack() as failed:
        failed.enter_context(episode)
        try:
            outputs = await agent.respond(episode.rollout)
            episode.reply(outputs if reply is None else reply)
        except RolloutStopped:
            rollout.fault = episode.trace.stop_detail if episode.stop_reason == "agent_error" else None
        except BundleError as error:  # a reference to a result that is not there
            episode.stop("agent_error")
            rollout.fault = str(error)
        await episode.settle()
        failed.pop_all()
    return rollout


async def play_gold(
    task: Task,
    base: Database,
    gold_database: Database,
    *,
    plan: Sequence[tuple[int, Action]] | None = None,
    reply: str | None = None,
) -> PlayedGold:
    """The reward of a rollout as ``play_calls`` plays it."""
    rollout = await play_calls(task, base, plan=plan, reply=reply)
    with rollout.episode:
        return await rollout.judged(gold_database)


async def _judged(
    episode: Episode, gold_database: Database | None
) -> tuple[float | None, str | None, str | None]:
    """The reward, its reason, and why there is none."""
    episode.stop("agent_done")
    try:
        result = await judged_once(episode, gold_database, is_shared=False)
    except RewardError as error:
        return None, None, foreign_text(error)
    return float(result.score), result.reason, None
