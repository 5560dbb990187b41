"""A user played by a model."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.agent.history import text_of
from reward_kit.errors import SimulatedUserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.completion import Message
    from reward_kit.agent.history import Line
    from reward_kit.agent.rollout import Rollout

GREETING = "Hello! What can I do for you today?"
"""What the model is answering when the user speaks first; it is not part of the rollout's messages."""

EMPTY_ANSWERS = 3


class LLMUser:
    """Says one line at a time, from the row's ``sim_user_prompt`` and what was said aloud so far.

    The roles are turned round: to the model, the agent's lines are the user's and its own are the
    assistant's. It sees no system prompt of the agent's, no tool calls and no reasoning.
    """

    needs_model = True

    async def respond(self, rollout: Rollout) -> str:
        """The user's next line; ``SimulatedUserError`` after three empty answers in a row."""
        messages = [
            {"role": "system", "content": prompt("llm", rollout.task.sim_user_prompt or "")},
            *turned_round(rollout.lines),
        ]
        for _ in range(EMPTY_ANSWERS):
            completion = await rollout.complete(messages, role="user")
            line = text_of(completion.message.get("content")).strip()
            if line:
                return line
        raise SimulatedUserError(
            f"{EMPTY_ANSWERS} answers in a row were empty (finish reason {completion.finish_reason})",
            place=f"model {completion.model}" if completion.model else None,
        )


def prompt(name: str, instruction: str) -> str:
    """The text of ``prompts/NAME.txt`` about a user with this instruction."""
    return _template(name).replace("{instruction}", instruction.strip())


def turned_round(lines: Sequence[Line]) -> list[Message]:
    """The conversation as the user's model sees it: it begins with the other side and the roles alternate."""
    messages: list[Message] = []
    if not lines or lines[0].speaker == "user":
        messages.append({"role": "user", "content": GREETING})
    for line in lines:
        role = "assistant" if line.speaker == "user" else "user"
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n\n{line.text}"
        else:
            messages.append({"role": role, "content": line.text})
    return messages


@functools.cache
def _template(name: str) -> str:
    return (Path(__file__).parent / "prompts" / f"{name}.txt").read_text(encoding="utf-8").strip()
