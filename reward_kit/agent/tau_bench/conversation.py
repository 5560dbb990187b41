"""Parse a tau-bench trajectory: native tool calls, or the text of its act and react agents.

The agents ``act`` and ``react`` write text: an assistant message that ends in ``Action:`` and one JSON
object. A user message ``API output: ...`` answers a tool, the user's next line answers ``respond``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.base.types import Message

API_OUTPUT = "API output:"
ACTION = "Action:"
RESPOND = "respond"
NOTHING_SAID = "(nothing was said)"
"""Stands for an empty reply, which tau-bench accepts."""


@dataclass(frozen=True, slots=True)
class AgentStep:
    """One answer of the agent's model, as a message with native tool calls or as a reply.

    ``observed`` holds the recorded results of its calls, in order; further calls were not run. It is None if
    the trajectory ends before the results.
    """

    message: Message
    observed: tuple[str, ...] | None = ()

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Calls that were run."""
        calls: list[dict[str, Any]] = self.message.get("tool_calls") or []
        return calls if self.observed is None else calls[: len(self.observed)]


@dataclass(slots=True)
class Conversation:
    """The agent's steps and the user's lines, each in order."""

    steps: list[AgentStep] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def conversation_of(traj: Sequence[Message]) -> Conversation:
    """Parse the messages of a trajectory as ``read_results`` returns them."""
    found = Conversation()
    messages = [message for message in traj if message["role"] not in ("system", "developer")]
    is_text = _is_text(messages)
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            rest = messages[at + 1 :]
            found.steps.append(_text_step(message, rest) if is_text else _native_step(message, rest))
        elif message["role"] == "user" and not (is_text and _is_output(message)):
            found.lines.append(text_of(message.get("content")))
    return found


def _is_text(messages: Sequence[Message]) -> bool:
    if any(_calls(message) or message["role"] in ("tool", "function") for message in messages):
        return False
    return any(
        _is_output(message) or (message["role"] == "assistant" and _action(message) is not None)
        for message in messages
    )


def _native_step(message: Message, rest: Sequence[Message]) -> AgentStep:
    calls = _calls(message)
    if not calls:
        return _reply(text_of(message.get("content")))
    observed = []
    for answer in rest:
        if answer["role"] not in ("tool", "function"):
            break
        observed.append(text_of(answer.get("content")))
    if rest and not observed:  # no call was run: the text beside the calls went to the user
        return _reply(text_of(message.get("content")))
    native = {"role": "assistant", "content": text_of(message.get("content")) or None, "tool_calls": calls}
    return AgentStep(native, tuple(observed) if rest else None)


def _calls(message: Message) -> list[dict[str, Any]]:
    """Return the native tool calls, including the older ``function_call``."""
    calls = message.get("tool_calls") or []
    if not calls and message.get("function_call"):
        calls = [{"function": message["function_call"]}]
    return [
        {"id": call.get("id"), "type": "function", "function": {"arguments": None, **call["function"]}}
        for call in calls
    ]


def _text_step(message: Message, rest: Sequence[Message]) -> AgentStep:
    text = text_of(message.get("content"))
    action = _action(message)
    answered = bool(rest) and _is_output(rest[0])
    if action is None:
        return _reply(text.rpartition(ACTION)[2].strip())
    name, arguments = action
    if name == RESPOND and not answered:
        content = arguments.get("content") if isinstance(arguments, dict) else arguments
        return _reply(content if isinstance(content, str) else json.dumps(content))
    thought = text.rpartition(ACTION)[0].strip()
    call = {"id": None, "type": "function", "function": {"name": name, "arguments": arguments}}
    observed = (_output(rest[0]),) if answered else None if not rest else ()
    return AgentStep({"role": "assistant", "content": thought or None, "tool_calls": [call]}, observed)


def _action(message: Message) -> tuple[str, Any] | None:
    """Return the action that tau-bench read from an answer: the JSON after the last ``Action:``."""
    text = text_of(message.get("content")).rpartition(ACTION)[2].strip()
    try:
        action = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(action, dict) or not isinstance(action.get("name"), str) or "arguments" not in action:
        return None
    arguments = action["arguments"]
    return action["name"], arguments if isinstance(arguments, dict | str) else json.dumps(arguments)


def _is_output(message: Message) -> bool:
    return message["role"] == "user" and text_of(message.get("content")).startswith(API_OUTPUT)


def _output(message: Message) -> str:
    return text_of(message.get("content")).removeprefix(API_OUTPUT).removeprefix(" ")


def _reply(text: str) -> AgentStep:
    return AgentStep({"role": "assistant", "content": text if text.strip() else NOTHING_SAID})
