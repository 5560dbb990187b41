"""What a model made of a failed rollout, and what it made of all of them together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from reward_kit.agent.base.types import Usage
from reward_kit.agent.records.outcome import total_usage, usage_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Author = Literal["user", "agent", "environment"]
AUTHORS: tuple[Author, ...] = get_args(Author)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The judgement of one rollout.

    ``author`` is who was at fault, ``fault`` what kind of fault (a failure class), ``sentence`` why; all
    three are None where the model's answer could not be used, which ``problem`` then tells. ``prompt`` is the
    version of the prompt. ``usage`` counts all calls made for it; ``seconds`` with retries.
    """

    rollout: str
    row_id: str
    index: int
    model: str
    prompt: str
    author: Author | None
    fault: str | None
    sentence: str | None
    problem: str | None
    usage: Usage
    seconds: float

    def to_json(self) -> dict[str, Any]:
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**plain, "usage": usage_to_json(self.usage)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Explanation:
        """The inverse of ``to_json``; raises ``KeyError`` or ``TypeError`` for anything else."""
        known = {item.name: plain[item.name] for item in fields(cls)}
        return cls(**{**known, "usage": Usage(**plain["usage"])})


@dataclass(frozen=True, slots=True)
class Explanations:
    """The judgements of an evaluation's failed rollouts.

    ``missing`` counts those that are not made, ``reason`` tells why. ``path`` is the file that holds them.
    """

    model: str
    made: Sequence[Explanation]
    missing: int
    reason: str | None
    path: Path

    @property
    def complete(self) -> bool:
        """Whether every failed rollout has been looked at, with a usable answer or without."""
        return self.missing == 0

    @property
    def usable(self) -> list[Explanation]:
        return [one for one in self.made if one.author is not None]

    @property
    def usage(self) -> Usage:
        """Tokens and cost, kept apart from those of agent and user."""
        return total_usage(one.usage for one in self.made)

    @property
    def authors(self) -> Counter[str]:
        """Who was at fault, how often."""
        return Counter(one.author for one in self.usable if one.author is not None)

    def faults(self, author: str) -> Counter[str]:
        """The kinds of fault of one side."""
        return Counter(one.fault or "other" for one in self.usable if one.author == author)

    def to_json(self) -> dict[str, Any]:
        total = len(self.usable)
        return {
            "model": self.model,
            "made": len(self.made),
            "unusable": len(self.made) - total,
            "missing": self.missing,
            "reason": self.reason,
            "authors": {
                author: {
                    "count": number,
                    "percent": 100 * number / total,
                    "faults": dict(self.faults(author).most_common()),
                }
                for author, number in self.authors.most_common()
            },
            "usage": usage_to_json(self.usage),
            "rollouts": [
                {
                    "id": one.rollout,
                    "row_id": one.row_id,
                    "index": one.index,
                    "author": one.author,
                    "fault": one.fault,
                    "sentence": one.sentence,
                    "problem": one.problem,
                }
                for one in self.made
            ],
        }
