"""One rollout from start to reward: fork the base, let agent and user take turns, judge."""

from __future__ import annotations

import asyncio
import inspect
import logging
import reprlib
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from time import time as unix_time
from typing import TYPE_CHECKING, Any

from reward_kit.agent.bundles.awaits import Awaits
from reward_kit.agent.bundles.loop_guard import guarded_task, loop_kept_running
from reward_kit.agent.calls import ModelCall, ToolCall
from reward_kit.agent.completion import MOST_STEPS, Usage, check_number
from reward_kit.agent.deadline import Deadline
from reward_kit.agent.faults import fault_line
from reward_kit.agent.gold import replay_gold
from reward_kit.agent.history import History, Line
from reward_kit.agent.interruption import is_ctrl_c
from reward_kit.agent.judge import judge
from reward_kit.agent.limits import CANCELLATION_GRACE
from reward_kit.agent.outcome import UNJUDGED_STOPS
from reward_kit.agent.reward_retries import judged_with_retries
from reward_kit.agent.rollout import Role, Rollout, RolloutLimits, StopReason
from reward_kit.agent.tools.execution import is_cancelled
from reward_kit.errors import ModelError, ModelInputError, ModelSetupError, RewardError, SimulatedUserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Set

    from reward_kit.agent.agents import Agent
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.completion import Model
    from reward_kit.agent.database import Changes, Database
    from reward_kit.agent.users import User
    from reward_kit.models import EvaluateResult, RewardOutput

