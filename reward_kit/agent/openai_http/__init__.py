"""OpenAI-compatible endpoints asked without LiteLLM in between, for what that costs per call.

Where this path serves, it means the same as ``reward_kit.agent.llm``: the same request, the same completion,
the same errors; tests compare the two exchange by exchange. What it does not know it leaves to LiteLLM.
"""
