"""A user that says what the user of a recorded rollout said: the other half of ``--agent replay:PATH``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.rollout import Rollout
    from reward_kit.agent.runs.recording import Recordings


class ReplayUser:
    """Says the recorded lines of the user in order, whatever the agent answers."""

    def __init__(self, recordings: Recordings) -> None:
        self.recordings = recordings
        self._recorded: Iterator[str] | None = None

    def check(self, task: Task) -> None:
        """Raise ``BundleError`` where no rollout of the row was recorded."""
        self.recordings.check(task.row.id)

    async def respond(self, rollout: Rollout) -> str:
        """The next recorded line; where the recording ends, the rollout ends as it did."""
        recording = self.recordings.find(rollout.row.id, rollout.index)
        if self._recorded is None:
            given = sum(message["role"] == "user" for message in rollout.messages)
            self._recorded = iter(
                [str(message["content"]) for message in recording.messages if message["role"] == "user"][
                    given:
                ]
            )
        line = next(self._recorded, None)
        if line is None:
            recording.end(rollout)
            return ""
        return line
