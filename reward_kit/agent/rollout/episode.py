"""``Episode``: one rollout while it is played, driven by hand or by the orchestrator.

To play one without an evaluation, open it from a bundle::

    with TaskBundle.load("seat_task") as bundle, bundle.episode("alice") as episode:
        await episode.call("take_seat", {"number": 2, "passenger": "Alice"})
        await episode.say("You have seat 2.")
        print((await episode.finish()).score, episode.changes())

Each ``async`` method has a twin ``..._sync`` for code without an event loop.
"""

from __future__ import annotations

import asyncio
import reprlib
from functools import partial
from time import perf_counter
from time import time as unix_time
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from reward_kit.agent.base.encoding import LONGEST_VALUE, json_text, plain
from reward_kit.agent.base.text import foreign_name, foreign_text, text_of
from reward_kit.agent.base.types import STOP_TOKEN, UNJUDGED_STOPS, ModelCall, Usage, check_one_of
from reward_kit.agent.base.worker_thread import in_thread, run_sync
from reward_kit.agent.bundles.rules import violations_of
from reward_kit.agent.models.answer_parts import without_faults
from reward_kit.agent.models.function import answer_of
from reward_kit.agent.rollout.budgets import PLAYERS
from reward_kit.agent.rollout.gold import replay_gold_calls
from reward_kit.agent.rollout.judge import judge, judged_with_retries
from reward_kit.agent.rollout.rollout import JudgedRollout, Rollout, UserRollout
from reward_kit.agent.rollout.state import EpisodeState, listed
from reward_kit.errors import ModelError, ModelSetupError, RewardError, SimulatedUserError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from reward_kit.agent.base.types import Completion, Message, Role
    from reward_kit.agent.database import Changes, Database
    from reward_kit.agent.players.users import User
    from reward_kit.agent.tools.execution import ToolResult
    from reward_kit.models import EvaluateResult, RewardOutput


P = ParamSpec("P")
T = TypeVar("T")


