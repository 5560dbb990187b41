"""A person at the terminal who plays the agent (``--agent human``) or the user (``--user human``)."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

from reward_kit.agent.base.text import tamed
from reward_kit.agent.base.types import STOP_TOKEN
from reward_kit.agent.base.worker_thread import in_thread
from reward_kit.errors import ModelSetupError

if TYPE_CHECKING:
    from reward_kit.agent.rollout.rollout import Rollout, UserRollout

HELP = """Type your reply to the user, or a command:
  /call TOOL {"argument": "value"}   call a tool
  /tools                             list the tools
  /policy                            show the system prompt
End of input (Ctrl-D) ends the rollout."""
USER_HELP = f"Type what you say; {STOP_TOKEN} or the end of input (Ctrl-D) ends the rollout."


def show(text: str) -> None:
    """Write a line to the terminal; control characters in it are shown, not sent."""
    sys.stdout.write(f"{tamed(text)}\n")
    sys.stdout.flush()


class Person:
    """Someone at the terminal who plays the agent or the user of a rollout."""

    interactive = True

    def __init__(self) -> None:
        self._rollout: Rollout | None = None
        self._begins = True
        self._shown = 0

    def show_news(self, rollout: Rollout, introduction: str) -> None:
        """Show the lines said since the person's last one; at the beginning, ``introduction`` first."""
        self._begins = self._rollout is None
        self._rollout = rollout
        lines = rollout.lines
        if self._begins:
            show(f"\n=== {rollout.row_id}, rollout {rollout.index + 1}: {introduction}\n")
        for line in lines[self._shown :]:
            show(f"{line.speaker}: {line.text}")
        self._shown = len(lines) + 1  # what is typed now is on the screen already

    async def typed(self, prompt: str) -> str | None:
        """The next line that the person types, without the line end; None at the end of the input.

        Raises ``ModelSetupError`` if a rollout begins and the input has ended, unless it is a terminal.
        """
        sys.stdout.write(prompt)
        sys.stdout.flush()
        if sys.stdin.isatty():
            await _wait_for_line()
        line = await in_thread(sys.stdin.readline)
        if not line and self._begins and not sys.stdin.isatty():
            remedy = "Start it in a terminal, or give it a line for each turn; --resume plays the rest."
            raise ModelSetupError("the standard input has ended: nobody is there to play", remedy=remedy)
        return line.rstrip("\r\n") if line else None

    async def close(self) -> None:
        """Show that the rollout is over, and why: it may be without the person's doing."""
        if self._rollout is not None:
            detail = f" ({self._rollout.stop_detail})" if self._rollout.stop_detail else ""
            show(f"\n=== the rollout is over: {self._rollout.stop_reason}{detail} ===")


async def _wait_for_line() -> None:
    """Wait for a line at the terminal without reading it.

    A thread that reads outlives a rollout whose time is over, and takes the line typed for the next one.
    """
    loop = asyncio.get_running_loop()
    there = asyncio.Event()
    try:
        loop.add_reader(sys.stdin, there.set)
    except NotImplementedError:  # on Windows
        return
    try:
        await there.wait()
    finally:
        loop.remove_reader(sys.stdin)


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
