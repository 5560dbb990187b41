"""The players of the ticket office, a customer and a clerk to imitate, and conversations in TRL's form."""

from __future__ import annotations

import json
import random
import re
from typing import Any

from reward_kit.agent.players.agents.replay import GoldAgent

STOP = "###STOP###"


class Customer:
    """The model of the simulated user. If it is asked, it leaves with the probability ``faults``."""

    def __init__(self, faults: float = 0.0) -> None:
        self.faults = faults

    def __call__(self, messages: list[Any]) -> str:
        """Return the next line: the name, the seat if asked, or goodbye."""
        prompt = re.search(r"You are (\w+) and want an? (\w+) seat", messages[0]["content"])
        assert prompt is not None
        if len(messages) == 2:
            return f"A seat for {prompt[1]}, please."
        if "?" in messages[-1]["content"]:
            return STOP if random.random() < self.faults else f"{prompt[2].capitalize()}, please."
        return f"Thank you. {STOP}"


class Clerk(GoldAgent):
    """Plays the gold actions, and so knows the seat. In every third rollout it asks all the same."""

    async def respond(self, rollout: Any) -> str:
        """Ask first, or make the gold calls and say that it is done."""
        if rollout.index % 3 == 0 and len(rollout.lines) == 1:
            return "Which seat?"
        return await super().respond(rollout)


def as_trained(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A conversation as TRL has it: the agent speaks with ``say_to_user``, whose result is the user's line.

    Only the agent's last line, which ends the rollout, stays a plain reply.
    """
    found: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        spoken = any(one["role"] == "assistant" for one in found)
        if message["role"] == "assistant" and not calls and number + 1 < len(messages):
            calls = [{"name": "say_to_user", "arguments": {"text": message["content"]}}]
        if calls:
            found.append({"role": "assistant", "content": "", "tool_calls": [_call(one) for one in calls]})
        elif message["role"] == "user" and spoken:
            found.append({"role": "tool", "name": "say_to_user", "content": message["content"]})
        else:
            found.append(message)
    return found


def _call(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return {"type": "function", "function": {"name": function["name"], "arguments": arguments}}


def as_message(text: str) -> dict[str, Any]:
    """The assistant message in what the model wrote."""
    try:
        called = re.search(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL)
        call = json.loads(called[1]) if called else {}
        if call.get("name") == "say_to_user":
            return {"content": str(call["arguments"]["text"])}
        return {"tool_calls": [{"function": {"name": call["name"], "arguments": call["arguments"]}}]}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {"content": text or "(nothing)"}
