"""Agents and users that replay a recorded rollout, and an agent that makes the gold calls."""

from __future__ import annotations

import copy
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.history import INTERRUPTED, NOT_RUN, written_arguments
from reward_kit.agent.base.text import one_line
from reward_kit.agent.base.types import UNJUDGED_STOPS
from reward_kit.agent.rollout.gold import IMPOSSIBLE
from reward_kit.agent.rollout.replaying import made_by_tools
from reward_kit.agent.rollout.rollout import episode_of
from reward_kit.agent.rows.field_checks import resolve_references
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reward_kit.agent.base.types import Message, ToolCall
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.rollout.episode import Episode
    from reward_kit.agent.rollout.rollout import Rollout, TaskView, UserRollout
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.rows.task_row import Action
    from reward_kit.agent.store.loading import Recordings

CUT_OFF = {*UNJUDGED_STOPS, "max_steps", "timeout", "budget", "agent_error", "user_stop"}
"""Stop reasons that nothing in the messages brings about."""


class ReplayAgent:
    """Makes the recorded tool calls and says the recorded replies; each assistant message is one step.

    Calls of one message are made in the order in which they ended, which is the order of their effects. Those
    that were stopped or never run are not run now either. In a rollout without a user, it also makes the
    user's calls.
    """

    sees_answers = True
    episode: Episode

    def __init__(self, recordings: Recordings) -> None:
        self.recordings = recordings
        self._messages: Iterator[Message] | None = None
        self._results: dict[str, tuple[float, str]] = {}
        self._made: dict[str, ToolCall] = {}
        self._waiting: deque[ToolCall] = deque()
        """The calls still to be made, if there is no user to make its own."""

    def check(self, task: Task) -> None:
        """Raise ``BundleError`` if no rollout of the row was recorded."""
        self.recordings.check(task.row.id)

    async def respond(self, rollout: Rollout) -> str | Message:
        """The next recorded reply; at the end of the recording the rollout ends as that did."""
        recording = self.recordings.find(rollout.row_id, rollout.index)
        if self._messages is None:
            self._messages = self._begin(recording)
        for message in self._messages:
            await self._make_users_calls()
            rollout.step()
            if not message.get("tool_calls"):
                return message
            await self._make_calls(message, rollout)
        await self._make_users_calls()
        _end(recording, rollout)
        return ""

    def _begin(self, recording: Trace) -> Iterator[Message]:
        """Return the assistant messages, without those that the row begins with."""
        given = sum(message["role"] == "assistant" for message in self.episode.messages)
        inner = made_by_tools(recording, self.episode.task)  # they are made again with the tool's own
        said = []
        for message in [one for one in recording.messages if one["role"] == "assistant"][given:]:
            calls = message.get("tool_calls") or ()
            own = [call for call in calls if ("agent", call["id"]) not in inner]
            if own or not calls:
                said.append({**message, "tool_calls": own} if calls else message)
        self._results = {
            message["tool_call_id"]: (number, message["content"])
            for number, message in enumerate(recording.messages)
            if message["role"] == "tool"
        }
        self._made = {call.id: call for call in recording.tool_calls if call.by == "agent"}
        self.episode.trace.given_verdicts = recording.given_verdicts
        if self.episode.user is None:
            self._waiting.extend(one for one in recording.tool_calls if (one.by, one.id) not in inner)
        if self.episode.max_steps == self.episode.row.max_steps:  # it was met when it was recorded
            self.episode.max_steps = max(self.episode.max_steps, len(said))
        return iter(said)

    async def _make_calls(self, message: Message, rollout: Rollout) -> None:
        """Announce the calls of a recorded message, and make those that were made."""
        announced = rollout.record(copy.deepcopy(message))["tool_calls"]
        pairs = zip(message["tool_calls"], announced, strict=True)
        for call, now in sorted(pairs, key=lambda pair: self._result(pair[0])):
            _, result = self._result(call)
            if result == INTERRUPTED:
                self.episode.history.observe(now["id"], INTERRUPTED)
            elif result != NOT_RUN:
                await self._make_users_calls()
                function, made = call["function"], self._made.get(call["id"])
                while self._waiting and self._waiting.popleft() is not made:
                    pass
                # the history has the arguments in a form that providers accept
                arguments = (
                    copy.deepcopy(made.arguments) if made else written_arguments(function["arguments"])
                )
                name = made.name if made else function["name"]
                await rollout.call_tool(name, arguments, call_id=now["id"])

    async def _make_users_calls(self) -> None:
        """Make the calls that the user made before the agent's next one."""
        while self._waiting and self._waiting[0].by == "user":
            call = self._waiting.popleft()
            if call.content != INTERRUPTED:
                await self.episode.user_rollout.call_tool(call.name, copy.deepcopy(call.arguments))

    def _result(self, call: dict[str, Any]) -> tuple[float, str]:
        """Return the place of a call's result in the recording, and the result; ``inf`` without one."""
        return self._results.get(call["id"], (inf, ""))


