"""``run_rollout_async``: one rollout from start to reward; ``judge_async``: the reward of a conversation."""

from __future__ import annotations

import asyncio
import inspect
import logging
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base import deadline
from reward_kit.agent.base.encoding import copied
from reward_kit.agent.base.history import calls_in
from reward_kit.agent.base.places import ends_task, fault_line
from reward_kit.agent.base.types import UNJUDGED_STOPS
from reward_kit.agent.base.worker_thread import in_thread, sync_twin
from reward_kit.agent.bundles.task import IS_BASE
from reward_kit.agent.database import Database
from reward_kit.agent.rollout.episode import Episode
from reward_kit.agent.rollout.rollout import RolloutLimits
from reward_kit.errors import ModelError, ModelInputError, ModelSetupError, RewardError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reward_kit.agent.base.types import Message, Model, Role, StopReason
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.database import ReadOnlyDatabase
    from reward_kit.agent.players.agents import Agent
    from reward_kit.agent.players.users import User
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.models import EvaluateResult, RewardOutput

logger = logging.getLogger(__name__)


async def run_rollout_async(
    task: Task,
    index: int,
    *,
    base: Database,
    agent: Agent,
    user: User | None = None,
    models: Mapping[Role, Model] | None = None,
    limits: RolloutLimits | None = None,
    seed: int = 0,
    gold_database: Database | None = None,
) -> Episode:
    """Play rollout ``index`` of ``task`` on a fork of ``base``, and judge it.

    Returned is the episode with its ``trace`` and its final ``database``, which the caller closes. Faults of
    agent, user, models and reward are in the trace and never raised. Raises ``DatabaseError`` for a faulty
    base, ``StorageError`` if the disk does not hold what is written, and lets cancellation through. Without
    ``gold_database`` a row's actions are replayed here, with the rollout's seed.
    """
    episode = Episode(task, index, base=base, user=user, models=models, limits=limits, seed=seed)
    return await play_async(episode, agent, gold_database)


run_rollout = sync_twin(run_rollout_async)


async def play_async(episode: Episode, agent: Agent, gold_database: Database | None = None) -> Episode:
    """Let ``agent`` play an open episode to its end, and judge it; see ``run_rollout_async``."""
    clock = perf_counter()
    if getattr(agent, "sees_answers", False):
        agent.episode = episode  # type: ignore[attr-defined]  # replays of what is known
    trace = episode.trace
    with ExitStack() as opened:
        opened.enter_context(episode)
        try:
            await _play(episode, agent)
        finally:
            await _close(agent)
            await _close(episode.user)
        if trace.stop_reason in UNJUDGED_STOPS:
            await episode.settle()
        else:
            with suppress(RewardError):  # it is in the trace
                await episode.finish(gold_database)
        trace.seconds = perf_counter() - clock
        opened.pop_all()
    return episode


async def judge_async(
    task: Task,
    messages: Sequence[Message],
    db: Database | ReadOnlyDatabase,
    *,
    gold_db: Database | None = None,
    rollout: Trace | None = None,
    timeout: float | None = 300.0,
) -> EvaluateResult | RewardOutput:
    """The reward of ``task`` for a conversation and the database that it left behind.

    ``gold_db`` is the state that the row's actions lead to; without it they are replayed with the random
    numbers of ``db`` on its base, and on the row's seed if ``db`` is a complete file. ``rollout`` has what
    ``messages`` do not tell, such as the user's tool calls; without it the agent's are those in ``messages``.
    ``timeout`` of the reward is in seconds.

    Raises ``RewardError`` if it raises, takes too long, or returns something else than a valid finite score.
    """
    db = db if isinstance(db, Database) else db.whole()
    episode = Episode(task, database=db, limits=RolloutLimits(reward_timeout=timeout))
    episode.random_numbers = db.randomness
    before = rollout or episode.trace
    own = {"messages": list(messages), "model_calls": list(before.model_calls), "usage": copied(before.usage)}
    episode.trace = trace = replace(before, **own)
    trace.given = task.row
    if rollout is None:
        given = {message.get("tool_call_id") for message in task.row.initial_messages}
        trace.tool_calls = [call for call in calls_in(messages) if call.id not in given]
    with ExitStack() as opened:
        episode.database = await in_thread(partial(_over_the_seed, task, db, opened))
        return await episode.finish(gold_db)


