"""Where the rollouts of an evaluation are played: in this process, or in several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.runs.broken_off import BrokenOff


class Executor(Protocol):
    """Plays the jobs that are left of an evaluation."""

    @property
    def outcomes(self) -> list[RolloutOutcome]:
        """The rollouts that are on the disk, attempts that were repeated included."""
        ...

    @property
    def broken_off(self) -> BrokenOff:
        """What was used by attempts that were broken off; all of it is known once this is closed."""
        ...

    async def run(self) -> None:
        """Play until no job is left or none may begin any more; the first error ends all, and is raised."""

    async def close(self) -> None:
        """Give back what was opened, whatever happened."""
