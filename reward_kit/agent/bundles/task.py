"""What a row of a bundle comes to: with its tools, its reward and its seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from reward_kit.agent.bundles.seed import Seed
    from reward_kit.agent.bundles.task_row import TaskRow
    from reward_kit.agent.tool_registry import ToolRegistry

Reward = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Task:
    """A row with everything that it names, ready to run. ``folder`` is the bundle's.

    ``user_prompts`` are the bundle's own prompts of the simulated user, by name (``bundles.user_prompts``).
    """

    row: TaskRow
    registry: ToolRegistry
    reward: Reward
    seed: Seed
    folder: Path
    user_prompts: Mapping[str, str] = field(default_factory=dict)

    def copied(self) -> Task:
        """This task for one rollout, whose agent, user and tools may do to the row what they like."""
        return replace(self, row=self.row.copied())

    @property
    def system_prompt(self) -> str | None:
        """The text of the row's system prompt."""
        return self.row.text("system_prompt")

    @property
    def sim_user_prompt(self) -> str | None:
        """The text that tells the simulated user who it is and what it wants."""
        return self.row.text("sim_user_prompt")

    @property
    def sim_user_template(self) -> str | None:
        """The row's own prompt of the user's model; ``{instruction}`` is its ``sim_user_prompt``."""
        return self.row.text("sim_user_template")
