"""Two agents that are plain functions: one asks the model of ``--model``, one follows a rule.

reward-kit agent-eval -d my_task --agent function_agent:answer --model openai/gpt-4o-mini
reward-kit agent-eval -d my_task --agent function_agent:take_the_seat
"""

import re


async def answer(rollout):
    """Ask the model, make one call at a time, and return its last text."""
    while True:
        message = (await rollout.complete()).message
        calls = message.get("tool_calls")
        if not calls:
            return message
        function = calls[0]["function"]
        await rollout.call_tool(function["name"], function["arguments"])


def take_the_seat(rollout):
    """Follow a rule; a ``def`` runs in a thread, where ``call_tool`` and ``complete`` wait for results."""
    number, passenger = re.search(r"Seat (\d+) for (\w+)", rollout.lines[-1].text).groups()
    result = rollout.call_tool("take_seat", {"number": int(number), "passenger": passenger})
    return f"Seat {number}, {passenger}: {result}."
