"""Episodes that begin in the middle: a recorded rollout at one of its steps, and a fork of one being played.

``Episode.from_trace``: the recorded tool calls are made again on a fresh fork of the base, and each result is
compared with the recorded one. Messages are taken from the recording: no model and no user is asked. A step
of the agent ends with what it led to: the results of its tool calls, or the user's answer to its reply. Step
0 is the state before the agent's first step.

``Episode.fork``: the database is copied on write. Messages, tool calls and model calls are never changed once
they are recorded, so both episodes refer to the same ones. A user that keeps state has methods ``recall`` and
``fork`` (docs/branch.md).
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from copy import copy
from dataclasses import replace
from importlib import import_module
from os import urandom
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import LONGEST_VALUE, copied
from reward_kit.agent.base.history import INTERRUPTED
from reward_kit.agent.base.places import PendingLog
from reward_kit.agent.base.text import apart, count, foreign_text
from reward_kit.agent.base.types import SIDES, RolloutStopped, Usage
from reward_kit.agent.bundles.task import Task
from reward_kit.agent.database.determinism import Randomness
from reward_kit.agent.rewards.checks import FINISHED
from reward_kit.agent.rollout.rollout import Rollout, UserRollout
from reward_kit.agent.rollout.trace import Fork
from reward_kit.errors import BundleError, RewardKitError, StorageError, UsageError

if TYPE_CHECKING:
    from reward_kit.agent.base.types import Message, Side, ToolCall
    from reward_kit.agent.bundles.bundle import TaskBundle
    from reward_kit.agent.rollout.episode import Episode
    from reward_kit.agent.rollout.trace import Trace

_REMEDY = (
    "A tool must take random numbers and the time from its database: SQL's random() and datetime('now'), "
    "with a `now` in the row."
)


async def from_trace(
    cls: type[Episode],
    /,
    trace: Trace,
    step: int | None = None,
    *,
    bundle: TaskBundle | Task,
    seed: int | None = None,
    tool_result: str | None = None,
    **options: Any,
) -> Episode:
    """The recorded rollout as an episode, as it was after ``step`` of its agent, which the caller closes.

    Without ``step`` it is as it was at its end, and over if the recorded one is. Database, messages,
    counters, clock and random numbers continue as they would have; with ``seed`` the random numbers from here
    on are others. What was spent counts towards the budget of the rollout, while ``usage`` and
    ``model_calls`` begin empty. ``tool_result`` replaces what the agent's model sees of the result of the
    step's only call. The ``options`` are those of ``Episode.of``, or those of an episode if ``bundle`` is the
    task.

    Raises ``BundleError`` if a tool call does not give the recorded result, ``UsageError`` for a step that
    is not there, and for a user whose state a recording does not have.
    """
    at = trace.steps if step is None else step
    if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at <= trace.steps:
        fault = f"there is no step {step!r}"
        raise UsageError(fault, place=name_of(trace), remedy=f"The rollout has steps 0 to {trace.steps}.")
    first = trace.forks[0]["seed"] if trace.forks else trace.seed
    if isinstance(bundle, Task):
        episode = cls(bundle, seed=first, **options)
    else:
        episode = cls.of(bundle, trace.row_id, rng_seed=first, **options)
    user, episode.user = episode.user, None
    replay = _Replay(trace, episode)
    with ExitStack() as opened:
        opened.callback(lambda: replay.episode.close())
        check_user(user)
        try:
            await replay.run(at, is_end=step is None)
        except (KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"is a damaged trace of a rollout: {error!r}", place=name_of(trace)) from error
        episode = replay.episode
        if tool_result is not None:
            _replace_result(episode, at, foreign_text(tool_result, LONGEST_VALUE))
        if seed is not None:
            before, episode = episode, fork(episode, seed)
            before.close()
            replay.episode = episode
        episode.trace.user = trace.user if user is None else ""  # whose faults count in its lesson
        episode.users_answers = [call.answer or "" for call in trace.model_calls if call.role == "user"]
        await _join(episode, user)
        opened.pop_all()
    return episode


def name_of(trace: Trace) -> str:
    """The name of a rollout for a person: ``EVAL ROW#1``."""
    return f"{trace.eval_id} {trace.row_id}#{trace.index + 1}".strip()


def step_of_messages(trace: Trace) -> list[int]:
    """The number of steps of the agent up to each message, that message's own included.

    Of a reply that no model call of the trace tells of, it follows from the calls around it.
    """
    made = {call.id: call for call in trace.tool_calls if call.by == "agent"}
    asked = [(call.turn, call.step) for call in trace.model_calls if call.role == "agent"]
    found, step, turn = [], 0, 1
    for number, message in enumerate(trace.messages):
        if number >= trace.opening and message["role"] == "assistant":
            if calls := message.get("tool_calls"):
                steps = [made[call["id"]].step for call in calls if call["id"] in made]
                step = max(step, max(steps, default=step + 1))
            else:
                own = [at for one, at in asked if one == turn and at > step]
                later = [call.step - 1 for call in made.values() if call.turn == turn + 1]
                at_end = trace.steps if turn == trace.turns else step + 1
                step = max(own) if own else max(step, min(later, default=at_end))
                turn += 1
        found.append(min(step, trace.steps))
    return found


