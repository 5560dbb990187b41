"""An agent and a user that do again what a recorded rollout shows, on the tools as they are now."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.history import INTERRUPTED, NOT_RUN, written_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.base.types import Message
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.records.recording import Recordings
    from reward_kit.agent.records.rollout_record import RolloutRecord
    from reward_kit.agent.rollout.episode import Episode
    from reward_kit.agent.rollout.rollout import Rollout, TaskView, UserRollout

CUT_OFF = frozenset({"max_steps", "timeout", "budget", "agent_error", "user_error", "infrastructure_error"})
"""Stop reasons that nothing in the messages brings about."""


class ReplayAgent:
    """Makes the recorded tool calls and says the recorded replies; each assistant message is one step.

    Calls of one message are made in the order in which they ended, which is the order of their effects. Those
    that were stopped or never run are not run now either.
    """

    sees_answers = True
    episode: Episode

    def __init__(self, recordings: Recordings) -> None:
        self.recordings = recordings
        self._script: _Script | None = None

    def check(self, task: Task) -> None:
        """Raise ``BundleError`` if no rollout of the row was recorded."""
        self.recordings.check(task.row.id)

    async def respond(self, rollout: Rollout) -> str | Message:
        """The next recorded reply; at the end of the recording the rollout ends as that did."""
        if self._script is None:
            self._script = _Script(self.recordings.find(rollout.row_id, rollout.index), self.episode)
        for message in self._script.messages:
            rollout.step()
            if not message.get("tool_calls"):
                return message
            await self._script.make_calls(message, rollout)
        _end(self._script.recording, rollout)
        return ""


class ReplayUser:
    """Says the recorded lines of the user in order, whatever the agent answers."""

    def __init__(self, recordings: Recordings) -> None:
        self.recordings = recordings
        self._recorded: Iterator[str] | None = None

    def check(self, task: TaskView) -> None:
        """Raise ``BundleError`` if no rollout of the row was recorded."""
        self.recordings.check(task.id)

    async def respond(self, rollout: UserRollout) -> str:
        """The next recorded line; at the end of the recording the rollout ends as that did."""
        recording = self.recordings.find(rollout.row_id, rollout.index)
        if self._recorded is None:
            given = sum(message["role"] == "user" for message in rollout.messages)
            said = [str(message["content"]) for message in recording.messages if message["role"] == "user"]
            self._recorded = iter(said[given:])
        line = next(self._recorded, None)
        if line is None:
            _end(recording, rollout)
            return ""
        return line


class _Script:
    """A recording's assistant messages, without those that the row begins with, and how to make its calls."""

    def __init__(self, recording: RolloutRecord, episode: Episode) -> None:
        self.recording = recording
        self._episode = episode
        given = sum(message["role"] == "assistant" for message in episode.messages)
        spoken = [message for message in recording.messages if message["role"] == "assistant"][given:]
        self.messages: Iterator[Message] = iter(spoken)
        self._ended = {
            message["tool_call_id"]: (number, message["content"])
            for number, message in enumerate(recording.messages)
            if message["role"] == "tool"
        }
        self._made = {call.id: call for call in recording.tool_calls}
        if episode.max_steps == episode.row.max_steps:  # the row's limit was met when it was recorded
            episode.max_steps = max(episode.max_steps, len(spoken))

    async def make_calls(self, message: Message, rollout: Rollout) -> None:
        """Announce the calls of a recorded message, and make those that were made."""
        announced = rollout.record(copy.deepcopy(message))["tool_calls"]
        pairs = [(call["id"], now["id"]) for call, now in zip(message["tool_calls"], announced, strict=True)]
        functions = {call["id"]: call["function"] for call in message["tool_calls"]}
        for recorded_id, call_id in sorted(pairs, key=lambda pair: self._place(pair[0])):
            _, content = self._ended.get(recorded_id, (0, None))
            if content == INTERRUPTED:
                self._episode.history.observe(call_id, INTERRUPTED)
            elif content != NOT_RUN:
                name, arguments = self._call(recorded_id, functions[recorded_id])
                await rollout.call_tool(name, arguments, call_id=call_id)

    def _place(self, recorded_id: str) -> float:
        return self._ended[recorded_id][0] if recorded_id in self._ended else float("inf")

    def _call(self, recorded_id: str, function: dict[str, Any]) -> tuple[str, dict[str, Any] | str]:
        """The call as it was made: the history holds it only in a form that providers accept."""
        made = self._made.get(recorded_id)
        if made is not None:
            return made.name, copy.deepcopy(made.arguments)
        return function["name"], written_arguments(function["arguments"])


def _end(recording: RolloutRecord, rollout: Rollout) -> None:
    """End a replay where the recording ends: for the recorded reason, if no message brings it about."""
    if recording.stop_reason in CUT_OFF:
        rollout.stop(recording.stop_reason, recording.stop_detail)  # type: ignore[arg-type]  # one of CUT_OFF
    else:
        rollout.stop("agent_done", "the recording ends here")
