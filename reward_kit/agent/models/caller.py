"""The rollout for which a model is called: its name for caches and limits, and its clock.

A model that has ``for_rollout(caller)`` is asked through what that gives, for each attempt at a rollout.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from reward_kit.agent.base.types import Completion, Message, Model, Role


class Clock(Protocol):
    """The time limit of a rollout, which can stand still."""

    def hold(self) -> None:
        """Stop, until ``go_on`` has been called as often as this."""

    def go_on(self) -> None:
        """Run again."""


@dataclass(slots=True)
class Caller:
    """One attempt at a rollout.

    ``conversation`` is the same in all attempts. Callers of the same ``task`` may share a fault that makes
    their calls fail. ``index`` and ``attempt`` are numbers from 0. Whoever plays the rollout sets ``clock``.
    """

    conversation: Hashable = field(default_factory=object)
    task: Hashable = field(default_factory=object)
    index: int = 0
    attempt: int = 0
    clock: Clock | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the rollout's clock stand still in this block: a limit holds its call back."""
        if self.clock is None:
            yield
            return
        self.clock.hold()
        try:
            yield
        finally:
            self.clock.go_on()


class BoundModel:
    """A model as one caller asks it: ``complete`` passes ``caller`` on."""

    def __init__(self, model: Any, caller: Caller) -> None:
        self.name: str = model.name
        self._model = model
        self._caller = caller

    async def complete(
        self,
        messages: list[Message],
        *,
        tools: list[dict[str, Any]] | None = None,
        seed: int | None = None,
        parallel_tool_calls: bool = True,
    ) -> Completion:
        """Ask the model; raises what it raises."""
        completion: Completion = await self._model.complete(
            messages, tools=tools, seed=seed, parallel_tool_calls=parallel_tool_calls, caller=self._caller
        )
        return completion


def model_of_rollout(model: Model, caller: Caller) -> Model:
    """The model as ``caller`` asks it; the model itself if it makes no difference between rollouts."""
    bind = getattr(model, "for_rollout", None)
    return model if bind is None else bind(caller)


def models_of_rollout(models: Mapping[Role, Model], caller: Caller) -> dict[Role, Model]:
    """The models by role, as ``caller`` asks them."""
    return {role: model_of_rollout(model, caller) for role, model in models.items()}
