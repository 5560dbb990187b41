"""Tool calling with example conversations in the system prompt."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from reward_kit.agent.agents.displays import FORM, read_displays
from reward_kit.agent.agents.tool_calling import ToolCallingAgent
from reward_kit.agent.history import text_of
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.completion import Message
    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.rollout import Rollout

EXAMPLES = 5
"""So many example conversations are shown in a rollout."""


class FewShotAgent(ToolCallingAgent):
    """``tool-calling`` whose model also sees a few of the ``displays``, drawn by the rollout's seed.

    They stand behind the system prompt for the model alone: the recorded history keeps the row's own.
    """

    def __init__(self, displays: Sequence[str]) -> None:
        self._displays = displays

    @classmethod
    def configured(cls, config: EvaluationConfig, tasks: Sequence[Task]) -> Callable[[], FewShotAgent]:  # noqa: ARG003 - the hook's form
        """A maker of agents with the displays of ``--few-shot-displays``, which are read once.

        Raises ``UsageError`` where the option is missing, ``BundleError`` for a faulty file.
        """
        if config.few_shot_displays is None:
            raise UsageError(
                "the agent few-shot needs example conversations",
                remedy=f"Name a .jsonl file with --few-shot-displays. {FORM}",
            )
        displays = read_displays(config.few_shot_displays)
        return lambda: cls(displays)

    def messages(self, rollout: Rollout) -> list[Message]:
        """The rollout's messages, with the examples behind the system prompt."""
        drawn = self.drawn(rollout.seed)
        shown = "\n\n".join(f"Example {number}:\n{text}" for number, text in enumerate(drawn, 1))
        first, *rest = rollout.messages or [{"role": "user", "content": ""}]
        if first["role"] != "system":
            return [{"role": "system", "content": shown}, *rollout.messages]
        return [{**first, "content": f"{text_of(first['content'])}\n\n{shown}"}, *rest]

    def drawn(self, seed: int) -> list[str]:
        """The examples for a rollout of this seed; all, in an order of its own, where there are no more."""
        chance = random.Random(f"few-shot {seed}")  # noqa: S311 - repeatable is what it must be
        return chance.sample(self._displays, min(EXAMPLES, len(self._displays)))
