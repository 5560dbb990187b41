"""``Episode``: one rollout while it is played, driven by hand (docs/python.md) or by the orchestrator.

Each ``async`` method has a twin ``..._sync`` for code without an event loop.
"""

from __future__ import annotations

import asyncio
import reprlib
from contextlib import suppress
from importlib import import_module
from os import urandom
from time import time as unix_time
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.deadline import Deadline, TimeLimit, end_tasks
from reward_kit.agent.base.encoding import LONGEST_VALUE, copied, plain
from reward_kit.agent.base.files import Closing
from reward_kit.agent.base.history import History
from reward_kit.agent.base.places import PendingLog
from reward_kit.agent.base.text import foreign_text, names_of_own_tools
from reward_kit.agent.base.types import RolloutStopped, Usage, check_one_of
from reward_kit.agent.base.worker_thread import sync_twin
from reward_kit.agent.bundles.task import SOLO, base_of, solo_task, task_of
from reward_kit.agent.models.function import checked_models
from reward_kit.agent.rollout import calls, replaying
from reward_kit.agent.rollout.lesson import lesson as lesson_of
from reward_kit.agent.rollout.rollout import Rollout, RolloutLimits, UserRollout, Watch
from reward_kit.agent.rollout.trace import Trace
from reward_kit.agent.rows.field_checks import split_opening
from reward_kit.errors import ModelSetupError, RewardKitError, SimulatedUserError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reward_kit.agent.base.history import Line
    from reward_kit.agent.base.types import (
        Message,
        Model,
        ModelCall,
        Role,
        Side,
        StopReason,
        ToolCall,
        Violations,
    )
    from reward_kit.agent.bundles.bundle import TaskBundle
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.database import Changes, Database
    from reward_kit.agent.database.determinism import Randomness
    from reward_kit.agent.players.users import User
    from reward_kit.agent.rows.task_row import TaskRow


def _of_trace(name: str) -> Any:
    """An attribute of the trace."""
    return property(lambda episode: getattr(episode.trace, name))


