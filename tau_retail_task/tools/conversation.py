"""Tools that need no data: a calculator, a notepad, and the transfer to a person."""

from reward_kit.agent import ToolRegistry

from . import faithful

R = ToolRegistry("conversation")


@R.tool
async def calculate(expression: str) -> str:
    """Work out an arithmetic expression and round the result to two decimals.

    Args:
        expression: Numbers, the operators + - * /, parentheses and spaces, for example "19.99 * 2 - 4.5".
            No currency signs, percent signs or thousands separators.
    """
    return faithful.calculated(expression)


@R.tool
async def think(thought: str) -> str:
    """Write down a thought, for reasoning that takes several steps. Nothing is looked up or changed.

    Args:
        thought: The thought.
    """
    return ""


@R.tool(terminal="always")
async def transfer_to_human_agents(summary: str) -> str:
    """Hand the customer over to a human agent, which ends the conversation. Only for what no other tool here
    can do, or where the customer asks for a human outright.

    Args:
        summary: What the customer wants and what has been done so far, in a few words.
    """
    return "Transfer successful"
