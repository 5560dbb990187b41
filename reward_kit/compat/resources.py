"""Services for reward functions, such as a judge model, set up once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class ResourceWrapper(ABC):
    """A service with set-up and clean-up, for ``reward_function(resources=...)``."""

    @abstractmethod
    def setup(self) -> None:
        """Make the service ready; idempotent."""

    @abstractmethod
    def cleanup(self) -> None:
        """Release the service."""

    @abstractmethod
    def get_client(self) -> Any:
        """Return the client for the reward function. Raises ``RuntimeError`` before ``setup``."""


class LLMResourceWrapper(ResourceWrapper):
    """A model client, usually from the Fireworks SDK; set-up applies an on-demand deployment."""

    def __init__(self, llm_instance: Any) -> None:
        self.llm_instance = llm_instance
        self._ready = False

    def setup(self) -> None:
        """Call ``apply()`` of an on-demand deployment; any other client is ready as it is."""
        if self._ready:
            return
        if getattr(self.llm_instance, "deployment_type", None) == "on-demand":
            self.llm_instance.apply()
        self._ready = True

    def cleanup(self) -> None:
        """Release the client; the deployment itself keeps running."""
        self._ready = False

    def get_client(self) -> Any:
        """Return the wrapped client."""
        if not self._ready:
            raise RuntimeError("LLM resource is not set up: call setup() first")
        return self.llm_instance


def create_llm_resource(llm_instance: Any) -> LLMResourceWrapper:
    """Wrap a model client for ``reward_function(resources={"llms": [...]})``."""
    return LLMResourceWrapper(llm_instance)
