"""What is said of a failure: its class, where it began, what was expected there and what was done."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FailureKind = Literal[
    "wrong_tool",
    "wrong_arguments",
    "partially_completed",
    "unintended_action",
    "missing_output",
    "max_steps",
    "agent_error",
    "user_error",
    "infrastructure_error",
    "other",
]
FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A gold action; ``writes`` says whether it changes rows when it is replayed, ``changes`` which.

    ``answer`` is what it answered then, None where it would answer something else in each rollout.
    """

    name: str
    arguments: Mapping[str, Any]
    writes: bool
    changes: Sequence[Mapping[str, Any]] = ()
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The class of a failure, one line on what was seen, and where the rollout left the right way.

    ``step`` and ``turn`` count from 1 and are the last ones where something was never done; ``call`` is the
    index in the rollout's tool calls of the first wrong one, None where none was wrong. ``expected`` and
    ``made`` hold ``name`` and ``arguments`` (``made`` also ``status``, and the ``answer`` if the tool
    refused); ``arguments`` names each argument that differs between them. ``rows`` are differences of the
    final data, ``more_rows`` counts those left out; ``unsaid`` are the outputs that were never said.
    """

    kind: FailureKind
    detail: str
    step: int | None = None
    turn: int | None = None
    call: int | None = None
    expected: Mapping[str, Any] | None = None
    made: Mapping[str, Any] | None = None
    arguments: Sequence[Mapping[str, Any]] = ()
    rows: Sequence[Mapping[str, Any]] = ()
    more_rows: int = 0
    unsaid: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, one for each field."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}
