"""Where the rollouts of an evaluation are played: in this process, or in several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from reward_kit.agent.outcome import RolloutOutcome


class Executor(Protocol):
    """Plays the jobs that are left of an evaluation."""

    @property
    def outcomes(self) -> list[RolloutOutcome]:
        """The rollouts that are on the disk, attempts that were repeated included."""
        ...

    async def run(self) -> None:
        """Play until no job is left or none may begin any more; the first error ends all, and is raised."""

    async def close(self) -> None:
        """Give back what was opened, whatever happened."""
