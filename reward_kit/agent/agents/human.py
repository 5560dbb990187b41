"""A person at the terminal who plays the agent (``--agent human``) or the user (``--user human``)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from reward_kit.agent.base.terminal import Person, show
from reward_kit.agent.base.types import STOP_TOKEN

if TYPE_CHECKING:
    from reward_kit.agent.rollout.rollout import Rollout, UserRollout

HELP = """Type your reply to the user, or a command:
  /call TOOL {"argument": "value"}   call a tool
  /tools                             list the tools
  /policy                            show the system prompt
End of input (Ctrl-D) ends the rollout."""
USER_HELP = f"Type what you say; {STOP_TOKEN} or the end of input (Ctrl-D) ends the rollout."


class HumanAgent(Person):
    """Shows what the user says, and takes replies and tool calls from the keyboard."""

    async def respond(self, rollout: Rollout) -> str:
        """The reply that the person types."""
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
                show(rollout.system_prompt or "There is no system prompt.")
            elif command.startswith("/"):
                show(HELP)
            elif command:
                return typed.strip()


class HumanUser(Person):
    """Shows what the agent says and takes the user's lines from the keyboard, until the end of the input."""

    async def respond(self, rollout: UserRollout) -> str:
        """The line that the person types."""
        instructions = (rollout.sim_user_prompt or "").strip()
        introduction = ["you are the user ===", *([instructions] if instructions else []), USER_HELP]
        self.show_news(rollout, "\n".join(introduction))
        while True:
            typed = await self.typed("user> ")
            if typed is None:
                return STOP_TOKEN
            if typed.strip():
                return typed.strip()


async def _call(rollout: Rollout, text: str) -> None:
    name, _, arguments = text.strip().partition(" ")
    show(await rollout.call_tool(name, arguments.strip() or "{}") if name else HELP)


def _signature(function: dict[str, object]) -> str:
    parameters = function.get("parameters")
    properties = parameters.get("properties", {}) if isinstance(parameters, dict) else {}
    names = ", ".join(
        f"{name}: {json.dumps(schema.get('type', 'any'))}" for name, schema in properties.items()
    )
    return f"  {function['name']}({names})  {function.get('description') or ''}".rstrip()
