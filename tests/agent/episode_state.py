"""All that can be seen of an episode, and a user with a memory of its own."""

from copy import deepcopy
from typing import Any

from reward_kit.agent import Episode


class CountingUser:
    """Numbers its lines; its memory is its own."""

    def __init__(self, heard: tuple[str, ...] = ()) -> None:
        self.heard = heard

    async def respond(self, rollout: Any) -> str:
        self.heard += tuple(line.text for line in rollout.lines[-1:])
        return f"Line {len(self.heard)}"

    def fork(self) -> "CountingUser":
        return CountingUser(self.heard)


def state(episode: Episode) -> dict[str, Any]:
    """All that can be seen of an episode, but for its id and the time of day."""
    user: Any = episode.user
    return {
        "rows": episode.changes().to_json(),
        "messages": [dict(message) for message in episode.messages],
        "lines": list(episode.lines),
        "calls": [(one.name, one.id, one.content, one.turn, one.step) for one in episode.tool_calls],
        "changed": [one.changes for one in episode.tool_calls],
        "counted": (episode.steps, episode.turns, episode.stop_reason, episode.database.draws),
        "usage": {role: used.calls for role, used in episode.usage.items()},
        "asked": len(episode.model_calls),
        "memory": deepcopy(vars(user)),
        "faults": episode.trace.tool_faults,
    }
