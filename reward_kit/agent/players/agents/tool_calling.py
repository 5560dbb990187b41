"""A plain model with native tool calling."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reward_kit.agent.models.answer_parts import add_note, joined, reasoning_of, split_thoughts, text_in
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
        empty = 0
        while True:
            messages = self.messages(rollout)
            if empty:
                messages = add_note(rollout.messages if messages is None else messages)
            completion = await rollout.complete(messages, again=empty)
            message = completion.message
            if message.get("tool_calls"):
                empty = 0
                await self._run_tools(rollout, message)
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

    async def _run_tools(self, rollout: Rollout, message: Message) -> None:
        asked = [_well_formed(call) for call in message["tool_calls"]]
        if not rollout.parallel_tool_calls:
            asked = asked[:1]
        recorded = rollout.record({**message, "tool_calls": asked})
        for call, announced in zip(asked, recorded["tool_calls"], strict=True):
            function = call["function"]
            await rollout.call_tool(function["name"], function["arguments"], call_id=announced["id"])


def _well_formed(given: Any) -> dict[str, Any]:
    """The call with a name and arguments that are text, whatever the model made of them.

    The tool registry answers a missing name and arguments that are no object with an error for the model.
    """
    call: dict[str, Any] = given if isinstance(given, dict) else {}
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    name, arguments = function.get("name"), function.get("arguments")
    if isinstance(name, str) and isinstance(arguments, str) and arguments and isinstance(call.get("id"), str):
        return call
    if not isinstance(arguments, str | dict | None):
        arguments = json.dumps(arguments)
    identifier = call.get("id")
    return {
        **call,
        "id": identifier if isinstance(identifier, str) else None,
        "function": {**function, "name": name if isinstance(name, str) else "", "arguments": arguments or ""},
    }


def _reply(message: Message) -> Message:
    """The message without thoughts."""
    said, thought = split_thoughts(text_in(message))
    reply = {**message, "content": said if said.strip() else ""}
    reply.pop("refusal", None)  # it is the content
    if thought:
        reply["reasoning_content"] = joined(reasoning_of(message), thought)
    return reply
