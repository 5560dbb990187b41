"""The tools that an agent chose to show its model."""

from flight_bundle import Bundle

from reward_kit.agent import agent_eval

PLAYERS = """
async def looking(rollout):
    return ", ".join(tool["function"]["name"] for tool in rollout.tools)


async def narrowing(rollout):
    rollout.tools = [tool for tool in rollout.tools if "booking" in tool["function"]["name"]]
    return "Sorry."


async def describing(rollout):
    for tool in rollout.tools:
        tool["function"]["description"] = "Use me!"
    return "Sorry."


async def hiding(rollout):
    rollout.tools = []
    return "Sorry."
"""
ALL = ["search_flights", "create_booking", "pay_booking"]


def test_the_trajectory_names_them(bundle: Bundle) -> None:
    for agent, names in {"looking": None, "narrowing": ALL[1:], "describing": ALL, "hiding": []}.items():
        result = agent_eval(bundle.dataset, agent=bundle.player(agent), user="none", n_rollouts=1)
        assert result.record(result.outcomes[0]).offered_tools == names, agent
