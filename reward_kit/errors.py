"""Errors that a user can fix.

Each message has up to three parts: the place (``file:line``, row id, field), the fault, the remedy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


class RewardKitError(Exception):
    """Root of the tree; ``str(error)`` reads ``place: fault. remedy``."""

    def __init__(self, fault: str, *, place: str | None = None, remedy: str | None = None) -> None:
        self.fault, self.place, self.remedy = fault, place, remedy
        super().__init__(fault)

    def __str__(self) -> str:
        text = f"{self.place}: {self.fault}" if self.place else self.fault
        if not self.remedy:
            return text
        space = "" if self.remedy.startswith("\n") else " "
        return f"{text.rstrip('.')}.{space}{self.remedy}"

    def to_json(self) -> dict[str, str | None]:
        """Return the error as plain JSON, for another process."""
        return {"kind": type(self).__name__, "fault": self.fault, "place": self.place, "remedy": self.remedy}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        """Rebuild an error that another process sent."""
        found = globals().get(plain["kind"])
        kind = found if isinstance(found, type) and issubclass(found, cls) else cls
        return kind(plain["fault"], place=plain["place"], remedy=plain["remedy"])


class BundleError(RewardKitError):
    """A dataset, row, seed, tools module or reward module is faulty."""


class ToolError(RewardKitError):
    """A tool's refusal: ``raise ToolError("seat taken")`` reaches the model as ``Error: seat taken``."""

    def __init__(self, fault: str = "the tool refuses", **parts: str | None) -> None:
        super().__init__(fault if isinstance(fault, str) else str(fault), **parts)


class DatabaseError(RewardKitError):
    """A database file or statement is faulty."""


class QueryTimeoutError(DatabaseError):
    """A statement ran past its time limit and was stopped."""


class TooManyRowsError(DatabaseError):
    """A query returned more rows than the limit."""


class ReadOnlyError(DatabaseError):
    """A statement tried to write where only reading is allowed."""


class ModelError(RewardKitError):
    """A model could not answer.

    ``status`` is the HTTP status, if there was one; ``retryable`` says whether asking again may help;
    ``retry_after`` is the number of seconds the provider asked to wait; ``no_answer`` gives the reason if no
    answer arrived: no connection, a broken connection, or a timeout.
    """

    def __init__(
        self,
        fault: str,
        *,
        status: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
        no_answer: Literal["connection", "broken off", "time"] | None = None,
        **parts: str | None,
    ) -> None:
        super().__init__(fault, **parts)
        self.status, self.retryable = status, retryable
        self.retry_after, self.no_answer = retry_after, no_answer


class ModelSetupError(ModelError):
    """A model cannot be called at all: unknown name, missing or refused key."""


class ProviderDownError(ModelSetupError):
    """A provider gave no usable answer within the time limit (``--patience``)."""


class ModelInputError(ModelError):
    """A model refuses this conversation: too long for its context, or against its content policy."""


class AgentError(RewardKitError):
    """The agent under test gave unusable output or raised."""


class SimulatedUserError(RewardKitError):
    """The simulated user gave unusable output or raised."""


class RewardError(RewardKitError):
    """A reward function raised or returned something that is not a reward."""


class StorageError(RewardKitError):
    """A file of ``runs/`` could not be written or read."""


class UsageError(RewardKitError):
    """An option is missing, out of range, or does not fit another one."""


class UnknownOptionError(UsageError, TypeError):
    """An unknown option; also a ``TypeError``, as for any unknown keyword argument."""