def messages_until(trace: Trace, step: int) -> int:
    """The number of messages at the end of a step."""
    steps = enumerate(step_of_messages(trace))
    later = (number for number, one in steps if number >= trace.opening and one > step)
    return next(later, len(trace.messages))


CallId = tuple["Side", str]
"""A side, and the id of one of its calls."""


class _Replay:
    """Fills ``episode`` from ``trace``; a recorded change of the seed replaces it by a fork."""

    def __init__(self, trace: Trace, episode: Episode) -> None:
        self.trace, self.episode = trace, episode
        self._forks = list(trace.forks)
        self._made = {(call.by, call.id): call for call in trace.tool_calls}
        nested = made_by_tools(trace, episode.task)
        self._undone = {inner for inner, outer in nested.items() if self._made[outer].content == INTERRUPTED}
        """Calls whose changes went with those of the tool that made them."""
        self._nested = {inner: outer for inner, outer in nested.items() if inner not in self._undone}

    async def run(self, step: int, *, is_end: bool) -> None:
        trace = self.trace
        opening, cut = trace.opening, messages_until(trace, step)
        if self.episode.messages != trace.messages[:opening]:
            fault = "its row begins with other messages now, so that it cannot be restored"
            raise BundleError(fault, place=name_of(trace))
        most, self.episode.max_steps = self.episode.max_steps, sys.maxsize
        given = {place: len(own) for place, own in self.episode.trace.user_messages.items()}
        for place in range(opening, cut + 1):
            for message in trace.user_messages.get(place, [])[given.get(place, 0) :]:
                await self._take(message, "user")
            if place < cut:
                await self._take(trace.messages[place], "agent")
        self._change_seeds(cut)
        self.episode.max_steps = most
        self._count(step, trace.messages[opening:cut])
        if is_end or (step == trace.steps and trace.stop_reason in FINISHED):
            self.episode.trace.stop_reason = trace.stop_reason
            self.episode.trace.stop_detail = trace.stop_detail

    def _change_seeds(self, messages: int) -> None:
        """Change the seed as it was changed up to here, ``messages`` being the number of those."""
        now = self.episode.trace
        while (
            self._forks
            and self._forks[0]["calls"] <= len(now.tool_calls)
            and self._forks[0]["messages"] <= messages
        ):
            place = self._forks.pop(0)
            before = self.episode
            self.episode = fork(before, self._forks[0]["seed"] if self._forks else self.trace.seed)
            self.episode.trace.forks[-1] = place
            before.close()

    async def _take(self, message: Message, by: Side) -> None:
        history = self.episode.history_of(by)
        if message["role"] == "tool":
            await self._answer(message, by)
        elif calls := message.get("tool_calls"):
            own = [call for call in calls if (by, call["id"]) not in self._nested]
            ids = {(by, call["id"]) for call in calls}
            # an outer call that was announced has the calls of its tool in its message
            late = any(outer in ids and inner not in ids for inner, outer in self._nested.items())
            if own and not late:
                history.announce({**message, "tool_calls": own})
        else:
            history.say("user" if message["role"] == "user" else "agent", copied(message))

    async def _answer(self, message: Message, by: Side) -> None:
        """Make the call whose result ``message`` is."""
        call_id = message["tool_call_id"]
        made = self._made.get((by, call_id))
        if (by, call_id) in self._nested:
            return
        self._change_seeds(len(self.trace.messages))
        episode = self.episode
        if made is None or made.content == INTERRUPTED or (by, call_id) in self._undone:
            episode.history_of(by).observe(call_id, message["content"])
            episode.trace.tool_calls += [] if made is None else [copy(made)]
            return
        episode.turn_has_steps = self._has_steps(made.turn)
        episode.trace.turns, episode.turn_is_open = made.turn, True
        episode.trace.steps = made.step - (by == "agent" and not episode.turn_has_steps)  # counts as one
        with suppress(RolloutStopped):
            await episode.call(made.name, copied(made.arguments), call_id=call_id, by=by)
        now = episode.trace.tool_calls[-1]
        if (now.content, now.status) != (made.content, made.status):
            raise self._different(made, now)
        seen = episode.history_of(by).messages
        if seen[-1]["content"] != message["content"]:  # it was replaced
            seen[-1] = copied(message)

    def _different(self, made: ToolCall, now: ToolCall) -> BundleError:
        both = apart(made.content, now.content)
        if made.content == now.content:
            both = made.status, now.status
        return BundleError(
            f"the tool {made.name} is not repeatable: call {made.index + 1} gave {both[0]!r} when it was "
            f"recorded, and {both[1]!r} now",
            place=name_of(self.trace),
            remedy="The rollout is stored without its secrets." if self.trace.redacted else _REMEDY,
        )

    def _count(self, step: int, messages: list[Message]) -> None:
        """Set the counters and the usage before the episode."""
        episode, trace = self.episode, self.trace
        own = [message for message in messages if message["role"] == "assistant"]
        replies = sum(not message.get("tool_calls") for message in own)
        is_open = bool(own) and bool(own[-1].get("tool_calls"))
        turns = trace.turns if step == trace.steps else replies + is_open
        episode.trace.steps, episode.trace.turns = step, turns
        episode.turn_is_open = turns > replies
        episode.turn_has_steps = self._has_steps(turns)
        episode.trace.sent_back = {turn: line for turn, line in trace.sent_back.items() if turn <= replies}
        episode.spent_before = Usage()
        for call in trace.model_calls:
            if call.step <= step and call.role != "judge":
                episode.spent_before.add(call.usage)

    def _has_steps(self, turn: int) -> bool:
        """True if not each call of a turn counted as a step, but each answer of a model."""
        steps = [call.step for call in self.trace.tool_calls if call.turn == turn and call.by == "agent"]
        asked = (call.turn for call in self.trace.model_calls if call.role == "agent")
        return turn in asked or len({*steps}) < len(steps)