def _sync(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """The twin of an ``async`` method that waits for its result."""

    def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_sync(method(*args, **kwargs))

    twin.__doc__ = f"As ``{method.__name__}``, for code without an event loop."
    return twin


class Episode(EpisodeState):
    """One attempt at a task: its state, and everything that can be done in it.

    Without a ``user`` the first reply ends the episode. ``models`` are needed only for ``complete`` and for
    users that ask one.
    """

    def _begin(self, database: Database) -> None:
        super()._begin(database)
        self.rollout = Rollout(self)
        """The handle for the agent and the tools."""
        self.user_rollout = UserRollout(self)

    def reset(self) -> list[Message]:
        """Begin anew on a fresh fork of the base; returns the messages that the row begins with."""
        database = self._forked()
        self.database.close()
        self._begin(database)
        return self.messages

    async def start(self) -> str | None:
        """Let the user speak first, if there is one and the row does not begin with a line of theirs.

        Returns the user's line, or None.
        """
        if self.user is None or (self.lines and self.lines[-1].speaker == "user"):
            return None
        return await self._hear(self.user)

    async def call(
        self, tool: str, arguments: dict[str, Any] | str, *, call_id: str | None = None
    ) -> ToolResult:
        """Run a tool and record the call.

        Until a turn's first ``step`` (or ``complete``) each call counts as a step. ``call_id`` names a call
        that was announced with ``record``. Raises ``RolloutStopped`` if the episode is over, and for a call
        during which it ends (but for a terminal tool, whose result is returned).
        """
        self.check_running()
        if not isinstance(tool, str):
            raise TypeError(f"a tool is called by its name, a str, not by {type(tool).__name__}")
        tool = foreign_name(tool)
        call_id = None if call_id is None else foreign_name(call_id)
        arguments = plain(arguments)
        if not isinstance(arguments, dict | str):
            arguments = json_text(arguments)
        self.begin_turn()
        if not self._turn_has_steps:
            self._count_step()
        call = self._begun_call(tool, arguments)
        task = asyncio.current_task()
        clock = perf_counter()
        self._in_flight.append(task)
        try:
            self._acts(f"tool {tool!r}")
            result = await self.task.registry.call(
                tool,
                arguments,
                db=self.database,
                rollout=self.rollout,
                pending=self.pending_log,
                on_overrun=self._overrun,
            )
            call.content, call.status = result.content, result.status
            if result.arguments is not None:
                call.arguments = result.arguments
            if result.changes is not None:
                self._undecoded.append((call, result.changes))
            if result.raised is not None:
                self.tool_faults.append((tool, result.raised))
        finally:
            self._in_flight.remove(task)
            if not self._in_flight:
                self._acts(PLAYERS)
            call.seconds = perf_counter() - clock
            self._record_call(call, call_id)
        if result.terminal:
            self.stop("terminal_tool", tool)
        try:
            self.database.check()
        except StorageError as error:  # the run ends for it; this rollout at once
            self.stop("infrastructure_error", str(error))
            self.check_running()
        if not result.terminal:
            self.check_running()
        return result

    async def content_of_call(self, tool: str, arguments: dict[str, Any] | str, call_id: str | None) -> str:
        """Run a tool for ``Rollout.call_tool``: the text that a model sees."""
        result = await self.call(tool, arguments, call_id=call_id)
        self.check_running()
        return result.content

    async def say(self, reply: str | Message) -> str | None:
        """Append what the agent says and return the user's next line; None if the episode is over.

        Raises ``AgentError`` for a reply with nothing to say, ``SimulatedUserError`` or ``ModelError`` if the
        user fails.
        """
        self.check_running()
        self.reply(reply)
        if self.user is None:
            self.stop("agent_done")
            return None
        line = await self._hear(self.user)
        return None if self.stop_reason is not None else line

    async def finish(self, gold_database: Database | None = None) -> EvaluateResult | RewardOutput:
        """End the episode and return what the reward says of it.

        The state that the row's actions lead to is made here, unless ``gold_database`` is it. Raises
        ``RewardError`` if the reward fails.
        """
        self.stop("agent_done")
        await self.settle()
        gold = gold_database
        if gold is None and self.task.row.actions is not None and self.base is not None:
            gold = (await replay_gold_calls(self.task, self.base, seed=self.seed)).database
        try:
            return await judged_with_retries(partial(self._judged_once, gold), self.limits.reward_retries)
        finally:
            if gold is not None and gold is not gold_database:
                gold.close()

    async def judged(
        self, gold_database: Database | None
    ) -> tuple[EvaluateResult | RewardOutput | None, str | None]:
        """The result of the reward, or the error; None and None if the reward is not asked."""
        if self.stop_reason in UNJUDGED_STOPS:
            return None, None
        self._acts("its reward")
        judging = partial(self._judged_once, gold_database)
        try:
            return await judged_with_retries(judging, self.limits.reward_retries), None
        except RewardError as error:
            return None, foreign_text(error)

    async def _judged_once(self, gold_database: Database | None) -> EvaluateResult | RewardOutput:
        """The result of the reward; what its own model calls cost is counted here."""
        if self.violations is None and self.task.rules:
            parts = self.task.rules, self.row.reward_fields(), self.messages, self.tool_calls
            self.violations = await in_thread(partial(violations_of, *parts))
        shown = JudgedRollout(self)
        try:
            return await judge(
                self.task,
                self.messages,
                self.database,
                gold_db=gold_database,
                rollout=shown,
                timeout=self.limits.reward_timeout,
                watched=self.watched("the reward"),
            )
        finally:
            shown.hand_over_usage()

    def changes(self) -> Changes:
        """The rows that differ from the base."""
        return self.database.changes()

    def close(self) -> None:
        """Close the database. May be called again."""
        self.database.close()

    start_sync = _sync(start)

    call_sync = _sync(call)

    say_sync = _sync(say)

    finish_sync = _sync(finish)

    def __enter__(self) -> Episode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def complete(
        self,
        messages: list[Message] | None = None,
        *,
        tools: list[dict[str, Any]] | None = None,
        role: Role = "agent",
        again: int = 0,
    ) -> Completion:
        """Ask the model of ``role``; see ``Rollout.complete``."""
        self.check_running()
        check_one_of("role", role, ("agent", "user"))
        messages = self.messages if messages is None else listed("messages", messages)
        if tools is None and role == "agent":
            tools = self._tools
        if tools is not None:
            tools = listed("tools", tools)
        model = self.models.get(role)
        if model is None:
            option = "--model" if role == "agent" else "--sim-model"
            raise ModelSetupError(f"no model is given for the {role}", remedy=f"Name one with {option}.")
        if role != "agent":
            self._check_budget()
        else:
            self.step()
            if tools is None:
                tools = self.task.registry.openai_tools
        options: dict[str, Any] = {"tools": tools or None, "seed": self.seed ^ (again & 0xFFFF)}
        if tools and not self.limits.parallel_tool_calls:
            options["parallel_tool_calls"] = False
        call = ModelCall(role, self.steps, self.turns, model.name, "error", Usage(), unix_time(), 0.0)
        clock = perf_counter()
        try:
            completion = await answer_of(
                model,
                messages,
                options,
                role=role,
                seconds=self.limits.call_timeouts.get(role),
                first=self.limits.first_answers,
            )
        except ModelError as error:
            call.seconds, call.error = perf_counter() - clock, foreign_text(error)
            self.model_calls.append(call)
            if isinstance(error, ModelSetupError):
                self.refused = error  # all others will meet it too, even if this agent carries on
                self.stop("infrastructure_error", str(error))
            raise
        call.model = foreign_name(completion.model or model.name)
        call.finish_reason, call.usage = foreign_name(completion.finish_reason), completion.usage
        call.seconds, call.waited = completion.seconds or perf_counter() - clock, completion.waited
        if role == "user":
            call.answer = text_of(completion.message.get("content"))
        else:
            completion, call.fault = without_faults(completion, tools or ())
        self.count_call(call)
        completion.usage = call.usage
        self.check_running()
        return completion

    async def _hear(self, user: User) -> str | None:
        self.speaker = "user"
        with self.pending_log, self.watched("the user"):
            line = await user.respond(self.user_rollout)
        if self.is_over:
            return None
        self.pending_log.check()
        if not isinstance(line, str) or not line.strip():
            raise SimulatedUserError(f"the user said {reprlib.repr(line)}, not a line of text")
        line = foreign_text(line, LONGEST_VALUE)
        self.history.say("user", {"role": "user", "content": line})
        self.speaker = "agent"
        if any(token in line for token in (STOP_TOKEN, *self.task.prompts.get("stop", "").split())):
            self.stop("user_stop")
        return line

    def _acts(self, who: str) -> None:
        if self.limits.on_begin is not None:
            self.limits.on_begin(who)

    def _overrun(self, why: str) -> None:
        """End the time of the episode: a tool has ignored its cancellation."""
        if self.deadline is not None:
            self.deadline.end(why)