class Episode(Closing):
    """One attempt at a task while it is played: its ``trace``, its database, and all that can be done in it.

    ``base`` is the seeded database that is forked at the beginning and by ``reset``; ``database`` is a state
    to play on instead. Without a ``user`` the first reply ends the episode. ``models`` are needed only for
    ``complete`` and for users that ask one. ``seed`` decides the random numbers of the tools and is handed to
    models. ``rollout`` is the handle for the agent and the tools, ``user_rollout`` that of the user.
    ``speaker`` acts just now, and is at fault for an exception. ``refused`` is set if a model refused this
    configuration (key, name): every other rollout would meet the same.
    """

    def __init__(
        self,
        task: Task,
        index: int = 0,
        *,
        base: Database | None = None,
        database: Database | None = None,
        user: User | None = None,
        models: Mapping[Role, Model] | None = None,
        limits: RolloutLimits | None = None,
        seed: int = 0,
    ) -> None:
        self.task = task
        self.base = base
        self.user = user
        self.models: Mapping[Role, Model] = models or {}
        self.limits = limits = limits or RolloutLimits()
        self.max_steps = limits.max_steps if limits.max_steps is not None else task.row.max_steps
        self.parallel_tool_calls = limits.parallel_tool_calls and task.registry.parallel_tool_calls
        self.after_call = task.after_call
        self.deadline: Deadline | None = None
        self.make_user: Callable[[], User] | None = None
        self.owner: Any = None
        """Kept as long as the episode: the bundle it was opened from."""
        self._index, self.first_seed = index, seed
        self._begin(database if database is not None else self._forked())

    @classmethod
    def of(cls, bundle: TaskBundle, row: str | int | Task, *, rng_seed: int = 0, **options: Any) -> Episode:
        """An episode of a bundle's ``row`` (its id, its position or its task), which the caller closes.

        ``rng_seed`` decides the random numbers of its tools; the ``options`` are those of an episode, and
        ``mode="solo"``, in which no user takes part.
        ``models`` may be functions, ``user`` a name, class or function; with a model of the role "user", a
        row with a ``sim_user_prompt`` has the user ``llm``. Raises ``UsageError`` if the bundle has no such
        row, ``BundleError`` for a faulty seed or an unknown user.
        """
        task = task_of(bundle, row)
        if (mode := options.pop("mode", None) or bundle.read.mode) is not None:
            check_one_of("mode", mode, (SOLO,))
            task = solo_task(task)
            if options.get("user") is not None:
                raise UsageError(f'mode="{SOLO}" has no user', remedy="Leave user= or mode= out.")
        models = options["models"] = checked_models(options.get("models") or {})
        by_default = "llm" if "user" in models and task.row.sim_user_prompt is not None else None
        user, make_user = options.get("user", by_default), None
        if user is not None and (isinstance(user, type) or not hasattr(user, "respond")):
            loading = import_module("reward_kit.agent.players.names")  # players build on rollouts
            make_user = loading.load_user(user)
            options["user"] = make_user()
        episode = cls(task, base=base_of(bundle, task), seed=rng_seed, **options)
        episode.owner, episode.make_user = bundle, make_user
        return episode

    def _forked(self) -> Database:
        if self.base is None:
            raise RewardKitError("the episode has no base database", remedy="Give Episode(..., base=...).")
        return self.base.fork(seed=self.first_seed, now=self.task.row.clock(), hidden=self.task.hidden)

    def _begin(self, database: Database) -> None:
        row = self.task.row
        self.database = database
        prompt = self.task.system_prompt
        opening: list[Message] = [] if prompt is None else [{"role": "system", "content": prompt}]
        seen, own = split_opening(copied(row.initial_messages))
        self.history = History(opening + seen)
        self.user_history = History(message for messages in own.values() for message in messages)
        self.trace = trace = Trace(
            id=urandom(16).hex(),
            row_id=row.id,
            index=self._index,
            seed=self.first_seed,
            messages=self.history.messages,
            user_messages={place + len(opening): messages for place, messages in own.items()},
            usage={"agent": Usage(), "user": Usage()},
            started=unix_time(),
        )
        trace.given = row
        trace.lines = self.history.lines
        self.speaker: Role = "agent"
        self.refused: ModelSetupError | None = None
        self.random_numbers: Randomness | None = None
        """Those of the gold actions, if a fork has changed the seed."""
        self.spent_before = Usage()  # by the recorded rollout that it continues
        self.users_answers: list[str] = []  # of the model of that rollout's user
        self.gold_fault: str | None = None  # of the first gold action that cannot be made as it is written
        self.pending_log = PendingLog()
        self.rollout = Rollout(self)
        self.user_rollout = UserRollout(self)
        self.undecoded: list[tuple[ToolCall, Changes | None]] = []
        self.own_tools: list[dict[str, Any]] | None = None
        self.turn_is_open = False
        self.turn_has_steps = False
        self.in_flight: list[asyncio.Task[Any] | None] = []
        self.asking: list[asyncio.Task[Any] | None] = []

    def reset(self) -> list[Message]:
        """Begin anew on a fresh fork of the base; returns the messages that the row begins with."""
        database = self._forked()
        self.database.close()
        if self.make_user is not None:  # one that keeps state begins anew
            self.user = self.make_user()
        self._begin(database)
        return self.messages

    fork = replaying.fork
    from_trace = classmethod(replaying.from_trace)
    # --- what there is to see

    id: str = _of_trace("id")
    index: int = _of_trace("index")
    seed: int = _of_trace("seed")
    steps: int = _of_trace("steps")
    turns: int = _of_trace("turns")
    stop_reason: StopReason | None = _of_trace("stop_reason")
    stop_detail: str | None = _of_trace("stop_detail")
    messages: list[Message] = _of_trace("messages")
    """The history in the OpenAI format, always valid for strict providers; only to be read."""
    lines: list[Line] = _of_trace("lines")
    """The lines that agent and user have said aloud, in order."""
    model_calls: list[ModelCall] = _of_trace("model_calls")
    usage: dict[Role, Usage] = _of_trace("usage")
    violations: Violations | None = _of_trace("violations")

    @property
    def row(self) -> TaskRow:
        """The row that is played."""
        return self.task.row

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls in the order in which they ended; here their row changes are decoded."""
        while self.undecoded:
            call, changes = self.undecoded.pop()
            call.changes = [] if changes is None else changes.to_json()
        return self.trace.tool_calls

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools in the OpenAI format: the episode's own list, which ``complete`` offers the agent."""
        if self.own_tools is None:
            self.own_tools = self.task.registry.get_openai_tools()
        return self.own_tools

    @tools.setter
    def tools(self, tools: list[dict[str, Any]]) -> None:
        self.own_tools = calls.listed("tools", tools)

    @property
    def is_over(self) -> bool:
        """True if the episode has stopped, or its time is over, which then ends it."""
        if self.trace.stop_reason is not None:
            return True
        return self.deadline is not None and self.deadline.check()

    def changes(self) -> Changes:
        """The rows that differ from the base."""
        return self.database.changes()

    def history_of(self, by: Side) -> History:
        """The messages that a side's tool calls are recorded in; the user's are those of this moment."""
        if by == "agent":
            return self.history
        self.user_history.messages = self.trace.user_messages.setdefault(len(self.messages), [])
        return self.user_history

    # --- turns, steps and the end

    def check_running(self) -> None:
        """Raise ``RolloutStopped`` if the episode is over."""
        if self.trace.stop_reason is not None:
            raise RolloutStopped(self.trace.stop_reason)

    def begin_turn(self) -> None:
        """Count the agent's next turn, unless it has begun."""
        if not self.turn_is_open:
            self.turn_is_open = True
            self.turn_has_steps = False
            self.trace.turns += 1

    def check_budget(self) -> None:
        if (budget := self.limits.budget) is not None:
            used = (*self.trace.usage.values(), self.spent_before)
            cost = sum(usage.cost for usage in used)
            tokens = sum(usage.input_tokens + usage.output_tokens for usage in used)
            if (used_up := budget.used_up(cost, tokens)) is not None:
                self.stop("budget", used_up)
                self.check_running()

    def stop(self, reason: StopReason, detail: str | None = None) -> None:
        """End the episode; the first reason stays."""
        if self.trace.stop_reason is None:
            self.trace.stop_reason = reason
            self.trace.stop_detail = None if detail is None else foreign_text(detail)

    def watched(self, name: str) -> TimeLimit:
        """Note a fault if code of ``name`` in a ``with`` block of this blocks the event loop."""
        return Watch(self.trace, name)

    # --- what agent and user do

    @property
    def user_opens(self) -> bool:
        """True if there is a user, who speaks next."""
        return self.user is not None and not (self.lines and self.lines[-1].speaker == "user")

    async def start(self) -> str | None:
        """Let the user speak first, if there is one and the row does not begin with a line of theirs.

        Returns the user's line, or None.
        """
        return await self._hear(self.user) if self.user is not None and self.user_opens else None

    step = calls.begin_step
    count_call = calls.count_call
    call = calls.call
    content_of_call = calls.content_of_call
    complete = calls.complete
    count_model_call = calls.count_model_call

    async def say(self, reply: str | Message) -> str | None:
        """Append the agent's reply and return the user's next line; None if the episode is over.

        Raises ``AgentError`` for a reply with nothing to say, ``SimulatedUserError`` or ``ModelError`` if the
        user fails.
        """
        self.check_running()
        self.reply(reply)
        if self.user is None:
            self.stop("agent_done")
            return None
        line = await self._hear(self.user)
        return None if self.trace.stop_reason is not None else line

    def reply(self, message: str | Message) -> None:
        """Append the agent's reply and end its turn; in a turn without a model call that is a step."""
        self.count_call()
        self.history.reply(message)
        self.turn_is_open = False

    async def _hear(self, user: User) -> str | None:
        self.speaker = "user"
        line, trace = None, self.trace
        with self.pending_log, self.watched("the user"), suppress(RolloutStopped):
            line = await user.respond(self.user_rollout)
        self.user_history.answer_open_calls()
        if self.trace is not trace or self.is_over:  # another began meanwhile
            return None
        self.pending_log.check()
        if not isinstance(line, str) or not line.strip():
            raise SimulatedUserError(f"the user said {reprlib.repr(line)}, not a line of text")
        line = foreign_text(line, LONGEST_VALUE)
        self.history.say("user", {"role": "user", "content": line})
        self.speaker = "agent"
        if any(token in line for token in self.task.stop_tokens):
            self.stop("user_stop")
        return line

    # --- the end

    async def settle(self) -> None:
        """Cancel calls that still run, answer calls that were never made, and free the database.

        Raises ``StorageError`` if the disk did not hold what was written.
        """
        await self.end_calls()
        self.trace.tool_calls = self.tool_calls
        if self.own_tools is not None:
            bundled = self.task.registry.openai_tools
            self.trace.offered_tools = names_of_own_tools(plain(self.own_tools, strict=False), bundled)
        is_own = self.base is not None or self.in_flight  # else it is only judged
        if is_own and not self.database.is_idle:  # a tool ignored its cancellation
            await self.database.break_off()
        self.database.check()

    async def end_calls(self, *others: asyncio.Task[Any]) -> None:
        """Cancel ``others`` and the calls that still run, and answer calls that were never run."""
        calls = {*others, *self.in_flight, *self.asking} - {None, asyncio.current_task()}
        if running := {task for task in calls if task is not None and not task.done()}:
            await end_tasks(running)
        self.history.answer_open_calls()
        self.user_history.answer_open_calls()

    finish = calls.finish
    lesson = lesson_of

    def close(self) -> None:
        """Close the database. May be called again."""
        self.database.close()

    start_sync = sync_twin(start)
    call_sync = sync_twin(call)
    from_trace_sync = classmethod(sync_twin(replaying.from_trace))
    say_sync = sync_twin(say)
    finish_sync = sync_twin(finish)
    lesson_sync = sync_twin(lesson)
