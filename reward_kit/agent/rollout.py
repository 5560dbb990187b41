"""The state of one episode, and the only thing that agents, users and tools act through."""

from __future__ import annotations

import asyncio
import uuid
from time import perf_counter
from time import time as unix_time
from typing import TYPE_CHECKING, Any, Literal

from reward_kit.agent.calls import ModelCall, Role, ToolCall, names_of_own_tools
from reward_kit.agent.completion import LATEST, Completion, Message, Model, Usage, check_number
from reward_kit.agent.faults import fault_line
from reward_kit.agent.history import INTERRUPTED, History, Line, encodable, parse_arguments, text_of
from reward_kit.agent.limits import CANCELLATION_GRACE, RolloutLimits
from reward_kit.agent.strict_json import copied
from reward_kit.agent.tools.execution import broke_off, is_cancelled
from reward_kit.errors import AgentError, ModelError, ModelSetupError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.bundles.task_row import Action, TaskRow
    from reward_kit.agent.database import Database

__all__ = ["STOP_TOKEN", "Role", "Rollout", "RolloutLimits", "RolloutStopped", "StopReason", "ToolCall"]

StopReason = Literal[
    "user_stop",
    "terminal_tool",
    "agent_done",
    "max_steps",
    "timeout",
    "budget",
    "agent_error",
    "user_error",
    "infrastructure_error",
]
STOP_TOKEN = "###STOP###"  # noqa: S105 - the word that ends a conversation, no secret


class RolloutStopped(BaseException):
    """The rollout is over. A ``BaseException``: an agent that catches ``Exception`` must not swallow it."""


