"""A model's judgement of a failed rollout, read from its answer, and all those of an evaluation."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from reward_kit.agent.base.encoding import as_json
from reward_kit.agent.base.lenient_json import read_object
from reward_kit.agent.base.types import Usage
from reward_kit.agent.rollout.outcome import total_usage
from reward_kit.agent.scoring.failures.classify import FAILURE_KINDS
from reward_kit.agent.store.stored_evaluation import read_notes
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Author = Literal["user", "agent", "environment"]
AUTHORS: tuple[Author, ...] = get_args(Author)
NOTE = "explanation"
"""Kind of the notes in the evaluation's store that hold explanations."""
LONGEST_SENTENCE = 600
MOST_TRIED = 60
"""Braces that are tried, from the last one: each costs a pass over the text behind it."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The judgement of one rollout.

    ``author`` is who was at fault, ``fault`` what kind of fault (a failure class), ``sentence`` why; all
    three are None if the model's answer could not be used, and ``problem`` says why. ``prompt`` is the
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
        """Plain JSON values."""
        return {**as_json(self), "usage": as_json(self.usage)}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Explanation:
        """The inverse of ``to_json``; raises ``KeyError`` or ``TypeError`` for anything else."""
        return cls(**{**plain, "usage": Usage(**plain["usage"])})


@dataclass(frozen=True, slots=True)
class Explanations:
    """The judgements of an evaluation's failed rollouts.

    ``missing`` counts those that were not made; ``reason`` says why.
    """

    model: str
    made: Sequence[Explanation]
    missing: int
    reason: str | None

    @property
    def complete(self) -> bool:
        """True if every failed rollout was judged, also without a usable answer."""
        return self.missing == 0

    @property
    def usable(self) -> list[Explanation]:
        """Those with a usable answer."""
        return [one for one in self.made if one.author is not None]

    @property
    def usage(self) -> Usage:
        """Tokens and cost, kept apart from those of agent and user."""
        return total_usage(one.usage for one in self.made)

    @property
    def authors(self) -> Counter[str]:
        """The rollouts by who was at fault."""
        return Counter(one.author for one in self.usable if one.author is not None)

    def faults(self, author: str) -> Counter[str]:
        """The kinds of fault of one side."""
        return Counter(one.fault or "other" for one in self.usable if one.author == author)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as in the results file."""
        total = len(self.usable)
        shown = ("row_id", "index", "author", "fault", "sentence", "problem")
        authors = {
            author: {
                "count": number,
                "percent": 100 * number / total,
                "faults": dict(self.faults(author).most_common()),
            }
            for author, number in self.authors.most_common()
        }
        return {
            "model": self.model,
            "made": len(self.made),
            "unusable": len(self.made) - total,
            "missing": self.missing,
            "reason": self.reason,
            "authors": authors,
            "usage": as_json(self.usage),
            "rollouts": [
                {"id": one.rollout, **{name: getattr(one, name) for name in shown}} for one in self.made
            ],
        }


def stored_explanations(path: Path) -> list[Explanation]:
    """The explanations in the evaluation at ``path``; raises ``StorageError`` for a damaged one."""
    try:
        return [Explanation.from_json(note) for note in read_notes(path, NOTE)]
    except (KeyError, TypeError) as error:
        raise StorageError("holds a damaged explanation", place=str(path)) from error


class Judgement(NamedTuple):
    """The side at fault, the kind of fault, and the reason in a sentence."""

    author: Author
    fault: str
    sentence: str


def read_verdict(text: str) -> Judgement:
    """The last object in ``text`` that is a verdict, with any text around it.

    Models that think aloud name several before they decide; an echo of the empty form is no verdict. Raises
    ``ValueError`` with the fault, in words for the model.
    """
    fault = ValueError("the answer holds no JSON object")
    braces = [found.start() for found in re.finditer(r"\{", text)]
    for position in islice(reversed(braces), MOST_TRIED):
        try:
            value, _ = read_object(text, position)
        except ValueError:
            continue
        try:
            return _verdict(value)
        except ValueError as error:
            fault = error
    raise fault


def _verdict(value: dict[str, Any]) -> Judgement:
    lowered = {_word(name): inner for name, inner in value.items()}
    author = next((each for each in AUTHORS if each == _word(lowered.get("author"))), None)
    if author is None:
        raise ValueError(f'"author" is none of {", ".join(AUTHORS)}')
    kind = _word(lowered.get("fault"))
    if kind not in FAILURE_KINDS:
        raise ValueError(f'"fault" is none of {", ".join(FAILURE_KINDS)}')
    sentence = " ".join(str(lowered.get("sentence") or "").split())
    if not sentence:
        raise ValueError('"sentence" is missing')
    return Judgement(author, kind, sentence[:LONGEST_SENTENCE])


def _word(value: Any) -> str:
    return str(value).strip().strip(".").lower().replace(" ", "_").replace("-", "_")
