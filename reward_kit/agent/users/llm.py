"""A user played by a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from reward_kit.agent.cut_text import excerpt
from reward_kit.agent.history import text_of
from reward_kit.agent.model_clients.answer_parts import split_thoughts, text_in
from reward_kit.agent.users.prompting import prompt
from reward_kit.errors import SimulatedUserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reward_kit.agent.completion import Message
    from reward_kit.agent.history import Line
    from reward_kit.agent.rollout import Rollout

GREETING = "Hello! What can I do for you today?"
"""What the model is answering when the user speaks first; it is not part of the rollout's messages."""

EMPTY_ANSWERS = 3
LONGEST_REFUSAL = 200


class Draft(NamedTuple):
    """A line that may be said, and the thought that led to it, which is never said."""

    line: str
    thought: str = ""


class LLMUser:
    """Says one line at a time, from the row's ``sim_user_prompt`` and what was said aloud so far.

    The roles are turned round: to the model, the agent's lines are the user's and its own are the
    assistant's. It sees no system prompt of the agent's, no tool calls and no reasoning.
    """

    needs_model = True

    async def respond(self, rollout: Rollout) -> str:
        """The user's next line; ``SimulatedUserError`` after three answers in a row with nothing to say."""
        draft = await asked(rollout, self.conversation(rollout), spoken)
        return draft.line

    def conversation(self, rollout: Rollout) -> list[Message]:
        """What the user's model is asked: its part, and the conversation."""
        return [
            {"role": "system", "content": prompt(rollout.task, "user")},
            *turned_round(rollout.lines),
        ]


async def asked(rollout: Rollout, messages: list[Message], read: Callable[[str], Draft]) -> Draft:
    """What the user's model says to ``messages``; asked again where ``read`` finds no line in its answer."""
    for _ in range(EMPTY_ANSWERS):
        completion = await rollout.complete(messages, role="user")
        draft = read(text_of(completion.message.get("content")))
        if draft.line:
            return draft
    refusal = excerpt(text_in(completion.message), LONGEST_REFUSAL)
    raise SimulatedUserError(
        f"{EMPTY_ANSWERS} answers in a row were empty: they held nothing to say "
        f"(finish reason {completion.finish_reason})" + (f"; the last one: {refusal}" if refusal else ""),
        place=f"model {completion.model}" if completion.model else None,
    )


def spoken(answer: str) -> Draft:
    """The whole answer is the line, but for ``<think>`` blocks that a model wrote into it."""
    line, thought = split_thoughts(answer)
    return Draft(line.strip(), thought)


def turned_round(lines: Sequence[Line], instead: Mapping[int, str] | None = None) -> list[Message]:
    """The conversation as the user's model sees it: it begins with the other side and the roles alternate.

    ``instead`` holds, by position in ``lines``, what is shown in place of a line.
    """
    messages: list[Message] = []
    if not lines or lines[0].speaker == "user":
        messages.append({"role": "user", "content": GREETING})
    for position, line in enumerate(lines):
        role = "assistant" if line.speaker == "user" else "user"
        text = instead.get(position, line.text) if instead else line.text
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n\n{text}"
        else:
            messages.append({"role": role, "content": text})
    return messages
