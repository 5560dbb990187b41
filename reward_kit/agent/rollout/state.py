"""``EpisodeState``: everything that changes while a rollout is played, in one object.

The database, the history, the counters, the recorded calls and the stop reason; ``Episode`` acts on it.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from contextlib import contextmanager
from time import time as unix_time
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.deadline import Deadline, TimeLimit, end_tasks
from reward_kit.agent.base.encoding import plain
from reward_kit.agent.base.history import INTERRUPTED, History, parse_arguments
from reward_kit.agent.base.pending import PendingLog
from reward_kit.agent.base.strict_json import copied
from reward_kit.agent.base.text import foreign_name, foreign_text, names_of_own_tools
from reward_kit.agent.base.types import (
    LATEST,
    ROLES,
    ModelCall,
    RolloutStopped,
    ToolCall,
    Usage,
    check_number,
    check_one_of,
    counted,
)
from reward_kit.agent.rollout.budgets import RolloutLimits
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reward_kit.agent.base.history import Line
    from reward_kit.agent.base.types import Message, Model, Role, StopReason, Violations
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.database import Changes, Database
    from reward_kit.agent.players.users import User
    from reward_kit.agent.rows.task_row import TaskRow
    from reward_kit.errors import ModelSetupError


def listed(name: str, given: Any) -> list[dict[str, Any]]:
    """A copy of foreign messages or tools; ``TypeError`` or ``ValueError`` if they are no list of objects."""
    if not isinstance(given, list | tuple) or not all(isinstance(one, dict) for one in given):
        raise TypeError(f"{name} is a list of dicts")
    objects: list[dict[str, Any]] = plain(given)
    return objects


class EpisodeState:
    """The state of one rollout, and the rules by which it changes.

    ``base`` is the seeded database that is forked at the beginning and by ``reset``; ``database`` is a state
    to play on instead. ``seed`` decides the random numbers of the tools and is handed to models.
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
        self.index = index
        self.seed = seed
        self.base = base
        self.user = user
        self.models: Mapping[Role, Model] = models or {}
        self.limits = limits = limits or RolloutLimits()
        self.max_steps = limits.max_steps if limits.max_steps is not None else task.row.max_steps
        self.parallel_tool_calls = limits.parallel_tool_calls and task.registry.parallel_tool_calls
        self.deadline: Deadline | None = None
        self.owner: Any = None
        """Kept as long as the episode: the bundle it was opened from."""
        self._begin(database if database is not None else self._forked())

    def _forked(self) -> Database:
        if self.base is None:
            raise RewardKitError("the episode has no base database", remedy="Give Episode(..., base=...).")
        return self.base.fork(seed=self.seed, now=self.task.row.clock())

    def _begin(self, database: Database) -> None:
        self.id = uuid.uuid4().hex
        self.database = database
        prompt = self.task.system_prompt
        opening: list[Message] = [] if prompt is None else [{"role": "system", "content": prompt}]
        self.history = History(opening + copied(self.task.row.initial_messages))
        self._tool_calls: list[ToolCall] = []
        self._undecoded: list[tuple[ToolCall, Changes]] = []
        self.model_calls: list[ModelCall] = []
        self.tool_faults: list[tuple[str, str]] = []
        self.usage: dict[Role, Usage] = {"agent": Usage(), "user": Usage()}
        self.steps = 0
        self.turns = 0
        self.speaker: Role = "agent"
        """The one who acts just now, and is at fault for an exception."""
        self.stop_reason: StopReason | None = None
        self.stop_detail: str | None = None
        self.violations: Violations | None = None
        """Set when it is judged; None for a bundle without rules."""
        self.sent_back: dict[int, str] = {}
        """Lines of the user's model that were not said, by the turn that they answered."""
        self.refused: ModelSetupError | None = None
        """Set if a model refused this configuration (key, name): every other rollout would meet the same."""
        self.pending_log = PendingLog()
        self._tools: list[dict[str, Any]] | None = None
        self._turn_is_open = False
        self._turn_has_steps = False
        self._in_flight: list[asyncio.Task[Any] | None] = []

    @property
    def row(self) -> TaskRow:
        """The row that is played."""
        return self.task.row

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls in the order in which they ended; here their row changes are decoded."""
        while self._undecoded:
            call, changes = self._undecoded.pop()
            call.changes = changes.to_json()
        return self._tool_calls

    @property
    def messages(self) -> list[Message]:
        """The history in the OpenAI format, always valid for strict providers; only to be read."""
        return self.history.messages

    @property
    def lines(self) -> list[Line]:
        """The lines that agent and user have said aloud, in order."""
        return self.history.lines

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools in the OpenAI format: the episode's own list, which ``complete`` offers the agent."""
        if self._tools is None:
            self._tools = self.task.registry.get_openai_tools()
        return self._tools

    @tools.setter
    def tools(self, tools: list[dict[str, Any]]) -> None:
        self._tools = listed("tools", tools)

    @property
    def offered_tools(self) -> list[str] | None:
        """The names in ``tools`` if these are not the bundle's; else None."""
        return names_of_own_tools(plain(self._tools, strict=False), self.task.registry.openai_tools)

    def begin_turn(self) -> None:
        """Count the agent's next turn, unless it has begun."""
        if not self._turn_is_open:
            self._turn_is_open = True
            self._turn_has_steps = False
            self.turns += 1

    def step(self) -> None:
        """Count a step of the agent; raises ``RolloutStopped`` if none is left."""
        self.check_running()
        self._check_budget()
        self.begin_turn()
        self._turn_has_steps = True
        self._count_step()

    def reply(self, message: str | Message) -> None:
        """Append what the agent says and end its turn; in a turn without a model call that is a step."""
        self.begin_turn()
        if not self._turn_has_steps:
            self._count_step()
        self.history.reply(message)
        self._turn_is_open = False

    def stop(self, reason: StopReason, detail: str | None = None) -> None:
        """End the episode; the first reason stays."""
        if self.stop_reason is None:
            self.stop_reason = reason
            self.stop_detail = None if detail is None else foreign_text(detail)

    @property
    def is_over(self) -> bool:
        """True if the episode has stopped, or its time is over, which then ends it."""
        return self.stop_reason is not None or (self.deadline is not None and self.deadline.check())

    @contextmanager
    def watched(self, name: str) -> Iterator[None]:
        """Note in ``tool_faults`` if code of ``name`` in this block blocks the event loop."""
        limit = TimeLimit(math.inf)
        try:
            with limit:
                yield
        finally:
            fault = limit.blocked("await what takes long, or call it with asyncio.to_thread")
            if fault is not None:
                self.tool_faults.append((name, fault))

    def check_running(self) -> None:
        """Raise ``RolloutStopped`` if the episode is over."""
        if self.stop_reason is not None:
            raise RolloutStopped(self.stop_reason)

    def record(self, message: Message) -> Message:
        """Append an assistant message with tool calls; see ``Rollout.record``."""
        self.check_running()
        return self.history.announce(message)

    def count_usage(
        self,
        usage: Usage,
        *,
        model: str,
        role: Role = "agent",
        seconds: float = 0.0,
        waited: float = 0.0,
        started: float | None = None,
        finish_reason: str = "stop",
    ) -> None:
        """Count a model call; see ``Rollout.count_usage``."""
        check_one_of("role", role, ROLES)
        check_number("seconds", seconds)
        check_number("waited", waited)
        check_number("started", started or 0.0, LATEST)
        started = unix_time() if started is None else started
        names = foreign_name(model), foreign_name(finish_reason or "unknown")
        self.count_call(
            ModelCall(role, self.steps, self.turns, *names, usage, started, seconds, waited=waited)
        )

    def count_call(self, call: ModelCall) -> None:
        """Count a model call; raises ``TypeError`` for a usage that spoils sums."""
        role, model = call.role, call.model
        call.usage = usage = counted(call.usage, self.usage.get(role))
        if not usage.calls:
            if usage == Usage():  # nothing is known of the call, which need not be free
                usage.unpriced_calls = 1
            usage.calls = 1
        call.cached = usage.reused_calls > 0
        self.model_calls.append(call)
        if role not in self.usage:
            self.usage[role] = Usage()
        self.usage[role].add(usage)
        limits = self.limits
        if limits.budget is not None:
            limits.budget.count(usage)
        if limits.on_usage is not None:
            asked = self.models.get(role)  # its name may tell the provider, too
            limits.on_usage(role, usage, asked.name if asked and asked.name.endswith(f"/{model}") else model)

    async def settle(self) -> None:
        """Cancel calls that still run, answer calls that were never made, and free the database.

        Raises ``StorageError`` if the disk did not hold what was written.
        """
        await self.end_calls()
        if not self.database.is_idle:  # a tool ignored its cancellation; the reward needs the database
            await self.database.break_off()
        self.database.check()

    async def end_calls(self, *others: asyncio.Task[Any]) -> None:
        """Cancel ``others`` and the tool calls that still run, and answer what was never run."""
        await end_tasks(
            {
                task
                for task in (*others, *self._in_flight)
                if task is not None and not task.done() and task is not asyncio.current_task()
            }
        )
        self.history.answer_open_calls()

    def _check_budget(self) -> None:
        shared, own = self.limits.budget, self.limits.own_budget
        if shared is not None and shared.exhausted:
            self._end("budget", shared.state)
        if own is not None and (used_up := own.used_up(self.usage.values())) is not None:
            self._end("budget", used_up)

    def _end(self, reason: StopReason, detail: str) -> None:
        self.stop(reason, detail)
        raise RolloutStopped(reason)

    def _count_step(self) -> None:
        if self.steps >= self.max_steps:
            used_up = "its only step is used up" if self.max_steps == 1 else None
            self._end("max_steps", used_up or f"{self.max_steps} steps are used up")
        self.steps += 1

    def _begun_call(self, name: str, arguments: dict[str, Any] | str) -> ToolCall:
        """The call as it is recorded if it is stopped while it runs."""
        return ToolCall(
            *(0, "", self.steps, self.turns, name, arguments),
            content=INTERRUPTED,
            status="failed",
            changes=[],
            started=unix_time(),
            seconds=0.0,
        )

    def _record_call(self, call: ToolCall, call_id: str | None) -> None:
        """Announce the call unless that was done, and answer it; both at once keeps the history valid."""
        if isinstance(call.arguments, str):  # not read, as of an unknown tool
            parsed = parse_arguments(call.arguments)
            call.arguments = call.arguments if parsed is None else parsed
        if call_id is None or not self.history.is_open(call_id):
            call_id = self.history.call(call.name, call.arguments, call_id)
        self.history.observe(call_id, call.content)
        call.id = call_id
        call.index = len(self._tool_calls)
        self._tool_calls.append(call)
