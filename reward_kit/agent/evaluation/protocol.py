"""The border between an evaluation and the code that plays its rollouts.

An evaluation reads rows, holds the store and the budgets, and imports no code of the bundle, the agent or the
user. An executor does that: in this process, in worker processes, or on a Ray cluster::

    description = await executor.describe()
    played = await executor.play(PlayRequest("flight.001", index=0), account)

Requests and descriptions cross the border as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from reward_kit.agent.base.encoding import as_json
from reward_kit.agent.rollout.outcome import Outcome, Played, RowGold, usage_from_json
from reward_kit.agent.store.fingerprints import CodeFacts, Toolset

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from reward_kit.agent.base.types import Role, Usage

Blobs = dict[str, bytes]
"""Data that crosses the border as raw bytes, by name."""


@dataclass(frozen=True, slots=True)
class Description:
    """Facts about the code that an evaluation does not import.

    ``users`` are by row id, ``models`` are names by role. ``interactive`` says that a person at the terminal
    takes part, ``replays`` that the agent is a recording.
    """

    code: CodeFacts
    users: dict[str, str]
    models: dict[str, str]
    interactive: bool
    replays: bool
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Description:
        """The description of which ``asdict`` made ``plain``."""
        toolsets = {name: Toolset(**toolset) for name, toolset in plain["code"]["toolsets"].items()}
        return cls(**{**plain, "code": CodeFacts(**{**plain["code"], "toolsets": toolsets})})


@dataclass(frozen=True, slots=True)
class PlayRequest:
    """One attempt at a rollout: the ``index``-th (from 0) of a row.

    With ``judge_again`` the stored rollout of this id is not played but judged again. ``watched`` has the
    executor report each tool call as it begins.
    """

    row_id: str
    index: int
    attempt: int = 0
    judge_again: str | None = None
    watched: bool = False


def encoded(played: Played) -> tuple[dict[str, Any], Blobs]:
    """The rollout as JSON values and raw bytes; ``decoded`` is the inverse."""
    plain = {**as_json(played), "outcome": played.outcome.to_json()}
    blobs = {name: plain.pop(name) for name in ("state", "gold_state")}
    blobs["trace"] = plain.pop("trace").encode()
    if played.row_gold is not None:
        plain["row_gold"] = as_json(played.row_gold)
        blobs["row_gold_state"] = plain["row_gold"].pop("state")
    return plain, {name: data for name, data in blobs.items() if data is not None}


def decoded(plain: Mapping[str, Any], blobs: Mapping[str, bytes]) -> Played:
    """The rollout that ``encoded`` gave; raises ``KeyError``, ``TypeError`` or ``ValueError`` otherwise."""
    gold, outcome = plain["row_gold"], plain["outcome"]
    inner = {
        "outcome": Outcome(**{**outcome, "usage": usage_from_json(outcome["usage"])}),
        "row_gold": gold and RowGold(**gold, state=blobs.get("row_gold_state")),
    }
    states = {name: blobs.get(name) for name in ("state", "gold_state")}
    return Played(**{**plain, **inner, **states, "trace": blobs["trace"].decode()})


class RolloutLostError(Exception):
    """A rollout has ended its process twice; the text says how, and what it was doing."""


class Account(Protocol):
    """Counts the model calls of one attempt."""

    def used(self, role: Role, usage: Usage, model: str) -> None:
        """Count a call that ``model`` has answered."""

    def broken_off(self) -> None:
        """Count the calls so far as those of an attempt without a result; another attempt begins."""


class Executor(Protocol):
    """Plays rollouts while it is entered; ``describe`` comes first.

    ``room``, unless None, waits until no model call waits for a provider, and gives the number of rollouts
    that may begin then without their calls piling up.
    """

    room: Callable[[], Awaitable[int]] | None = None

    async def describe(self) -> Description:
        """Load the bundle, the agent and the users, seed the bases, and say what they are.

        Raises ``BundleError``, ``UsageError`` or ``ModelSetupError`` for anything that cannot be played.
        """
        ...

    async def play(self, request: PlayRequest, account: Account) -> Played:
        """Play one attempt to its end; ``account`` counts each model call before this returns or raises.

        A rollout that is over is returned even if this is cancelled. Raises ``RolloutLostError`` if it ends
        its process, ``ModelSetupError`` if a model refuses every call, ``StorageError`` if nothing can be
        written, ``DatabaseError`` and ``BundleError`` for a faulty base.
        """
        ...

    async def close(self) -> None:
        """Stop playing and release everything. May be called again."""
        ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
