"""What attempts at rollouts have used that were broken off: they count nowhere, and yet are paid for."""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reward_kit.agent.completion import Usage
from reward_kit.agent.outcome import usage_to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor

    from reward_kit.agent.runs.group_commit import OutcomeLog

KIND = "broken_off"
"""Of the lines of the log that tell of it."""


@dataclass(slots=True)
class BrokenOff:
    """So many attempts that had asked a model, and what they had used by then, by role.

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
        return {
            "rollouts": self.rollouts,
            "usage": {role: usage_to_json(usage) for role, usage in self.usage.items()},
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> BrokenOff:
        """Read what ``to_json`` gave; ``KeyError`` or ``TypeError`` for anything else."""
        return cls(plain["rollouts"], {role: Usage(**usage) for role, usage in plain["usage"].items()})


def broken_off(usage: Mapping[Any, Usage]) -> BrokenOff:
    """One attempt that has used this; nothing if it has asked no model."""
    asked = {role: used for role, used in usage.items() if isinstance(used, Usage) and used.calls}
    return BrokenOff(int(bool(asked)), asked)


class BrokenOffLines:
    """Writes down in a thread of ``files`` what is broken off, in few lines however much it is.

    ``total`` is all of it. ``fault`` says why not all could be written, which ends nothing: most often it is
    the end already.
    """

    def __init__(self, log: OutcomeLog, files: Executor) -> None:
        self.total = BrokenOff()
        self.fault: Exception | None = None
        self._log = log
        self._files = files
        self._lock = threading.Lock()
        self._waiting = BrokenOff()
        self._busy = False

    def add(self, part: BrokenOff) -> None:
        """Count ``part``, and have it written soon."""
        if not part.rollouts:
            return
        with self._lock:
            self.total.add(part)
            self._waiting.add(part)
            idle, self._busy = not self._busy, True
        if idle:
            with suppress(RuntimeError):  # the thread has ended: close() writes it
                self._files.submit(self._write)

    def close(self, tell: Callable[[str], None]) -> None:
        """Write what is left, and ``tell`` what could not be; called when ``files`` have come to an end."""
        self._write()
        if self.fault is not None:
            tell(f"what rollouts that were broken off have used is in no budget of a later run: {self.fault}")

    def _write(self) -> None:
        while part := self._next():
            line = {"kind": KIND, "id": uuid.uuid4().hex, **part.to_json()}
            try:
                (fault,) = self._log.append_each([line])
            except Exception as error:  # noqa: BLE001 - told when the run has ended for its own reason
                fault = error
            self.fault = self.fault or fault

    def _next(self) -> BrokenOff | None:
        with self._lock:
            part, self._waiting = self._waiting, BrokenOff()
            self._busy = bool(part.rollouts)
        return part if part.rollouts else None
