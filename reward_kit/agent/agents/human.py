"""A person at the terminal in the agent's place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from reward_kit.agent import terminal

if TYPE_CHECKING:
    from reward_kit.agent.rollout import Rollout

HELP = """Type your reply to the user, or a command:
  /call TOOL {"argument": "value"}   call a tool
  /tools                             list the tools
  /policy                            show the system prompt
End of input (Ctrl-D) ends the rollout."""


class HumanAgent:
    """Shows what the user says, and takes replies and tool calls from the keyboard."""

    interactive = True

    def __init__(self) -> None:
        self._shown = 0
        self._rollout: Rollout | None = None

    async def respond(self, rollout: Rollout) -> str:
        """What the person replies."""
        self._rollout = rollout
        begins = self._shown == 0
        if begins:
            terminal.show(
                f"\n=== {rollout.row.id}, rollout {rollout.index + 1}: you are the agent ===\n{HELP}\n"
            )
        for line in rollout.lines[self._shown :]:
            terminal.show(f"{line.speaker}: {line.text}")
        self._shown = len(rollout.lines) + 1  # the reply below is on the screen already
        while True:
            typed = await terminal.ask("agent> ", begins=begins)
            if typed is None:
                rollout.stop("agent_done", "the person at the terminal left")
                return ""
            command, _, rest = typed.strip().partition(" ")
            if command == "/call":
                await _call(rollout, rest)
            elif command == "/tools":
                terminal.show("\n".join(_signature(tool["function"]) for tool in rollout.tools))
            elif command == "/policy":
                terminal.show(rollout.task.system_prompt or "There is no system prompt.")
            elif command.startswith("/"):
                terminal.show(HELP)
            elif command:
                return typed.strip()

    async def close(self) -> None:
        """Say that it is over: it may be without the person's doing."""
        terminal.show_end(self._rollout)


async def _call(rollout: Rollout, text: str) -> None:
    name, _, arguments = text.strip().partition(" ")
    if not name:
        terminal.show(HELP)
        return
    terminal.show(await rollout.call_tool(name, arguments.strip() or "{}"))


def _signature(function: dict[str, object]) -> str:
    parameters = function.get("parameters")
    properties = parameters.get("properties", {}) if isinstance(parameters, dict) else {}
    names = ", ".join(
        f"{name}: {json.dumps(schema.get('type', 'any'))}" for name, schema in properties.items()
    )
    return f"  {function['name']}({names})  {function.get('description') or ''}".rstrip()
