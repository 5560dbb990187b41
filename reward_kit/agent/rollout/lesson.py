"""``Episode.lesson``: the reward of a rollout for a trainer, or None if it says nothing about the agent."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.types import UNJUDGED_STOPS
from reward_kit.agent.rollout.gold import replay_gold_calls
from reward_kit.agent.rollout.outcome import REWARD_ERROR
from reward_kit.errors import ModelError, ModelInputError, RewardError, StorageError

if TYPE_CHECKING:
    from types import TracebackType

    from reward_kit.agent.rollout.episode import Episode
    from reward_kit.agent.rollout.trace import Trace


async def lesson(episode: Episode) -> tuple[float | None, str]:
    """End the episode; return its reward and a short reason. A trainer leaves out a reward of None.

    It is None if nothing could be judged (``user_error``, ``infrastructure_error``, ``reward_error``), and
    if the rollout failed and a fault of the simulated user may explain that.
    """
    trace = episode.trace
    if trace.stop_reason is None and episode.speaker == "user":
        last = trace.model_calls[-1] if trace.model_calls else None
        if last is not None and last.role == "user" and last.error is not None:
            episode.stop("infrastructure_error", last.error)
        else:
            episode.stop("user_error", "the simulated user failed")
    try:
        if trace.stop_reason in UNJUDGED_STOPS:
            await episode.settle()
            return None, f"{trace.stop_reason}: {trace.stop_detail}"
        if trace.reward is None:
            await episode.finish()
        if (episode.user is not None or trace.user) and not trace.success:
            await _classify(episode)
    except RewardError as error:
        return None, f"{REWARD_ERROR}: {error}"
    except StorageError as error:
        return None, f"infrastructure_error: {error}"
    return lesson_of(trace)


def lesson_of(trace: Trace) -> tuple[float | None, str]:
    """The reward of a rollout that was judged and classified, None to leave it out, and a short reason."""
    failure = trace.failure
    if failure is not None and failure["kind"] in UNJUDGED_STOPS:
        return None, f"{failure['kind']}: {failure['detail']}"
    return trace.reward, str((trace.result or {}).get("reason") or trace.verdict)


async def _classify(episode: Episode) -> None:
    """Set the ``user_faults`` and the ``failure`` of the trace, as an evaluation does."""
    trace, gold = episode.trace, None
    scoring = import_module("reward_kit.agent.scoring.failures.classify")  # which builds on rollouts
    trace.user = trace.user or import_module("reward_kit.agent.players.names").name_of(episode.user)
    with ExitStack() as opened:
        if episode.row.actions is not None and episode.base is not None:
            seed = episode.random_numbers or trace.seed
            gold = await replay_gold_calls(episode.task, episode.base, seed=seed)
            opened.enter_context(gold.database)
        scoring.classify_played(trace, episode.task, episode.changes(), gold)


class EndedByUser(AbstractContextManager[Any, bool]):
    """Ends the episode if its user fails in a ``with`` block of this; nothing is raised then."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or self._episode.speaker != "user":
            return False
        is_refused = isinstance(error, ModelError) and not isinstance(error, ModelInputError)
        text = str(error) if isinstance(error, ModelError) else fault_line(error)
        self._episode.stop("infrastructure_error" if is_refused else "user_error", text)
        return True