def made_by_tools(trace: Trace, task: Task) -> dict[CallId, CallId]:
    """The calls that a tool made while it ran, each with the tool's own: it will make them again."""
    calling = {
        (by, name)
        for by in SIDES
        for name, tool in task.registry_of(by).tools.items()
        if "rollout" in tool.injected
    }
    outer = [call for call in trace.tool_calls if (call.by, call.name) in calling]
    return {
        (call.by, call.id): (one.by, one.id)
        for one in outer
        for call in trace.tool_calls[: one.index]
        if call.by == one.by and call.started >= one.started
    }


def _replace_result(episode: Episode, step: int, text: str) -> None:
    calls = [call for call in episode.trace.tool_calls if call.step == step and call.by == "agent"]
    if len(calls) != 1:
        fault = f"step {step} makes {count(len(calls), 'tool call')}, and the result of one can be replaced"
        raise UsageError(fault, place=episode.row.id, remedy="Name a step with one tool call.")
    messages = episode.messages
    at = next(at for at, one in enumerate(messages) if one.get("tool_call_id") == calls[0].id)
    messages[at] = {**messages[at], "content": text}


def check_user(user: Any) -> None:
    """Raise ``UsageError`` for a user that keeps state and cannot take over a recording."""
    user = getattr(user, "_player", user)  # of one that plays all rollouts
    if user is None or callable(getattr(user, "recall", None)):
        return
    kind = type(user)
    if getattr(user, "__dict__", None) and kind.__module__.partition(".")[0] != __name__.partition(".")[0]:
        raise UsageError(
            f"the user {kind.__name__} keeps state, which a recording does not have",
            remedy="Give it a method `def recall(self, rollout)`, which sets its state from the conversation "
            "so far (rollout.lines), or take another user: --user llm.",
        )


async def _join(episode: Episode, user: Any) -> None:
    """Make ``user`` the user of the episode, and give it the lines until now."""
    wrappers = import_module("reward_kit.agent.players.wrappers")  # players build on rollouts
    with wrappers.foreign_code(f"{type(user).__name__}.recall() raised", None):
        await wrappers.call_hook(user, "recall", episode.user_rollout)
    episode.user = user


def draw_as_in(trace: Trace, episode: Episode) -> None:
    """Let an episode that begins draw the random numbers of ``trace``, in which the seed was changed."""
    numbers: Randomness | None = None
    seeds = [*(place["seed"] for place in trace.forks), trace.seed]
    draws = [0, *(place.get("draws", 0) for place in trace.forks)]
    for seed, drawn in zip(seeds, draws, strict=True):
        numbers = Randomness(seed, 0, numbers, drawn)
    assert episode.base is not None, "of an evaluation"
    episode.database.close()
    episode.random_numbers, episode.trace.forks = numbers, list(trace.forks)
    episode.database = episode.base.fork(seed=numbers, now=episode.row.clock(), hidden=episode.task.hidden)


# -- forks of a rollout that is played


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
        drawn = episode.database.draws
        twin.trace.forks.append(Fork(messages=place[0], calls=place[1], seed=place[2], draws=drawn))
        twin.first_seed = twin.trace.seed = seed
        twin.random_numbers = twin.database.randomness
    twin.rollout, twin.user_rollout = Rollout(twin), UserRollout(twin)
    twin.pending_log, twin.in_flight, twin.asking = PendingLog(), [], []
    twin.undecoded = list(episode.undecoded)
    twin.deadline = None
    if (tools := episode.own_tools) is not None:
        twin.own_tools = None if tools == episode.task.registry.openai_tools else copied(tools)
    return twin


def _forked_trace(trace: Trace, twin: Episode) -> Trace:
    faults = trace.tool_faults
    forked = replace(
        trace,
        id=urandom(16).hex(),
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
