"""The calls that an episode makes, each recorded: of tools, of models, and of the reward at its end."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial
from time import perf_counter
from time import time as unix_time
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import LONGEST_VALUE, json_text, plain
from reward_kit.agent.base.history import INTERRUPTED, called, parse_arguments
from reward_kit.agent.base.text import foreign_name, foreign_text, text_of
from reward_kit.agent.base.types import ModelCall, RolloutStopped, ToolCall, Usage, check_one_of, counted
from reward_kit.agent.base.worker_thread import in_thread
from reward_kit.agent.bundles.rules import violations_of
from reward_kit.agent.database import Database
from reward_kit.agent.models.answer_parts import kept_tokens, without_faults
from reward_kit.agent.models.function import answer_of
from reward_kit.agent.rewards.checks import checking
from reward_kit.agent.rollout.gold import replay_gold_calls
from reward_kit.agent.rollout.judge import call_reward, judged_with_retries, plain_result, view_for
from reward_kit.agent.rollout.rollout import PLAYERS
from reward_kit.errors import ModelError, ModelSetupError, RewardError

if TYPE_CHECKING:
    from reward_kit.agent.base.types import Completion, Message, Role, Side
    from reward_kit.agent.rollout.episode import Episode
    from reward_kit.agent.tools.execution import ToolResult
    from reward_kit.models import EvaluateResult, RewardOutput


def listed(name: str, given: Any) -> list[dict[str, Any]]:
    """A copy of foreign messages or tools; ``TypeError`` or ``ValueError`` if they are no list of objects."""
    if not isinstance(given, list | tuple) or not all(isinstance(one, dict) for one in given):
        raise TypeError(f"{name} is a list of dicts")
    objects: list[dict[str, Any]] = plain(given)
    return objects


def begin_step(episode: Episode) -> None:
    """Count a step of the agent; raises ``RolloutStopped`` if none is left."""
    if episode.trace.stop_reason is not None:
        episode.check_running()
    if episode.limits.budget is not None:
        episode.check_budget()
    if not episode.turn_is_open:
        episode.begin_turn()
    episode.turn_has_steps = True
    _count_step(episode)


def count_call(episode: Episode, *, in_budget: bool = False) -> None:
    """Count a tool call as a step, unless it belongs to an answer of the model.

    ``in_budget`` checks the budget first: agents whose models are asked by others take no steps.
    """
    if in_budget and episode.limits.budget is not None:
        episode.check_budget()
    if not episode.turn_is_open:
        episode.begin_turn()
    if not episode.turn_has_steps:
        _count_step(episode)


def _count_step(episode: Episode) -> None:
    if episode.trace.steps >= episode.max_steps:
        used_up = "its only step is used up" if episode.max_steps == 1 else None
        episode.stop("max_steps", used_up or f"{episode.max_steps} steps are used up")
        episode.check_running()
    episode.trace.steps += 1


async def call(
    episode: Episode,
    tool: str,
    arguments: dict[str, Any] | str,
    *,
    call_id: str | None = None,
    by: Side = "agent",
) -> ToolResult:
    """Run a tool of the agent, or of the user, and record the call.

    Until a turn's first ``step`` (or ``complete``) each call of the agent counts as a step; the user's never
    do. ``call_id`` names a call that was announced with ``record``. Raises ``RolloutStopped`` if the episode
    is over, and for a call during which it ends (but for a terminal tool, whose result is returned).
    """
    trace, row_task, own = episode.trace, episode.task, episode.history  # a reset changes them
    registry = row_task.registry if by == "agent" else row_task.registry_of(by)
    if trace.stop_reason is not None:
        raise RolloutStopped(trace.stop_reason)
    if tool.__class__ is not str or tool not in registry.tools:
        if not isinstance(tool, str):
            raise TypeError(f"a tool is called by its name, a str, not by {type(tool).__name__}")
        tool = foreign_name(tool)
    if arguments.__class__ is not str or len(arguments) > LONGEST_VALUE or not arguments.isascii():
        arguments = _plain_arguments(arguments)
    if by == "agent" and not (episode.turn_is_open and episode.turn_has_steps):
        count_call(episode, in_budget=True)
    call = ToolCall(
        0, "", trace.steps, trace.turns, tool, arguments, INTERRUPTED, "failed", [], unix_time(), 0.0, by
    )
    began = episode.limits.on_begin
    task = asyncio.current_task()
    clock = perf_counter()
    (in_flight := episode.in_flight).append(task)
    try:
        if began is not None:
            began(f"tool {tool!r}")
        result = await registry.call(
            tool,
            arguments,
            db=episode.database,
            rollout=episode.rollout if by == "agent" else episode.user_rollout,
            pending=episode.pending_log,
            on_overrun=None if episode.deadline is None else episode.deadline.end,
            after=episode.after_call,
        )
        call.content, call.status = result.content, result.status
        if result.arguments is not None:
            call.arguments = result.arguments
        episode.undecoded.append((call, result.changes))
        if result.raised is not None:
            trace.note_tool_fault(tool, result.raised)
    finally:
        in_flight.remove(task)
        if began is not None and not in_flight:
            began(PLAYERS)
        call.seconds = perf_counter() - clock
        if call.arguments.__class__ is str:  # not read, as of an unknown tool
            parsed = parse_arguments(call.arguments)
            call.arguments = call.arguments if parsed is None else parsed
        history = own if by == "agent" else episode.history_of(by)
        call.id = history.answer(call_id, call.name, call.arguments, call.content)
        call.index = len(trace.tool_calls)
        trace.tool_calls.append(call)
    if result.terminal or trace.stop_reason is not None or episode.database.fault is not None:
        _stop_after(episode, tool, result, by)
    return result


def _stop_after(episode: Episode, tool: str, result: ToolResult, by: Side) -> None:
    """Stop the episode after a call that ends it, or during which it ended."""
    if result.terminal:  # the agent may read the detail
        episode.stop(*(("terminal_tool", tool) if by == "agent" else ("user_stop", None)))
    if (fault := episode.database.fault) is not None:  # the run ends for it; this rollout at once
        episode.stop("infrastructure_error", str(fault))
        raise RolloutStopped("infrastructure_error")
    if not result.terminal:
        episode.check_running()


def _plain_arguments(arguments: Any) -> dict[str, Any] | str:
    if isinstance(arguments, str):
        return foreign_text(arguments, LONGEST_VALUE)
    copy = plain(arguments)
    return copy if isinstance(copy, dict | str) else json_text(copy)


async def complete(
    episode: Episode,
    messages: list[Message] | None = None,
    *,
    tools: list[dict[str, Any]] | None = None,
    role: Role = "agent",
    again: int = 0,
) -> Completion:
    """Ask the model of ``role``; see ``Rollout.complete``."""
    trace = episode.trace
    if trace.stop_reason is not None:
        episode.check_running()
    if role != "agent":
        check_one_of("role", role, ("agent", "user"))
    sent = len(trace.messages) if messages is None else None
    messages = trace.messages if messages is None else listed("messages", messages)
    if tools is not None:
        tools = listed("tools", tools)
    if (model := episode.models.get(role)) is None:
        remedy = f'Name one with --{"user-" * (role == "user")}model, or give models={{"{role}": ...}}.'
        raise ModelSetupError(f"no model is given for the {role}", remedy=remedy)
    if role != "agent":
        episode.check_budget()
    else:
        begin_step(episode)
        if tools is None:
            own = episode.own_tools
            tools = episode.task.registry.openai_tools if own is None else plain(own)
    options: dict[str, Any] = {"tools": tools or None, "seed": episode.trace.seed ^ (again & 0xFFFF)}
    if tools and not episode.limits.parallel_tool_calls:
        options["parallel_tool_calls"] = False
    step, turn, started, clock = trace.steps, trace.turns, unix_time(), perf_counter()
    task = asyncio.current_task()
    (asking := episode.asking).append(task)
    try:
        completion = await answer_of(
            model,
            messages,
            options,
            role=role,
            seconds=episode.limits.call_timeouts.get(role),
            first=episode.limits.first_answers,
            before=trace.usage.get(role),
        )
    except ModelError as error:
        call = ModelCall(role, step, turn, model.name, "error", Usage(), started, perf_counter() - clock)
        call.error = foreign_text(error)
        trace.model_calls.append(call)
        if isinstance(error, ModelSetupError):
            episode.refused = error  # all others will meet it too, even if this agent carries on
            episode.stop("infrastructure_error", str(error))
        raise
    finally:
        asking.remove(task)
    call = ModelCall(
        role,
        step,
        turn,
        foreign_name(completion.model or model.name),
        foreign_name(completion.finish_reason),
        completion.usage,
        started,
        completion.seconds or perf_counter() - clock,
        waited=completion.waited,
    )
    answered = completion.message
    completion, fault = without_faults(completion, tools or ())
    if role == "agent":
        call.fault, call.tokens = fault, kept_tokens(completion.tokens, trace.model_calls, sent)
    else:
        call.answer = text_of(answered.get("content"))
    _count_model_call(episode, call)
    if trace.stop_reason is not None:
        episode.check_running()
    return completion


def count_model_call(episode: Episode, call: ModelCall) -> None:
    """Count a model call; raises ``TypeError`` for a usage that spoils sums."""
    call.usage = counted(call.usage, episode.trace.usage.get(call.role))
    _count_model_call(episode, call)


def _count_model_call(episode: Episode, call: ModelCall) -> None:
    """Count a model call whose usage has been checked."""
    role, usage, trace = call.role, call.usage, episode.trace
    if not usage.calls:
        if usage == Usage():  # nothing is known of the call, which need not be free
            usage.unpriced_calls = 1
        usage.calls = 1
    call.cached = usage.reused_calls > 0
    trace.model_calls.append(call)
    if role not in trace.usage:
        trace.usage[role] = Usage()
    trace.usage[role].add(usage)
    if episode.limits.on_usage is not None:
        asked, model = episode.models.get(role), call.model  # its name may tell the provider, too
        known = asked.name if asked and asked.name.endswith(f"/{model}") else model
        episode.limits.on_usage(role, usage, known)


async def run_calls(episode: Episode, message: Message, by: Side = "agent") -> list[Message]:
    """Record the tool calls of a model's ``message`` and run them in turn; returns the recorded messages.

    For agents and users of this package.
    """
    episode.check_running()
    several = episode.limits.parallel_tool_calls and episode.task.registry_of(by).parallel_tool_calls
    asked = list(message["tool_calls"])[: None if several else 1]
    history = episode.history_of(by)
    before = len(history.messages)
    recorded = history.announce({**message, "tool_calls": asked}, of_model=True)
    for given, announced in zip(asked, list(recorded["tool_calls"]), strict=True):  # tools may add theirs
        name, arguments = called(given)
        await call(episode, name, arguments, call_id=announced["id"], by=by)
        if episode.trace.stop_reason is not None:
            episode.check_running()
    return history.messages[before:]


async def content_of_call(
    episode: Episode, tool: str, arguments: dict[str, Any] | str, call_id: str | None, by: Side
) -> str:
    """Run a tool for ``Rollout.call_tool``: the text that a model sees."""
    result = await call(episode, tool, arguments, call_id=call_id, by=by)
    if episode.trace.stop_reason is not None:
        episode.check_running()
    return result.content


async def answered(episode: Episode, name: str, arguments: dict[str, Any] | str) -> dict[str, Any]:
    """Make a call for a client that gets an answer in any case.

    The answer has ``result`` (the text for a model), ``status`` (as ``ToolResult``) and ``stopped`` (the stop
    reason, or None): set if the call was the last one, or was not made (``refused``) because it came after
    the end.
    """
    steps = episode.steps
    try:
        result = await call(episode, name, arguments)
        content, status = result.content, str(result.status)
    except ValueError as error:  # arguments that are too deep or too large
        content, status = f"Error: invalid arguments: {error}", "invalid_arguments"
    except (RolloutStopped, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and episode.stop_reason is None:
            raise
        if episode.steps == steps:  # no step was left, or the rollout was over before
            reason = f"the conversation is over ({episode.stop_reason})"
            content, status = f"Error: not run, {reason}. Make no more calls.", "refused"
        else:
            interrupted = episode.tool_calls[-1]  # nothing was awaited since it was recorded
            content, status = interrupted.content, interrupted.status
    return {"result": content, "status": status, "stopped": episode.stop_reason}


async def finish(episode: Episode, gold_database: Database | None = None) -> EvaluateResult | RewardOutput:
    """End the episode and return the reward's result, which is in the trace as well.

    The state that the row's actions lead to is made here, unless ``gold_database`` is it. Raises
    ``RewardError`` if the reward fails.
    """
    episode.stop("agent_done")
    await episode.settle()
    trace, gold, database = episode.trace, gold_database, episode.database
    with ExitStack() as opened:
        if gold is None and episode.row.actions is not None:
            if (base := episode.base) is None:
                base = opened.enter_context(Database.open(database.base_path, mode=database.mode))
            seed = episode.random_numbers or trace.seed
            replay = await replay_gold_calls(episode.task, base, seed=seed)
            gold, episode.gold_fault = opened.enter_context(replay.database), replay.impossible
        if episode.limits.on_begin is not None:
            episode.limits.on_begin("its reward")
        try:
            judging = partial(judged_once, episode, gold)
            result = await judged_with_retries(judging, episode.limits.reward_retries)
        except RewardError as error:
            trace.error = foreign_text(error)
            raise
    trace.result, trace.reward = plain_result(result), float(result.score)
    return result


async def judged_once(
    episode: Episode, gold_database: Database | None, *, is_shared: bool = True
) -> EvaluateResult | RewardOutput:
    """The result of the reward, called once; the usage of its own model calls is counted here.

    Several calls may use ``gold_database`` at a time unless ``is_shared`` is false.
    """
    trace = episode.trace
    if trace.violations is None and episode.task.rules:
        parts = episode.task.rules, trace.fields, trace.messages, trace.tool_calls, trace.user_messages
        trace.violations = await in_thread(partial(violations_of, *parts))
    shown, task = trace.for_reward(), episode.task
    gold = gold_database.reader() if gold_database is not None and is_shared else gold_database
    given = {
        **trace.fields,
        "messages": trace.messages,
        "db": view_for(task.reward, episode.database),
        "gold_db": view_for(task.reward, gold, episode.gold_fault),
        "rollout": shown,
    }
    try:
        with checking(task):
            timeout, watched = episode.limits.reward_timeout, episode.watched("the reward")
            return await call_reward(task.reward, given, timeout=timeout, watched=watched)
    finally:
        if gold is not None and is_shared:
            gold.close()
        for counted_call in shown.counted():
            count_model_call(episode, counted_call)
