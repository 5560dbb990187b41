"""An agent of the OpenAI Agents SDK (``pip install openai-agents``) on the tools of a rollout.

    reward-kit agent-eval -d my_task --agent openai_agents_example:Agent --model gpt-4o-mini

The SDK asks the model with its own client, at ``OPENAI_BASE_URL`` with ``OPENAI_API_KEY``.
"""

from functools import partial

import agents
import openai

from reward_kit.agent import Usage
from reward_kit.errors import ModelError, ModelSetupError

UNREACHABLE = (openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError)
REFUSED = (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError)


class Agent:
    """Play one rollout; the conversation stays in the SDK's own form from turn to turn."""

    def __init__(self, model="gpt-4o-mini"):
        self.model = model
        self.client = openai.AsyncOpenAI()
        self.conversation = []

    @classmethod
    def configured(cls, config, tasks):
        """Read ``--model``; called once per evaluation."""
        return partial(cls, config.model or "gpt-4o-mini")

    async def respond(self, rollout):
        if self.conversation:
            self.conversation.append({"role": "user", "content": rollout.lines[-1].text})
        else:
            self.conversation = [
                {"role": "user" if line.speaker == "user" else "assistant", "content": line.text}
                for line in rollout.lines
            ]
        agent = agents.Agent(
            name="agent",
            instructions=rollout.system_prompt,
            model=agents.OpenAIChatCompletionsModel(self.model, self.client),
            model_settings=agents.ModelSettings(extra_args={"seed": rollout.seed}),
            tools=[tool_for(rollout, tool["function"]) for tool in rollout.tools],
        )
        try:
            result = await agents.Runner.run(
                agent,
                self.conversation,
                max_turns=None,  # the rollout counts the steps
                hooks=Counting(rollout, self.model),
                run_config=agents.RunConfig(tracing_disabled=True),
            )
        except UNREACHABLE as error:
            raise ModelError(str(error)) from error  # no fault of the agent: the rollout is played again
        except REFUSED as error:
            raise ModelSetupError(str(error)) from error  # key or model: it would meet every rollout
        self.conversation = result.to_input_list()
        return result.final_output

    async def close(self):
        await self.client.close()


def tool_for(rollout, function):
    """A tool of the SDK that makes the call on the rollout's database."""

    async def call(_context, arguments):
        return await rollout.call_tool(function["name"], arguments)

    return agents.FunctionTool(
        name=function["name"],
        description=function["description"],
        params_json_schema=function["parameters"],
        on_invoke_tool=call,
        strict_json_schema=False,  # the schema is the bundle's, with optional parameters
    )


class Counting(agents.RunHooks):
    """Report each model call to the rollout: a step before it, its tokens after it."""

    def __init__(self, rollout, model):
        self.rollout = rollout
        self.model = model

    async def on_llm_start(self, context, agent, system_prompt, input_items):
        self.rollout.step()

    async def on_llm_end(self, context, agent, response):
        used = response.usage
        usage = Usage(
            calls=1, input_tokens=used.input_tokens, output_tokens=used.output_tokens, unpriced_calls=1
        )
        self.rollout.count_usage(usage, model=self.model)
