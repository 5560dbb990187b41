"""A conversation as a model sees it that has no tool calling: everything is text.

Tool calls are written as the protocol asks for them, results come as messages of the user's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reward_kit.agent.agents.text_actions import RESPOND
from reward_kit.agent.history import encodable, text_of
from reward_kit.agent.model_clients.answer_parts import joined, reasoning_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reward_kit.agent.completion import Message

NO_ANSWER = "(no answer)"
"""Stands in the transcript for an empty answer: providers take no empty messages."""


def system_message(prompts: Sequence[str], tools: list[dict[str, Any]], instruction: str) -> Message:
    """The policy, the tools and how to answer."""
    sections = [*prompts, f"# Available tools\n\n{json.dumps(tools, ensure_ascii=False)}", instruction]
    return {"role": "system", "content": "\n\n".join(filter(None, map(str.strip, sections)))}


def opening(messages: Sequence[Message], tools: list[dict[str, Any]], instruction: str) -> list[Message]:
    """What a rollout begins with: the system message, then the conversation so far as text."""
    roles = [message["role"] for message in messages] + [""]
    begin = next(index for index, role in enumerate(roles) if role != "system")
    prompts = [text_of(message.get("content")) for message in messages[:begin]]
    return [system_message(prompts, tools, instruction), *_as_text(messages[begin:])]


def _as_text(messages: Sequence[Message]) -> Iterator[Message]:
    results = {message["tool_call_id"]: message for message in messages if message["role"] == "tool"}
    for message in messages:
        calls = message.get("tool_calls") or ()
        if message["role"] == "tool":
            continue
        if message["role"] != "assistant":
            yield {"role": message["role"], "content": message.get("content")}
        elif not calls:
            said = json.dumps({"content": text_of(message.get("content"))}, ensure_ascii=False)
            yield answered(written(reasoning_of(message), RESPOND, said))
        thought = joined(reasoning_of(message), text_of(message.get("content")))
        for call in calls:
            function = call["function"]
            yield answered(written(thought, function["name"], function["arguments"]))
            if call["id"] in results:
                yield observed(text_of(results[call["id"]].get("content")))
            thought = ""


def written(thought: str, name: str, arguments: str) -> str:
    """An action in the form of the protocol; ``arguments`` is JSON text, or a text in its place."""
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        given = arguments
    action = f"Action:\n{json.dumps({'name': name, 'arguments': given}, ensure_ascii=False)}"
    return f"Thought:\n{thought}\n{action}" if thought else action


def answered(text: str) -> Message:
    """The model's own message."""
    return {"role": "assistant", "content": encodable(text) or NO_ANSWER}


def observed(result: str) -> Message:
    """What a tool gave back."""
    return {"role": "user", "content": f"API output: {encodable(result)}"}
