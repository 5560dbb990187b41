"""A rollout that was played: the unit that whoever plays hands to the process that stores."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.records.outcome import RolloutOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class RowGold:
    """The effect of a row's gold actions, replayed once per row.

    ``calls`` are the actions with their answers and changed rows, ``changes`` all changed rows, both as JSON
    values. ``state`` is the delta of the state they lead to from the base; None where that depends on the
    rollout's seed.
    """

    row_id: str
    calls: list[dict[str, Any]]
    changes: list[dict[str, Any]]
    state: bytes | None

    def to_json(self) -> dict[str, Any]:
        return {
            "row_id": self.row_id,
            "calls": self.calls,
            "changes": self.changes,
            "state": _text(self.state),
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> RowGold:
        """The inverse of ``to_json``; raises ``KeyError`` or ``TypeError`` for anything else."""
        return cls(plain["row_id"], plain["calls"], plain["changes"], _bytes(plain["state"]))


@dataclass(slots=True)
class PlayedRollout:
    """One attempt at a rollout, ready to be stored.

    ``trajectory`` is the JSON text of its ``RolloutRecord``; ``base`` the key of its seed. ``state`` is the
    delta of its final state where that is kept but in no file, ``gold_state`` that of its own gold state, if
    it has one. ``row_gold`` comes with the first rollout of a row that a process plays. ``judged`` is the
    time (Unix seconds) at which a stored rollout was judged again.
    """

    outcome: RolloutOutcome
    trajectory: str
    base: str
    state: bytes | None = None
    gold_state: bytes | None = None
    row_gold: RowGold | None = None
    judged: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; bytes as base64."""
        return {
            "outcome": self.outcome.to_json(),
            "trajectory": self.trajectory,
            "base": self.base,
            "state": _text(self.state),
            "gold_state": _text(self.gold_state),
            "row_gold": None if self.row_gold is None else self.row_gold.to_json(),
            "judged": self.judged,
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> PlayedRollout:
        """The inverse of ``to_json``; raises ``KeyError``, ``TypeError`` or ``ValueError`` otherwise."""
        gold = plain["row_gold"]
        return cls(
            outcome=RolloutOutcome.from_json(plain["outcome"]),
            trajectory=plain["trajectory"],
            base=plain["base"],
            state=_bytes(plain["state"]),
            gold_state=_bytes(plain["gold_state"]),
            row_gold=None if gold is None else RowGold.from_json(gold),
            judged=plain["judged"],
        )


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode("ascii")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
