"""Services that a reward function uses, such as a judge model: set up once, handed over at each call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class ResourceWrapper(ABC):
    """A service with a beginning and an end; ``reward_function(resources=...)`` takes these."""

    @abstractmethod
    def setup(self) -> None:
        """Make the service ready; doing so again changes nothing."""

    @abstractmethod
    def cleanup(self) -> None:
        """Give the service up."""

    @abstractmethod
    def get_client(self) -> Any:
        """What the reward function gets. Raises ``RuntimeError`` before ``setup``."""


class LLMResourceWrapper(ResourceWrapper):
    """A model client, usually of the Fireworks SDK; an on-demand deployment is applied at set-up."""

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
        """Forget the client; the deployment itself is left to whoever owns it."""
        self._ready = False

    def get_client(self) -> Any:
        """The client that was wrapped."""
        if not self._ready:
            raise RuntimeError("LLM resource is not set up: call setup() first")
        return self.llm_instance


def create_llm_resource(llm_instance: Any) -> LLMResourceWrapper:
    """Wrap a model client for ``reward_function(resources={"llms": [...]})``."""
    return LLMResourceWrapper(llm_instance)
