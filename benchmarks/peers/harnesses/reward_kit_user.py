"""The players of the reward_kit run: the user, and an agent that plays the stub in worker processes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from conversation import INPUT_TOKENS, OUTPUT_TOKENS, WISHES, next_turn

from reward_kit.agent.base.types import Completion, Usage

if TYPE_CHECKING:
    from reward_kit.agent.rollout.rollout import Rollout

DELAY = "PEERS_DELAY"
"""The environment variable with the seconds that each answer takes, for worker processes."""


async def second_wish(rollout: Rollout) -> str:
    """The next line of the user: a second wish after the first reply, then the end."""
    return WISHES[1] if rollout.turns < 2 else "###STOP###"


async def answer(messages: list[dict[str, Any]], delay: float) -> Completion:
    """The stub's answer, by the number of assistant messages so far."""
    turn = sum(message["role"] == "assistant" for message in messages)
    text, call = await next_turn(turn, delay)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if call:
        function = {"name": call[0], "arguments": call[1]}
        message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": function}]
    usage = Usage(calls=1, input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS, cost=0.001)
    return Completion(message, usage, "tool_calls" if call else "stop", "stub")


class StubAgent:
    """Asks the stub, and runs the tools that it calls."""

    def __init__(self) -> None:
        self._delay = float(os.environ[DELAY])

    async def respond(self, rollout: Rollout) -> str:
        while True:
            rollout.step()
            completion = await answer(rollout.messages, self._delay)
            rollout.count_usage(completion.usage, model=completion.model)
            if not completion.message.get("tool_calls"):
                return str(completion.message["content"])
            recorded = rollout.record(completion.message)
            for call in recorded["tool_calls"]:
                function = call["function"]
                await rollout.call_tool(function["name"], function["arguments"], call_id=call["id"])
