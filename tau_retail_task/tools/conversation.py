"""Tools that touch no data."""

from __future__ import annotations


async def think(thought: str) -> str:
    """Write down a thought, for reasoning that takes several steps. Nothing is looked up or changed.

    Args:
        thought: The thought.
    """
    del thought  # what it is good for is that the model has written it
    return ""


async def transfer_to_human_agents(summary: str) -> str:
    """Hand the customer over to a human agent, which ends the conversation. Only for what no other tool here
    can do, or where the customer asks for a human outright.

    Args:
        summary: What the customer wants and what has been done so far, in a few words.
    """
    del summary
    return "Transfer successful"
