"""A person at the terminal in the agent's place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from reward_kit.agent.terminal import Seat, show

if TYPE_CHECKING:
    from reward_kit.agent.rollout import Rollout

HELP = """Type your reply to the user, or a command:
  /call TOOL {"argument": "value"}   call a tool
  /tools                             list the tools
  /policy                            show the system prompt
End of input (Ctrl-D) ends the rollout."""


class HumanAgent(Seat):
    """Shows what the user says, and takes replies and tool calls from the keyboard."""

    async def respond(self, rollout: Rollout) -> str:
        """What the person replies."""
        self.show_news(rollout, f"you are the agent ===\n{HELP}")
        while True:
            typed = await self.typed("agent> ")
            if typed is None:
                rollout.stop("agent_done", "the person at the terminal left")
                return ""
            command, _, rest = typed.strip().partition(" ")
            if command == "/call":
                await _call(rollout, rest)
            elif command == "/tools":
                show("\n".join(_signature(tool["function"]) for tool in rollout.tools))
            elif command == "/policy":
                show(rollout.task.system_prompt or "There is no system prompt.")
            elif command.startswith("/"):
                show(HELP)
            elif command:
                return typed.strip()


async def _call(rollout: Rollout, text: str) -> None:
    name, _, arguments = text.strip().partition(" ")
    if not name:
        show(HELP)
        return
    show(await rollout.call_tool(name, arguments.strip() or "{}"))


def _signature(function: dict[str, object]) -> str:
    parameters = function.get("parameters")
    properties = parameters.get("properties", {}) if isinstance(parameters, dict) else {}
    names = ", ".join(
        f"{name}: {json.dumps(schema.get('type', 'any'))}" for name, schema in properties.items()
    )
    return f"  {function['name']}({names})  {function.get('description') or ''}".rstrip()
