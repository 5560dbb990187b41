"""A plain model with native tool calling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.models.answer_parts import add_note, joined, reasoning_of, split_thoughts, text_in
from reward_kit.agent.rollout.calls import run_calls
from reward_kit.agent.rollout.rollout import episode_of
from reward_kit.errors import AgentError

if TYPE_CHECKING:
    from reward_kit.agent.base.types import Message
    from reward_kit.agent.rollout.rollout import Rollout

EMPTY_ANSWERS = 3
"""Empty answers in a row that are unusable output; until then the model is asked again, a step each."""


class ToolCallingAgent:
    """Asks the model, runs the tools it calls, and asks again until an answer calls none: that is the reply.

    Text beside tool calls stays in the history and is not shown to the user, and neither are thoughts in
    ``<think>`` blocks. Without parallel tool calls only the first call of an answer counts, and the history
    shows only that one.
    """

    needs_model = True

    async def respond(self, rollout: Rollout) -> Message:
        """The assistant message with the reply, reasoning fields included."""
        episode, empty = episode_of(rollout), 0
        while True:
            messages = self.messages(rollout)
            if empty:
                messages = add_note(rollout.messages if messages is None else messages)
            completion = await episode.complete(messages, again=empty)
            message = completion.message
            if message.get("tool_calls"):
                empty = 0
                await run_calls(episode, message)
                continue
            reply = _reply(message)
            if reply["content"]:
                return reply
            empty += 1
            if empty == EMPTY_ANSWERS:
                raise AgentError(
                    f"{EMPTY_ANSWERS} answers in a row held neither text nor a tool call "
                    f"(finish reason {completion.finish_reason})",
                    place=f"model {completion.model}" if completion.model else None,
                )

    def messages(self, _rollout: Rollout) -> list[Message] | None:
        """The messages for the model; None for the rollout's own."""
        return None


def _reply(message: Message) -> Message:
    """The message without thoughts."""
    said, thought = split_thoughts(text_in(message))
    reply = {**message, "content": said if said.strip() else ""}
    reply.pop("refusal", None)  # it is the content
    if thought:
        reply["reasoning_content"] = joined(reasoning_of(message), thought)
    return reply