def _over_the_seed(task: Task, db: Database, opened: ExitStack) -> Database:
    """``db``; if it is a complete file without another base, over the row's seed."""
    if IS_BASE.match(db.base_path.name) or db.changes():
        return db
    folder = Path(opened.enter_context(TemporaryDirectory(prefix="reward-kit-")))
    task.seed.write(folder / "base.db")  # beside a complete file it is its base
    whole = opened.enter_context(Database.open(db.export(folder / "whole.db"), mode=db.mode))
    return opened.enter_context(whole.fork(hidden=task.hidden))


judge_sync = judge = sync_twin(judge_async)  # the older name is the first


async def _play(episode: Episode, agent: Agent) -> None:
    """Let agent and user take turns until one of them stops the rollout, or its time is up.

    They run in a separate task, so that one that swallows its cancellation cannot hold up the rest. While
    a model call waits for its provider, the time stands still.
    """
    name = f"{episode.row.id}, rollout {episode.index}"
    turns = asyncio.create_task(_take_turns(episode, agent), name=name)
    episode.deadline = limit = deadline.Deadline(episode.limits.timeout, turns)
    if episode.limits.caller is not None:
        episode.limits.caller.clock = limit
    either: set[asyncio.Future[Any]] = {turns, limit.passed}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not turns.done() or limit.check():
            episode.stop("infrastructure_error" if limit.is_moved_off else "timeout", limit.passed.result())
    except asyncio.CancelledError:
        episode.stop("infrastructure_error", "cancelled")
        raise
    finally:
        limit.close()
        await episode.end_calls(turns)
    if turns.cancelled() or not turns.done():
        episode.stop(_fault_of(episode.speaker), f"the {episode.speaker} cancelled the task that it runs in")
    elif (error := turns.exception()) is not None:  # KeyboardInterrupt, which ends the event loop as well
        raise error


async def _take_turns(episode: Episode, agent: Agent) -> None:
    """Play turns until the rollout has stopped; exceptions of agent and user become its stop reason."""
    try:
        await episode.start()
        while not episode.is_over:
            episode.begin_turn()
            episode.check_budget()
            episode.pending_log.clear()
            with episode.pending_log, episode.watched("the agent"):
                reply = await agent.respond(episode.rollout)
            if episode.is_over:
                return
            episode.pending_log.check()
            await episode.say(reply)
    except asyncio.CancelledError:
        raise
    except BaseException as raised:  # the border to the code of agent and user
        error = raised
        while isinstance(error, BaseExceptionGroup):  # of a TaskGroup
            error = error.exceptions[0]
        if isinstance(error, ModelError):
            refuses_conversation = isinstance(error, ModelInputError)  # which is its speakers' doing
            reason = _fault_of(episode.speaker) if refuses_conversation else "infrastructure_error"
            episode.refused = episode.refused or (error if isinstance(error, ModelSetupError) else None)
            episode.stop(reason, str(error))
        elif ends_task(error):
            raise
        elif episode.trace.stop_reason is None:
            episode.stop(_fault_of(episode.speaker), fault_line(error))
            logger.debug("the %s of %s failed", episode.speaker, episode.row.id, exc_info=error)


def _fault_of(speaker: Role) -> StopReason:
    return "agent_error" if speaker == "agent" else "user_error"


async def _close(player: Any) -> None:
    """Call the ``close`` of an agent or user, if it has one; its exceptions change nothing."""
    if hasattr(player, "close"):
        await deadline.bounded(close_quietly(player, logging.DEBUG), deadline.CANCELLATION_GRACE)


async def close_quietly(resource: Any, level: int) -> None:
    """Call the ``close`` of foreign code, sync or async, if it has one; log what it raises."""
    try:
        closing = resource.close() if hasattr(resource, "close") else None
        if inspect.isawaitable(closing):
            await closing
    except BaseException as error:  # the border to that code
        if ends_task(error):
            raise
        logger.log(level, "%s cannot be closed: %s", type(resource).__name__, fault_line(error))
