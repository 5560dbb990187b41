"""A LangGraph graph (``pip install langgraph langchain-openai``) on the tools of a rollout.

    reward-kit agent-eval -d my_task --agent langgraph_example:Agent --model gpt-4o-mini

LangChain asks the model with its own client, at ``OPENAI_BASE_URL`` with ``OPENAI_API_KEY``.
"""

from functools import partial

import openai
from langchain_core.messages import ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from reward_kit.agent import Usage
from reward_kit.errors import ModelError, ModelSetupError

UNREACHABLE = (openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError)
REFUSED = (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError)


class Agent:
    """Play one rollout; the graph's checkpointer keeps the conversation from turn to turn."""

    def __init__(self, model="gpt-4o-mini"):
        self.model = model
        self.graph = None

    @classmethod
    def configured(cls, config, tasks):
        """Read ``--model``; called once per evaluation."""
        return partial(cls, config.model or "gpt-4o-mini")

    async def respond(self, rollout):
        if self.graph is None:
            self.graph = graph_for(rollout, self.model)
            said = [("human" if line.speaker == "user" else "ai", line.text) for line in rollout.lines]
        else:
            said = [("human", rollout.lines[-1].text)]
        config = {"configurable": {"thread_id": rollout.id}, "recursion_limit": 2 * rollout.max_steps + 2}
        try:
            state = await self.graph.ainvoke({"messages": said}, config)
        except UNREACHABLE as error:
            raise ModelError(str(error)) from error  # no fault of the agent: the rollout is played again
        except REFUSED as error:
            raise ModelSetupError(str(error)) from error  # key or model: it would meet every rollout
        return state["messages"][-1].text


def graph_for(rollout, name):
    """Build model -> tools -> model, until an answer has no call."""
    model = ChatOpenAI(model=name, seed=rollout.seed).bind_tools(rollout.tools)
    prompt = [("system", rollout.system_prompt)] if rollout.system_prompt else []

    async def think(state):
        rollout.step()
        message = await model.ainvoke([*prompt, *state["messages"]])
        used = message.usage_metadata or {}
        usage = Usage(
            calls=1,
            input_tokens=used.get("input_tokens", 0),
            output_tokens=used.get("output_tokens", 0),
            unpriced_calls=1,
        )
        rollout.count_usage(usage, model=name)
        return {"messages": [message]}

    async def act(state):
        answers = []
        for call in calls_of(state):
            result = await rollout.call_tool(call["name"], call["args"])
            answers.append(ToolMessage(result, tool_call_id=call["id"]))
        return {"messages": answers}

    graph = StateGraph(MessagesState)
    graph.add_node("model", think)
    graph.add_node("tools", act)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tools" if calls_of(state) else END)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=InMemorySaver())


def calls_of(state):
    """Return the calls of the last message, also those with arguments that are not JSON."""
    message = state["messages"][-1]
    return [*message.tool_calls, *message.invalid_tool_calls]
