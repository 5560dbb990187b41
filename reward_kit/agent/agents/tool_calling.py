"""A plain model with native tool calling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reward_kit.agent.history import text_of
from reward_kit.errors import AgentError

if TYPE_CHECKING:
    from reward_kit.agent.completion import Completion, Message
    from reward_kit.agent.rollout import Rollout

EMPTY_ANSWERS = 3
"""So many empty answers in a row are unusable output; until then the model is asked again, a step each."""


class ToolCallingAgent:
    """Asks the model, runs the tools it calls, and asks again until an answer calls none: that is the reply.

    Text beside tool calls stays in the history and is not shown to the user. Where parallel tool calls are
    not wanted, only the first call of an answer counts and the history shows only that one.
    """

    needs_model = True

    async def respond(self, rollout: Rollout) -> Message:
        """The assistant message with the reply, reasoning fields included."""
        empty = 0
        while True:
            completion = await rollout.complete()
            message = completion.message
            if message.get("tool_calls"):
                empty = 0
                await self._run_tools(rollout, message)
            elif text_of(message.get("content")).strip():
                return message
            else:
                empty += 1
                if empty == EMPTY_ANSWERS:
                    raise _empty_answers(completion)

    async def _run_tools(self, rollout: Rollout, message: Message) -> None:
        asked: list[dict[str, Any]] = message["tool_calls"]
        if not rollout.parallel_tool_calls:
            asked = asked[:1]
        recorded = rollout.record({**message, "tool_calls": asked})
        for call, announced in zip(asked, recorded["tool_calls"], strict=True):
            function = call["function"]
            await rollout.call_tool(
                function.get("name") or "", function.get("arguments") or "", call_id=announced["id"]
            )


def _empty_answers(completion: Completion) -> AgentError:
    return AgentError(
        f"{EMPTY_ANSWERS} answers in a row held neither text nor a tool call "
        f"(finish reason {completion.finish_reason})",
        place=f"model {completion.model}" if completion.model else None,
    )