class ReplayUser:
    """Makes the recorded calls of the user and says the recorded lines; ignores the agent's answers."""

    def __init__(self, recordings: Recordings) -> None:
        self.recordings = recordings
        self._recorded: Iterator[tuple[int, str]] | None = None
        self._called = 0

    def check(self, task: TaskView) -> None:
        """Raise ``BundleError`` if no rollout of the row was recorded."""
        self.recordings.check(task.id)

    def fork(self) -> ReplayUser:
        """Return a user that continues from the same line."""
        twin = copy.copy(self)
        vars(twin)["_recorded"] = copy.copy(self._recorded)
        return twin

    async def respond(self, rollout: UserRollout) -> str:
        """The next recorded line; at the end of the recording the rollout ends as that did."""
        recording = self.recordings.find(rollout.row_id, rollout.index)
        if self._recorded is None:
            given = sum(message["role"] == "user" for message in rollout.messages)
            said = [
                (place, str(message["content"]))
                for place, message in enumerate(recording.messages)
                if message["role"] == "user"
            ]
            self._recorded = iter(said[given:])
        place, line = next(self._recorded, (len(recording.messages), None))
        inner = made_by_tools(recording, episode_of(rollout).task)
        calls = [one for one in recording.tool_calls if one.by == "user" and one.content != INTERRUPTED]
        calls = [one for one in calls if ("user", one.id) not in inner]
        heard = [each for until, each in recording.user_messages.items() if until <= place]
        before = {one["tool_call_id"] for each in heard for one in each if one["role"] == "tool"}
        for call in calls[self._called :]:
            if call.id in before:
                self._called += 1
                await rollout.call_tool(call.name, copy.deepcopy(call.arguments))
        if line is None:
            _end(recording, rollout)
            return ""
        return line


def _end(recording: Trace, rollout: Rollout) -> None:
    """End a replay where the recording ends: for the recorded reason, if no message brings it about."""
    if recording.stop_reason in CUT_OFF:
        episode_of(rollout).stop(recording.stop_reason, recording.stop_detail)  # type: ignore[arg-type]  # one of CUT_OFF
    else:
        episode_of(rollout).stop("agent_done", "the recording ends here")


# -- gold actions


class GoldAgent:
    """Makes every gold call in its first turn, then says all outputs; it has nothing to say after that.

    It makes the calls of both sides, in the order of the row.

    If the row has outputs, terminal tools are left out: they would end the rollout before these are said.
    ``made`` are its calls by the number of their action; tools may make others. ``plan`` are other calls to
    make than the row's, by the number of the action that each stands for. Unless it ``tries_all``, a rollout
    ends unjudged at a call that cannot be made as the row writes it.
    """

    sees_answers = True
    episode: Episode

    def __init__(self, plan: Sequence[tuple[int, Action]] | None = None, *, tries_all: bool = False) -> None:
        self.tries_all = tries_all
        self.made: dict[int, ToolCall] = {}
        self._plan = plan
        self._said_all = False

    def check(self, task: Task) -> None:
        """Raise ``BundleError`` for a row without ground truth."""
        if task.row.actions is None:
            raise BundleError(
                f"row {task.row.id} has no actions, which the gold agent replays",
                place=task.row.place,
                remedy="Add its ground truth calls, skip such rows with --skip-unplayable, or choose another "
                "--agent.",
            )

    async def respond(self, rollout: Rollout) -> str:
        """All outputs, one a line."""
        if self._said_all:
            rollout.stop("agent_done", "the gold agent has done and said all it knows")
            return ""
        self._said_all = True
        task = self.episode.task
        plan = list(enumerate(task.row.actions or ())) if self._plan is None else self._plan
        results = [""] * (1 + max((number for number, _ in plan), default=0))
        for number, action in plan:
            tool = task.registry_of(action.by).tools.get(action.name)
            if tool is not None and tool.terminal and task.row.outputs:
                continue  # it would end the rollout before the outputs are said
            try:
                arguments = resolve_references(action.arguments, results)
            except BundleError as error:
                if self.tries_all:
                    raise
                return self._broken_off(number, action, str(error))
            made = self.episode.trace.tool_calls
            before = len(made)
            try:
                side = rollout if action.by == "agent" else self.episode.user_rollout
                results[number] = await side.call_tool(action.name, arguments)
            finally:
                if len(made) > before:
                    self.made[number] = made[-1]  # after the calls that its tool made
            if self.made[number].status in IMPOSSIBLE and not self.tries_all:
                return self._broken_off(number, action, self.made[number].content)
        return "\n".join(task.row.outputs or ()) or "Done."

    def _broken_off(self, number: int, action: Action, fault: str) -> str:
        why = f"actions[{number}] ({action.name}) cannot be played: {one_line(fault)}"
        self.episode.stop("infrastructure_error", why)
        return ""
