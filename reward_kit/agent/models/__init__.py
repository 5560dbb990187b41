"""Clients for language models: LiteLLM, OpenAI-compatible HTTP, local servers; limits and caching.

``StepData`` keeps the import path that Reward Kit 0.2 to 0.4 gave it.
"""

from reward_kit.models import StepData as StepData
