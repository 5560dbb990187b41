"""A person who plays the agent (``--agent human``) or the user (``--user human``).

They sit at the terminal, unless they are given another ``Screen``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from typing import TYPE_CHECKING, Protocol

from reward_kit.agent.base.text import tamed
from reward_kit.agent.base.types import STOP_TOKEN
from reward_kit.agent.base.worker_thread import in_thread
from reward_kit.agent.database import Changes
from reward_kit.errors import ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.rollout.episode import Episode
    from reward_kit.agent.rollout.rollout import Rollout, UserRollout

HELP = """Type your reply to the user, or a command:
  /call TOOL {"argument": "value"}   call a tool
  /tools                             list the tools
  /policy                            show the system prompt
End of input (Ctrl-D) ends the rollout."""
USER_HELP = f"Type what you say; {STOP_TOKEN} or the end of input (Ctrl-D) ends the rollout."
USER_TOOLS_HELP = f"""Type what you say, or a command:
  /call TOOL {{"argument": "value"}}   call one of your tools
  /tools                             list your tools
{STOP_TOKEN} or the end of input (Ctrl-D) ends the rollout."""


class Screen(Protocol):
    """A place at which a person reads and types."""

    def show(self, text: str, *, manual: str = "") -> None:
        """Show a text; ``manual`` says how to type commands, on a screen that has nothing else."""

    async def typed(self, rollout: Rollout | UserRollout, side: str, *, begins: bool) -> str | None:
        """Return the next line of the person who plays ``side``; None at the end of the input.

        ``begins``: it is the first time in this rollout.
        """


class Terminal:
    """The terminal of this process."""

    def show(self, text: str, *, manual: str = "") -> None:
        """Write lines; control characters in them are shown, not sent."""
        text = f"{text}\n{manual}" if text and manual else text or manual
        sys.stdout.write(f"{tamed(text)}\n")
        sys.stdout.flush()

    async def typed(self, _rollout: Rollout | UserRollout, side: str, *, begins: bool) -> str | None:
        """The next line, without the line end; None at the end of the input.

        Raises ``ModelSetupError`` if a rollout begins and the input has ended, unless it is a terminal.
        """
        sys.stdout.write(f"{side}> ")
        sys.stdout.flush()
        if sys.stdin.isatty():
            await _wait_for_line()
        line = await in_thread(sys.stdin.readline)
        if not line and begins and not sys.stdin.isatty():
            remedy = "Start it in a terminal, or give it a line for each turn."
            raise ModelSetupError("the standard input has ended: nobody is there to play", remedy=remedy)
        return line.rstrip("\r\n") if line else None


class Person:
    """Someone who plays the agent or the user of a rollout; ``alone`` unless they play both."""

    interactive = True
    side = ""
    manual = ""

    def __init__(self, screen: Screen | None = None, *, alone: bool = True) -> None:
        self.screen = screen or Terminal()
        self._is_alone = alone
        self._rollout: Rollout | UserRollout | None = None
        self._begins = True
        self._shown = 0

    def show_news(self, rollout: Rollout | UserRollout, instructions: str = "") -> None:
        """Show the lines said since the person's last one; at the beginning, the instructions first."""
        self._begins = self._rollout is None
        self._rollout = rollout
        lines = rollout.lines
        if self._begins:
            title = f"\n=== {rollout.row_id}, rollout {rollout.index + 1}: you are the {self.side} ==="
            self.screen.show("\n".join(filter(None, [title, instructions])), manual=f"{self.manual}\n")
        for line in lines[self._shown :]:
            self.screen.show(f"{line.speaker}: {line.text}")
        self._shown = len(lines) + 1  # what is typed now is on the screen already

    async def typed(self) -> str | None:
        """The next text of the person; None if they leave."""
        assert self._rollout is not None
        return await self.screen.typed(self._rollout, self.side, begins=self._begins)

    async def call(self, rollout: Rollout, text: str) -> str | None:
        """Make the call in ``text`` and return its answer; None for a text without a call."""
        name, _, arguments = text.strip().partition(" ")
        if not name:
            self.screen.show("", manual=self.manual)
            return None
        return await rollout.call_tool(name, arguments.strip() or "{}")

    def show_tools(self, rollout: Rollout) -> None:
        """Show the tools, a line each."""
        self.screen.show("\n".join(signature(tool["function"]) for tool in rollout.tools))

    async def close(self) -> None:
        """Show that the rollout is over, and why: the person may not have ended it."""
        if self._rollout is not None and (self._is_alone or self.side == "agent"):
            detail = f" ({self._rollout.stop_detail})" if self._rollout.stop_detail else ""
            self.screen.show(f"\n=== the rollout is over: {self._rollout.stop_reason}{detail} ===")


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
    """Shows what the user says, and takes replies and tool calls."""

    side = "agent"
    manual = HELP
    sees_answers = True
    episode: Episode
    """Set before the first turn; it has the rows that each call changed."""

    async def respond(self, rollout: Rollout) -> str:
        """The reply that the person types."""
        self.show_news(rollout)
        while True:
            typed = await self.typed()
            if typed is None:
                rollout.stop("agent_done", "the person left")
                return ""
            command, _, rest = typed.strip().partition(" ")
            if command == "/call":
                content = await self.call(rollout, rest)
                if content is not None:
                    changed = Changes.from_json(self.episode.tool_calls[-1].changes).lines()
                    self.screen.show("\n".join([content, *(f"  {line}" for line in changed)]))
            elif command == "/tools":
                self.show_tools(rollout)
            elif command == "/policy":
                self.screen.show(rollout.system_prompt or "There is no system prompt.")
            elif command.startswith("/"):
                self.screen.show("", manual=HELP)
            elif command:
                return typed.strip()


class HumanUser(Person):
    """Shows what the agent says, and takes the user's lines."""

    side = "user"
    manual = USER_HELP

    @classmethod
    def configured(cls, config: EvaluationConfig, _tasks: object) -> Callable[[], HumanUser]:
        """Return the factory of an evaluation's users."""
        return partial(cls, alone=config.agent != "human")

    async def respond(self, rollout: UserRollout) -> str:
        """The line that the person types, after calls of the user's tools."""
        has_tools = bool(rollout.tools)
        if has_tools:
            self.manual = USER_TOOLS_HELP
        self.show_news(rollout, (rollout.sim_user_prompt or "").strip())
        while True:
            typed = await self.typed()
            if typed is None:
                return STOP_TOKEN
            command, _, rest = typed.strip().partition(" ")
            if has_tools and command == "/call":
                content = await self.call(rollout, rest)
                self.screen.show(content or "")
            elif has_tools and command == "/tools":
                self.show_tools(rollout)
            elif command:
                return typed.strip()


def signature(function: dict[str, object]) -> str:
    """A tool in a line: its name, parameters and description."""
    parameters = function.get("parameters")
    properties = parameters.get("properties", {}) if isinstance(parameters, dict) else {}
    names = ", ".join(
        f"{name}: {json.dumps(schema.get('type', 'any'))}" for name, schema in properties.items()
    )
    return f"  {function['name']}({names})  {function.get('description') or ''}".rstrip()
