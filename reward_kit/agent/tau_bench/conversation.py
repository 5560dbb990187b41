"""Parse a tau-bench trajectory: native tool calls, or the text of its act and react agents.

The agents ``act`` and ``react`` write text: an assistant message that ends in ``Action:`` and one JSON
object. A user message ``API output: ...`` answers a tool, the user's next line answers ``respond``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import takewhile
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
TOOL_ROLES = ("tool", "function")


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
    native = any(_calls(message) or message["role"] in TOOL_ROLES for message in messages)
    is_text = not native and any(_is_output(message) or _action(message) for message in messages)
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            rest = messages[at + 1 :]
            found.steps.append(_text_step(message, rest) if is_text else _native_step(message, rest))
        elif message["role"] == "user" and not (is_text and _is_output(message)):
            found.lines.append(text_of(message.get("content")))
    return found


def _native_step(message: Message, rest: Sequence[Message]) -> AgentStep:
    calls = _calls(message)
    text = text_of(message.get("content"))
    answers = takewhile(lambda answer: answer["role"] in TOOL_ROLES, rest)
    observed = tuple(text_of(answer.get("content")) for answer in answers)
    if not calls or (rest and not observed):  # if no call was run, the text beside the calls went to the user
        return _reply(text)
    native = {"role": "assistant", "content": text or None, "tool_calls": calls}
    return AgentStep(native, observed if rest else None)


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
    thought, _, said = text_of(message.get("content")).rpartition(ACTION)
    action = _action(message)
    answered = bool(rest) and _is_output(rest[0])
    if action is None:
        return _reply(said.strip())
    name, arguments = action
    if name == RESPOND and not answered:
        content = arguments.get("content") if isinstance(arguments, dict) else arguments
        return _reply(content if isinstance(content, str) else json.dumps(content))
    call = {"id": None, "type": "function", "function": {"name": name, "arguments": arguments}}
    output = text_of(rest[0].get("content")).removeprefix(API_OUTPUT).removeprefix(" ") if rest else ""
    observed = (output,) if answered else () if rest else None
    return AgentStep(
        {"role": "assistant", "content": thought.strip() or None, "tool_calls": [call]}, observed
    )


def _action(message: Message) -> tuple[str, Any] | None:
    """Return the action that tau-bench read from an answer: the JSON after the last ``Action:``."""
    if message["role"] != "assistant":
        return None
    try:
        action = json.loads(text_of(message.get("content")).rpartition(ACTION)[2])
    except (ValueError, RecursionError):
        return None
    if not isinstance(action, dict) or not isinstance(action.get("name"), str) or "arguments" not in action:
        return None
    arguments = action["arguments"]
    return action["name"], arguments if isinstance(arguments, dict | str) else json.dumps(arguments)


def _is_output(message: Message) -> bool:
    return message["role"] == "user" and text_of(message.get("content")).startswith(API_OUTPUT)


def _reply(text: str) -> AgentStep:
    return AgentStep({"role": "assistant", "content": text if text.strip() else NOTHING_SAID})
