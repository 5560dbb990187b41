"""An agent that does again what a recorded rollout shows, on the tools as they are now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.history import INTERRUPTED, NOT_RUN, written_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.bundle import Task
    from reward_kit.agent.completion import Message
    from reward_kit.agent.rollout import Rollout
    from reward_kit.agent.runs.recording import Recordings


class ReplayAgent:
    """Makes the recorded tool calls and says the recorded replies; each assistant message is one step."""

    def __init__(self, recordings: Recordings) -> None:
        self.recordings = recordings
        self._recorded: Iterator[Message] | None = None
        self._unrun: set[str] = set()

    def check(self, task: Task) -> None:
        """Raise ``BundleError`` where no rollout of the row was recorded."""
        self.recordings.check(task.row.id)

    async def respond(self, rollout: Rollout) -> str | Message:
        """The next recorded reply; where the recording ends, the rollout ends."""
        if self._recorded is None:
            self._recorded = self._after_beginning(rollout)
        for message in self._recorded:
            rollout.step()
            if not message.get("tool_calls"):
                return message
            announced = rollout.record(message)["tool_calls"]
            for call, recorded in zip(announced, message["tool_calls"], strict=True):
                if recorded["id"] not in self._unrun:
                    function = recorded["function"]
                    await rollout.call_tool(
                        function["name"], written_arguments(function["arguments"]), call_id=call["id"]
                    )
        rollout.stop("agent_done", "the recording ends here")
        return ""

    def _after_beginning(self, rollout: Rollout) -> Iterator[Message]:
        """The recorded assistant messages, without those that the row begins with."""
        messages = self.recordings.messages(rollout.row.id, rollout.index)
        self._unrun = {
            message["tool_call_id"]
            for message in messages
            if message["role"] == "tool" and message["content"] in (INTERRUPTED, NOT_RUN)
        }
        given = sum(message["role"] == "assistant" for message in rollout.messages)
        return iter([message for message in messages if message["role"] == "assistant"][given:])
