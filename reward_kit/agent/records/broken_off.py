"""Usage of aborted attempts: not scored, but paid for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.types import Usage
from reward_kit.agent.records.outcome import usage_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class BrokenOff:
    """The number of attempts that asked a model and came to no end, and their usage by role.

    An interruption breaks off what is under way, and so does a fault that ends the run.
    """

    rollouts: int = 0
    usage: dict[str, Usage] = field(default_factory=dict)

    def add(self, other: BrokenOff) -> None:
        """Count ``other`` in."""
        self.rollouts += other.rollouts
        for role, usage in other.usage.items():
            self.usage.setdefault(role, Usage()).add(usage)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "rollouts": self.rollouts,
            "usage": {role: usage_to_json(usage) for role, usage in self.usage.items()},
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> BrokenOff:
        """The inverse of ``to_json``; raises ``KeyError`` or ``TypeError`` for anything else."""
        return cls(plain["rollouts"], {role: Usage(**usage) for role, usage in plain["usage"].items()})


def broken_off(usage: Mapping[Any, Usage]) -> BrokenOff:
    """One attempt with this usage; none if it has asked no model."""
    asked = {role: used for role, used in usage.items() if isinstance(used, Usage) and used.calls}
    return BrokenOff(int(bool(asked)), asked)
