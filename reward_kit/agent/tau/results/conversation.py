"""Trajectories of tau-bench as messages with native tool calls.

The agents ``act`` and ``react`` write text: an assistant message that ends in ``Action:`` and one JSON
object. A user message ``API output: ...`` answers a tool, the user's next line answers ``respond``.
"""

from __future__ import annotations

import json
from itertools import chain, repeat, takewhile
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.history import NOT_RUN
from reward_kit.agent.base.text import text_of
from reward_kit.agent.tau.results.trial import NOTHING_SAID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.base.types import Message

API_OUTPUT = "API output:"
ACTION = "Action:"
RESPOND = "respond"
TOOL_ROLES = ("tool", "function")


def messages_of(traj: Sequence[Message]) -> list[Message]:
    """The trajectory with native tool calls and their results, without the system prompt and empty lines.

    Calls that were not run have the result ``NOT_RUN``; the last ones have none if the trajectory ends there.
    """
    traj = [message for message in traj if message["role"] not in ("system", "developer")]
    native = any(_functions(message) or message["role"] in TOOL_ROLES for message in traj)
    is_text = not native and any(_is_output(message) or _action(message) for message in traj)
    messages: list[Message] = []
    for at, message in enumerate(traj):
        if message["role"] == "assistant":
            step = _text_step if is_text else _native_step
            messages += step(f"call_{at}", message, traj[at + 1 :])
        elif message["role"] == "user" and not (is_text and _is_output(message)):
            line = text_of(message.get("content"))
            messages += [{"role": "user", "content": line}] if line.strip() else []
    return messages


def _native_step(name: str, message: Message, rest: Sequence[Message]) -> list[Message]:
    functions = _functions(message)
    text = text_of(message.get("content"))
    answers = takewhile(lambda answer: answer["role"] in TOOL_ROLES, rest)
    results = [text_of(answer.get("content")) for answer in answers]
    if not functions or (rest and not results):  # if no call was run, the text beside them went to the user
        return _reply(text)
    return _called(name, text, functions, results if rest else None)


def _functions(message: Message) -> list[dict[str, Any]]:
    """The functions that a message calls, also by the older ``function_call``."""
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return functions or [function for function in [message.get("function_call")] if function]


def _text_step(name: str, message: Message, rest: Sequence[Message]) -> list[Message]:
    thought, _, said = text_of(message.get("content")).rpartition(ACTION)
    action = _action(message)
    answered = bool(rest) and _is_output(rest[0])
    if action is None:
        return _reply(said.strip())
    arguments = action["arguments"]
    if action["name"] == RESPOND and not answered:
        content = arguments.get("content") if isinstance(arguments, dict) else arguments
        return _reply(content if isinstance(content, str) else json.dumps(content))
    output = [text_of(rest[0].get("content")).removeprefix(API_OUTPUT).removeprefix(" ")] if answered else []
    return _called(name, thought.strip(), [action], output if rest else None)


def _called(
    name: str, text: str, functions: Sequence[dict[str, Any]], results: Sequence[str] | None
) -> list[Message]:
    calls = []
    for number, function in enumerate(functions):
        arguments = function.get("arguments")
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        made = {"name": function["name"], "arguments": written}
        calls.append({"id": f"{name}_{number}", "type": "function", "function": made})
    answers = [] if results is None else zip(calls, chain(results, repeat(NOT_RUN)), strict=False)
    return [
        {"role": "assistant", "content": text or None, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": call["id"], "content": content} for call, content in answers),
    ]


def _reply(text: str) -> list[Message]:
    return [{"role": "assistant", "content": text if text.strip() else NOTHING_SAID}]


def _action(message: Message) -> dict[str, Any] | None:
    """The action that tau-bench read from an answer: the JSON after the last ``Action:``."""
    if message["role"] != "assistant":
        return None
    try:
        action = json.loads(text_of(message.get("content")).rpartition(ACTION)[2])
    except (ValueError, RecursionError):
        return None
    is_call = isinstance(action, dict) and isinstance(action.get("name"), str) and "arguments" in action
    return action if is_call else None


def _is_output(message: Message) -> bool:
    return message["role"] == "user" and text_of(message.get("content")).startswith(API_OUTPUT)
