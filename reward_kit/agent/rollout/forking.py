"""``Episode.fork``: a copy of a rollout while it is played, independent of its origin.

The database is copied on write. Messages, tool calls and model calls are never changed once they are
recorded, so both episodes refer to the same ones. A user that keeps state has a method ``fork``::

    class Counting:
        def __init__(self, said=0):
            self.said = said

        async def respond(self, rollout):
            self.said += 1
            return f"Line {self.said}"

        def fork(self):
            return Counting(self.said)
"""

from __future__ import annotations

import uuid
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import copied
from reward_kit.agent.base.places import PendingLog
from reward_kit.agent.rollout.rollout import Rollout, UserRollout
from reward_kit.agent.rollout.trace import Fork
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from reward_kit.agent.rollout.episode import Episode
    from reward_kit.agent.rollout.trace import Trace


def fork(episode: Episode, seed: int | None = None) -> Episode:
    """Return an independent copy of the episode as it is now, which the caller closes.

    Copied are the database, the history, the trace with its counters, the clock, the random numbers and the
    user. With ``seed`` the random numbers from here on are other ones, and models get that seed. May be
    called from any thread while nothing runs in the episode. Raises ``RewardKitError`` during a tool call,
    and for a user that has no ``fork()``.
    """
    if any(task is not None for task in episode.in_flight):
        raise RewardKitError("a tool call runs in the episode", remedy="Fork it after the call.")
    user = _forked_user(episode.user)
    twin = copy(episode)
    twin.user = user
    twin.database = episode.database.fork(seed=seed)
    twin.history, twin.user_history = episode.history.fork(), episode.user_history.fork()
    twin.trace = _forked_trace(episode.trace, twin)
    if seed is not None:
        place = len(twin.messages), len(twin.trace.tool_calls), twin.seed
        twin.trace.forks.append(Fork(messages=place[0], calls=place[1], seed=place[2]))
        twin.first_seed = twin.trace.seed = seed
        twin.random_numbers = twin.database.randomness
    twin.rollout, twin.user_rollout = Rollout(twin), UserRollout(twin)
    twin.pending_log, twin.in_flight = PendingLog(), []
    twin.undecoded = list(episode.undecoded)
    twin.deadline = None
    if (tools := episode.own_tools) is not None:
        twin.own_tools = None if tools == episode.task.registry.openai_tools else copied(tools)
    return twin


def _forked_trace(trace: Trace, twin: Episode) -> Trace:
    faults = trace.tool_faults
    forked = replace(
        trace,
        id=uuid.uuid4().hex,
        messages=twin.history.messages,
        tool_calls=list(trace.tool_calls),
        model_calls=list(trace.model_calls),
        usage={role: copy(usage) for role, usage in trace.usage.items()},
        tool_faults=None if faults is None else {tool: dict(fault) for tool, fault in faults.items()},
        sent_back=dict(trace.sent_back),
        forks=list(trace.forks),
        user_messages={place: list(lines) for place, lines in trace.user_messages.items()},
    )
    forked.given, forked.lines = trace.given, twin.history.lines
    return forked


def _forked_user(user: Any) -> Any:
    if user is None:
        return None
    own = getattr(user, "fork", None)
    if not callable(own):
        name = type(user).__name__
        remedy = "Give it a method `def fork(self)` that returns an independent copy of it."
        raise RewardKitError(f"the episode cannot be forked: its user {name} has no fork()", remedy=remedy)
    forked = own()
    if not callable(getattr(forked, "respond", None)):
        raise RewardKitError(f"{type(user).__name__}.fork() returned {forked!r}, which is no user")
    return forked