__all__ = ["FinishedRollout", "RolloutLimits", "judged", "run_rollout"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class FinishedRollout:
    """A rollout that is over.

    ``reward`` is None where it was not judged: after ``user_error`` and ``infrastructure_error``, or because
    the reward failed, which ``error`` then tells. ``started`` is in Unix seconds. ``database`` is the final
    state, still open: the caller closes it. ``gold`` are the changes that the row's actions make.
    ``setup_error`` is set where a model refused this configuration (key, name): every other rollout would
    meet the same.
    """

    rollout: Rollout
    reward: float | None
    result: EvaluateResult | RewardOutput | None
    error: str | None
    started: float
    seconds: float
    database: Database
    gold: Changes | None
    setup_error: ModelSetupError | None = None


async def run_rollout(
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
) -> FinishedRollout:
    """Play rollout ``index`` of ``task`` on a fork of ``base``, and judge it.

    Faults of agent, user, models and reward are told in the result and never raised; what is raised are
    faults of ``base`` (``DatabaseError``) or of the disk (``StorageError``), and cancellation. Without
    ``gold_database`` a row's actions are replayed here, with the rollout's seed.
    """
    limits = limits or RolloutLimits()
    started = unix_time()
    clock = perf_counter()
    database = base.fork(seed=seed, now=task.row.clock())
    own_gold: Database | None = None
    try:
        rollout = Rollout(task, index, database=database, models=models, limits=limits, seed=seed)
        try:
            setup_error = await _play(rollout, agent, user, limits.timeout)
        finally:
            await _let_go(agent, user)
        if not database.is_idle:  # a tool did not heed its end: others need the database
            await database.break_off()
        database.check()
        if gold_database is None and task.row.actions is not None:
            gold_database = own_gold = await replay_gold(task, base, seed=seed)
        result, error = await judged(rollout, gold_database, limits)
        gold = gold_database.changes() if gold_database is not None else None
    except BaseException:
        database.close()
        raise
    finally:
        if own_gold is not None:
            own_gold.close()
    return FinishedRollout(
        rollout=rollout,
        reward=None if result is None else float(result.score),
        result=result,
        error=error,
        started=started,
        seconds=perf_counter() - clock,
        database=database,
        gold=gold,
        setup_error=setup_error,
    )


async def _play(
    rollout: Rollout, agent: Agent, user: User | None, timeout: float | None
) -> ModelSetupError | None:
    """Let the episode run until someone stops it or its time is up, or that of a tool which does not end.

    It runs in a task of its own, so that an agent that swallows its cancellation cannot hold up the rest.
    While a model call waits for its provider (``providers``), the time stands still.
    """
    deadline = Deadline(timeout)
    given = {name: getattr(rollout, name) for name in _GIVEN}
    names = frozenset(rollout.__dict__)
    rollout.task = rollout.task.copied()
    with deadline.applied(), loop_kept_running():
        episode = guarded_task(_episode(rollout, agent, user))
    either: set[asyncio.Future[Any]] = {episode, deadline.passed}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not episode.done():
            rollout.stop("timeout", deadline.passed.result())
            episode.cancel()
            await asyncio.wait({episode}, timeout=CANCELLATION_GRACE)
    except asyncio.CancelledError:
        rollout.stop("infrastructure_error", "cancelled")
        episode.cancel()
        await asyncio.wait({episode}, timeout=CANCELLATION_GRACE)
        _mend(rollout, given, names)
        await rollout.finish()
        raise
    finally:
        deadline.close()
    _mend(rollout, given, names)
    await rollout.finish()
    if not episode.done():
        return rollout.refused
    if episode.cancelled():
        return rollout.refused
    if (broken := episode.exception()) is not None:
        rollout.stop("agent_error", fault_line(broken))
        return rollout.refused
    return episode.result() or rollout.refused


_GIVEN = ("id", "task", "index", "seed", "database", "models")
"""What a rollout has from its start to its end; but while it is played, the task is a copy."""


def _mend(rollout: Rollout, given: Mapping[str, Any], names: Set[str]) -> None:
    """Put right what an agent, a user or a tool has made of the rollout, which they hold as it is.

    What they have replaced by something that cannot be judged or written down begins anew, and is told.
    ``given`` are the attributes that do not change, ``names`` those of all.
    """
    if rollout.__class__ is not Rollout:
        rollout.__class__ = Rollout
    rollout.__dict__.update(given)
    detail = rollout.__dict__.get("stop_detail")
    if detail is not None and not isinstance(detail, str):
        rollout.stop_detail = reprlib.repr(detail)  # an exception, for instance
    broken = {name for name, is_sound in _SOUND.items() if not is_sound(rollout.__dict__.get(name))}
    broken |= names - rollout.__dict__.keys()
    if not broken:
        return
    fresh = Rollout(rollout.task, rollout.index, database=rollout.database)
    for name in broken:
        setattr(rollout, name, getattr(fresh, name))
    rollout.stop_reason, rollout.stop_detail = None, None
    whose = ", ".join(sorted(broken))
    rollout.stop("agent_error", f"the agent, the user or a tool broke the rollout's own {whose}")


def _are(values: object, kind: type) -> bool:
    if not isinstance(values, list):
        return False
    return {*map(type, values)} <= {kind} or all(isinstance(value, kind) for value in values)


def _is_history(value: object) -> bool:
    return (
        isinstance(value, History)
        and _are(value.messages, dict)
        and all("role" in message for message in value.messages)
        and _are(value.lines, Line)
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= MOST_STEPS


def _is_sound_usage(value: object) -> bool:
    if not isinstance(value, Usage):
        return False
    try:
        value.check()
    except TypeError:
        return False
    return True


def _is_sound_call(call: ModelCall) -> bool:
    try:
        check_number("seconds", call.seconds)
        check_number("waited", call.waited)
    except TypeError:
        return False
    return _is_sound_usage(call.usage)


_SOUND: Mapping[str, Callable[[Any], bool]] = {
    "history": _is_history,
    "tool_calls": lambda value: _are(value, ToolCall),
    "model_calls": lambda value: _are(value, ModelCall) and all(map(_is_sound_call, value)),
    "tool_faults": lambda value: _are(value, tuple),
    "usage": lambda value: isinstance(value, dict) and all(map(_is_sound_usage, value.values())),
    "steps": _is_count,
    "turns": _is_count,
    "stop_reason": lambda value: value is None or isinstance(value, str),
    "refused": lambda value: value is None or isinstance(value, ModelSetupError),
}
"""Whether an attribute of a rollout is of its kind."""


async def _episode(rollout: Rollout, agent: Agent, user: User | None) -> ModelSetupError | None:
    """Turns until the rollout has stopped; a model's refusal of its set-up is returned."""
    speaker: Role = "agent"
    try:
        if user is not None and (not rollout.lines or rollout.lines[-1].speaker != "user"):
            speaker = "user"
            await _hear(rollout, user)
        while rollout.stop_reason is None:
            speaker = "agent"
            rollout.begin_turn()
            with Awaits(all_of_it=False) as awaits:
                reply = await agent.respond(rollout)
            if rollout.stop_reason is not None:
                break
            awaits.check(agent.respond)
            rollout.reply(reply)
            if user is None:
                rollout.stop("agent_done")
                break
            speaker = "user"
            await _hear(rollout, user)
    except KeyboardInterrupt:
        raise
    except asyncio.CancelledError as error:  # where it is a person's or the time's, the rollout has stopped
        fault = "a task cancelled the one that it runs in" if is_cancelled() else fault_line(error)
        rollout.stop("agent_error" if speaker == "agent" else "user_error", fault)
        raise
    except ModelError as error:
        rollout.stop(_reason_of(error, speaker), str(error))
        return error if isinstance(error, ModelSetupError) else None
    except BaseException as error:
        if rollout.stop_reason is None:
            rollout.stop("agent_error" if speaker == "agent" else "user_error", fault_line(error))
            logger.debug("the %s of %s failed", speaker, rollout.row.id, exc_info=error)
    return None


async def _let_go(*players: Agent | User | None) -> None:
    """Tell agent and user that the rollout is over, if they want to know; what they raise changes nothing."""
    for player in players:
        if player is None or not _has_close(player):
            continue
        with loop_kept_running():
            closing = guarded_task(_closed(player))
        closing.add_done_callback(_seen)
        try:
            await asyncio.wait({closing}, timeout=CANCELLATION_GRACE)
        finally:
            closing.cancel()
        await asyncio.wait({closing}, timeout=CANCELLATION_GRACE)


def _has_close(player: Agent | User) -> bool:
    try:
        return getattr(player, "close", None) is not None
    except (Exception, SystemExit):  # noqa: BLE001 - the border to the player's own code
        return False


def _seen(task: asyncio.Task[None]) -> None:
    """What it raised is told elsewhere: KeyboardInterrupt ends the event loop."""
    if not task.cancelled():
        task.exception()


async def _closed(player: Any) -> None:
    """Runs in a task of its own, which a player may cancel or keep from ending."""
    try:
        closing = player.close()
        if inspect.isawaitable(closing):
            await closing
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        logger.debug("%s.close() failed", type(player).__name__, exc_info=error)


async def _hear(rollout: Rollout, user: User) -> None:
    with Awaits(all_of_it=False) as awaits:
        line = await user.respond(rollout)
    if rollout.stop_reason is not None:
        return
    awaits.check(user.respond)
    if not isinstance(line, str) or not line.strip():
        raise SimulatedUserError(f"the user said {line!r}, not a line of text")
    rollout.hear(line)


def _reason_of(error: ModelError, speaker: Role) -> StopReason:
    """A conversation that a model will not take is its speakers' doing; all else is the surroundings'."""
    if isinstance(error, ModelInputError):
        return "agent_error" if speaker == "agent" else "user_error"
    return "infrastructure_error"


async def judged(
    rollout: Rollout, gold_database: Database | None, limits: RolloutLimits
) -> tuple[EvaluateResult | RewardOutput | None, str | None]:
    """What the reward returned, or why there is nothing; None and None where it is not asked."""
    if rollout.stop_reason in UNJUDGED_STOPS:
        return None, None
    judging = partial(judge, rollout, gold_database=gold_database, timeout=limits.reward_timeout)
    try:
        return await judged_with_retries(judging, limits.reward_retries), None
    except RewardError as error:
        logger.debug("the reward of %s failed", rollout.row.id, exc_info=error)
        return None, f"{error}"
