"""Call OpenAI-compatible endpoints directly, which costs less CPU per call than LiteLLM.

Requests, completions and errors equal those of ``reward_kit.agent.models.litellm``; tests compare the two
exchange by exchange. Requests that this client does not support go to LiteLLM.
"""