class Rollout:
    """One episode of one task: what was said and done so far, and the doors to its tools and models."""

    def __init__(
        self,
        task: Task,
        index: int,
        *,
        database: Database,
        models: Mapping[Role, Model] | None = None,
        limits: RolloutLimits | None = None,
        seed: int = 0,
    ) -> None:
        limits = limits or RolloutLimits()
        self.id = uuid.uuid4().hex
        self.task = task
        self.index = index
        self.seed = seed
        self.database = database
        self.models: Mapping[Role, Model] = models or {}
        self.max_steps = limits.max_steps if limits.max_steps is not None else task.row.max_steps
        self.parallel_tool_calls = limits.parallel_tool_calls and task.registry.parallel_tool_calls
        self.history = History(_opening(task))
        self._tools: list[dict[str, Any]] | None = None
        self.tool_calls: list[ToolCall] = []
        self.model_calls: list[ModelCall] = []
        self.tool_faults: list[tuple[str, str]] = []
        self.usage: dict[Role, Usage] = {} if limits.usage is None else limits.usage
        self.usage["agent"], self.usage["user"] = Usage(), Usage()
        self.steps = 0
        self.turns = 0
        self.stop_reason: StopReason | None = None
        self.stop_detail: str | None = None
        self.refused: ModelSetupError | None = None
        self._budget = limits.budget
        self._own_budget = limits.own_budget
        self._first_answers = limits.first_answers
        self._call_timeouts = limits.call_timeouts
        self._turn_has_steps = False
        self._in_flight: list[asyncio.Task[Any] | None] = []

    @property
    def row(self) -> TaskRow:
        return self.task.row

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools in the OpenAI format: this rollout's own list, which ``complete`` offers its model."""
        if self._tools is None:
            self._tools = self.task.registry.get_openai_tools()
        return self._tools

    @tools.setter
    def tools(self, tools: list[dict[str, Any]]) -> None:
        self._tools = tools

    @property
    def offered_tools(self) -> list[str] | None:
        """The names in ``tools``, where these are not the bundle's; else None."""
        return names_of_own_tools(self._tools, self.task.registry.openai_tools)

    @property
    def messages(self) -> list[Message]:
        """The history in the OpenAI format, always valid for strict providers; do not change it by hand."""
        return self.history.messages

    @property
    def lines(self) -> list[Line]:
        """What agent and user have said aloud, in order."""
        return self.history.lines

    @property
    def gold(self) -> list[Action]:
        """The row's ground truth calls; empty where it has none."""
        return list(self.row.actions or ())

    @property
    def outputs(self) -> list[str]:
        """What the agent must have told the user."""
        return list(self.row.outputs or ())

    def step(self) -> None:
        """Count a step of an agent with models of its own; this turn's calls and reply are then not counted.

        Raises ``RolloutStopped`` where no step is left. ``complete`` does this by itself.
        """
        self._check_running()
        self._check_budget()
        self._turn_has_steps = True
        self._count_step()

    def stop(self, reason: StopReason, detail: str | None = None) -> None:
        """End the rollout; the first reason stays. ``call_tool`` and ``complete`` raise from now on."""
        if self.stop_reason is None:
            self.stop_reason = reason
            self.stop_detail = detail

    def record(self, message: Message) -> Message:
        """Append an assistant message with tool calls; returned as recorded, its ids unique in the history.

        The calls are then made with ``call_tool(..., call_id=...)`` and the ids of the returned message.
        """
        self._check_running()
        if not message.get("tool_calls"):
            raise AgentError(
                "record() takes an assistant message with tool calls; what is said is returned by respond()"
            )
        return self.history.announce(message)

    async def call_tool(
        self, name: str, arguments: dict[str, Any] | str, *, call_id: str | None = None
    ) -> str:
        """Run a tool and return what the model sees of it.

        ``call_id`` names a call announced with ``record``; any other call is announced here. Raises
        ``RolloutStopped`` once the rollout is over, also after a terminal tool.
        """
        self._check_running()
        if not isinstance(name, str):
            raise TypeError(f"a tool is called by its name, a str, not by {type(name).__name__}")
        if not self._turn_has_steps:
            self._count_step()
        parsed = parse_arguments(arguments)
        given = arguments if parsed is None else parsed
        call = self._begun_call(name, given)
        task = asyncio.current_task()
        clock = perf_counter()
        self._in_flight.append(task)
        try:
            try:
                result = await self.task.registry.call(name, given, db=self.database, rollout=self)
            except RolloutStopped:
                raise
            except BaseException as error:  # noqa: BLE001 - raised again there unless it is the tool's own
                result = broke_off(error)
            call.content, call.status = result.content, result.status
            call.changes = result.changes.to_json() if result.changes else []
            if result.raised is not None:
                self.tool_faults.append((name, result.raised))
        finally:
            self._in_flight.remove(task)
            call.seconds = perf_counter() - clock
            self._record_call(call, call_id)
        if result.terminal:
            self.stop("terminal_tool", name)
        try:
            self.database.check()
        except StorageError as error:  # the run ends for it; this rollout at once
            self.stop("infrastructure_error", str(error))
        self._check_running()
        return result.content

    async def complete(
        self,
        messages: list[Message] | None = None,
        *,
        tools: list[dict[str, Any]] | None = None,
        role: Role = "agent",
    ) -> Completion:
        """Ask a model: the agent's (one step) or the simulated user's.

        Without ``messages`` it sees the rollout's; without ``tools`` the agent's model gets the rollout's
        (``[]`` for none). Raises ``ModelError`` where no answer could be had and ``RolloutStopped`` once the
        rollout is over.
        """
        self._check_running()
        model = self.models.get(role)
        if model is None:
            option = "--model" if role == "agent" else "--sim-model"
            raise ModelSetupError(f"no model is given for the {role}", remedy=f"Name one with {option}.")
        if role != "agent":
            self._check_budget()
        else:
            self.step()
            if tools is None:
                tools = self.task.registry.openai_tools if self._tools is None else self._tools
        options = {} if self.parallel_tool_calls or not tools else {"parallel_tool_calls": False}
        started, clock = unix_time(), perf_counter()
        try:
            call = model.complete(
                self.messages if messages is None else messages,
                tools=tools or None,
                seed=self.seed,
                **options,
            )
            limit = self._call_timeouts.get(role)
            completion = _checked(await (call if limit is None else limit.answer(call, model.name)))
        except (Exception, SystemExit, asyncio.CancelledError) as raised:
            if isinstance(raised, asyncio.CancelledError) and is_cancelled():
                raise
            error = raised if isinstance(raised, ModelError) else self._broken(role, model, raised)
            self._note_failed_call(role, model, error, started, perf_counter() - clock)
            if isinstance(error, ModelSetupError):
                self.refused = error  # all others will meet it too, even if this agent makes light of it
                self.stop("infrastructure_error", str(error))
            if error is raised:
                raise
            raise error from raised
        if self._first_answers is not None:
            self._first_answers.answered(role)
        self.count_usage(
            completion.usage,
            model=completion.model or model.name,
            role=role,
            seconds=completion.seconds or perf_counter() - clock,
            waited=completion.waited,
            started=started,
            finish_reason=completion.finish_reason,
            answer=text_of(completion.message.get("content")) if role == "user" else None,
        )
        self._check_running()
        return completion

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
        answer: str | None = None,
    ) -> None:
        """Count a model call: its tokens and cost, and an entry of ``model_calls``.

        ``complete`` does this by itself; this is for agents that ask a model with a client of their own. It
        counts no step (``step`` does). ``started`` is in Unix seconds, now if it is not given. Raises
        ``TypeError`` for a number that is negative, not finite or above 2**53.
        """
        usage.check()
        check_number("seconds", seconds)
        check_number("waited", waited)
        check_number("started", started or 0.0, LATEST)
        usage.calls = usage.calls or 1
        self.usage.setdefault(role, Usage()).add(usage)
        if self._budget is not None:
            self._budget.count(usage)
            if usage.unpriced_calls > usage.reused_calls:
                self._budget.unpriced(model, self.models.get(role))
        self.model_calls.append(
            ModelCall(
                role=role,
                step=self.steps,
                turn=self.turns,
                model=model,
                finish_reason=finish_reason,
                usage=usage,
                started=unix_time() if started is None else started,
                seconds=seconds,
                waited=waited,
                answer=answer,
                cached=usage.reused_calls > 0,
            )
        )

    def _broken(self, role: Role, model: Model, error: BaseException) -> ModelError:
        """What a model of a person's own raised: neither agent nor user is at fault."""
        fault, place = f"raised {fault_line(error)}", f"model {model.name}"
        by_chance = isinstance(error, asyncio.CancelledError)  # an engine that has dropped the request
        if not by_chance and self._first_answers is not None and self._first_answers.broke(role, fault):
            remedy = "It has answered no call yet, and raised this each time."
            return ModelSetupError(fault, place=place, remedy=remedy)
        return ModelError(fault, place=place)

    def _note_failed_call(
        self, role: Role, model: Model, error: ModelError, started: float, seconds: float
    ) -> None:
        """An entry of ``model_calls`` for a call without an answer, which counts in no usage."""
        self.model_calls.append(
            ModelCall(
                role=role,
                step=self.steps,
                turn=self.turns,
                model=model.name,
                finish_reason="error",
                usage=Usage(),
                started=started,
                seconds=seconds,
                error=str(error),
            )
        )

    def begin_turn(self) -> None:
        """Count the agent's next turn."""
        self.turns += 1
        self._turn_has_steps = False

    def reply(self, message: str | Message) -> None:
        """Append what the agent said; in a turn without a model call it is a step of its own."""
        if not self._turn_has_steps:
            self._count_step()
        self.history.reply(message)

    def hear(self, text: str) -> None:
        """Append the user's line; the stop token anywhere in it ends the rollout."""
        self.history.say("user", {"role": "user", "content": encodable(text)})
        if STOP_TOKEN in text:
            self.stop("user_stop")

    async def finish(self) -> None:
        """Cancel calls that are still running in tasks of the agent's, and answer what was never run."""
        running = {
            task for task in self._in_flight if task is not None and task is not asyncio.current_task()
        }
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CANCELLATION_GRACE)
        self.history.answer_open_calls()

    def _check_running(self) -> None:
        if self.stop_reason is not None:
            raise RolloutStopped(self.stop_reason)

    def _check_budget(self) -> None:
        if self._budget is not None and self._budget.exhausted:
            self._end("budget", self._budget.state)
        if self._own_budget is not None:
            used_up = self._own_budget.used_up(self.usage.values())
            if used_up is not None:
                self._end("budget", used_up)

    def _end(self, reason: StopReason, detail: str) -> None:
        self.stop(reason, detail)
        raise RolloutStopped(reason)

    def _count_step(self) -> None:
        if self.steps >= self.max_steps:
            self._end(
                "max_steps",
                "its only step is used up" if self.max_steps == 1 else f"{self.max_steps} steps are used up",
            )
        self.steps += 1

    def _begun_call(self, name: str, arguments: dict[str, Any] | str) -> ToolCall:
        """The call as it stands if it is stopped while it runs."""
        return ToolCall(
            index=0,
            id="",
            step=self.steps,
            turn=self.turns,
            name=name,
            arguments=arguments,
            content=INTERRUPTED,
            status="failed",
            changes=[],
            started=unix_time(),
            seconds=0.0,
        )

    def _record_call(self, call: ToolCall, call_id: str | None) -> None:
        """Announce the call unless that was done, and answer it; both at once keeps the history valid."""
        if call_id is None or not self.history.is_open(call_id):
            call_id = self.history.call(call.name, call.arguments, call_id)
        self.history.observe(call_id, call.content)
        call.id = call_id
        call.index = len(self.tool_calls)
        self.tool_calls.append(call)


def _checked(answer: object) -> Completion:
    if not isinstance(answer, Completion):
        raise TypeError(f"complete() gave a {type(answer).__name__}, not a Completion")
    for name, value, kind in (("message", answer.message, dict), ("usage", answer.usage, Usage)):
        if not isinstance(value, kind):
            found = type(value).__name__
            raise TypeError(f"complete() gave a Completion whose {name} is a {found}, not a {kind.__name__}")
    answer.usage.check()
    return answer


def _opening(task: Task) -> list[Message]:
    messages: list[Message] = copied(task.row.initial_messages)
    if task.system_prompt is None:
        return messages
    return [{"role": "system", "content": task.system_prompt}, *messages]
