"""The border between an evaluation and the code that plays its rollouts.

An evaluation reads rows, holds the store and the budgets, and imports no code of the bundle, the agent or the
user. An executor does that: in this process, in worker processes, or on a Ray cluster::

    description = await executor.describe()
    played = await executor.play(PlayRequest("flight.001", index=0), account)

Messages to and from other processes are lines of JSON, that with a rollout before the text of its trace:
``decoded(Report, encoded(report)) == report``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from reward_kit.agent.base.encoding import adapter_of
from reward_kit.agent.base.types import Role, Usage  # noqa: TC001 - pydantic reads the annotations
from reward_kit.agent.rollout.outcome import Played  # noqa: TC001
from reward_kit.agent.store.fingerprints import CodeFacts  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reward_kit.agent.store.layout import RunsFolder

_Message = TypeVar("_Message")


@dataclass(frozen=True, slots=True)
class Description:
    """Facts about the code that an evaluation does not import.

    ``users`` are by row id, ``models`` are names by role. ``interactive`` says that a person at the terminal
    takes part, ``replays`` that the agent comes out the same each time.
    """

    code: CodeFacts
    users: dict[str, str]
    models: dict[str, str]
    interactive: bool
    replays: bool
    warnings: list[str] = field(default_factory=list)


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


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message to a worker: its options and its runs folder.

    On another machine it has a separate folder, and gets the ``version`` that it must be, the ``places`` of
    files by option, the ``environment`` (with keys), and ``bases``, the databases that it must seed alike.
    """

    config: dict[str, Any]
    root: str = ""
    version: str | None = None
    places: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    bases: list[str] | None = None


@dataclass(frozen=True, slots=True)
class WorkerCall:
    """A call of a worker: to play the ``request``, without one to describe the code; or its cancellation."""

    id: int
    request: PlayRequest | None = None
    cancel: bool = False


@dataclass(slots=True)
class Report:
    """A message of a worker; an empty one is a sign of life.

    One with an ``id`` is about that call: it says ``at`` what its watched rollout begins, or answers it with
    ``description``, ``played`` (and the ``files`` that another machine wrote), ``error`` (a
    ``RewardKitError``), ``crash`` (any other exception, and faults of this process alone) or ``cancelled``.
    ``changed`` tells that the process is not as it was. ``used`` are answered model calls, with the numbers
    of the calls that made them. ``ready``: everything is loaded. ``note`` is a text for people, ``pid`` the
    process, at its start. ``tail`` is the number of bytes that follow the line.
    """

    __pydantic_config__ = {  # noqa: RUF012 - of the class
        "ser_json_bytes": "base64",
        "val_json_bytes": "base64",
        "ser_json_inf_nan": "constants",
    }

    id: int = 0
    description: Description | None = None
    played: Played | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    crash: str | None = None
    cancelled: bool = False
    at: str | None = None
    changed: str | None = None
    used: list[tuple[int, Role, str, Usage]] = field(default_factory=list)
    ready: bool = False
    note: str | None = None
    pid: int | None = None
    tail: int = 0

    def attach(self, trace: bytes) -> None:
        """Take in the bytes that followed the line; raises ``ValueError`` if they are not of a rollout."""
        if self.played is None:
            raise ValueError("there is no rollout")
        self.played.trace, self.tail = trace.decode(), 0


def encoded(message: Any) -> bytes:
    """A message as one line of JSON; a trace follows it as it is, which takes a quarter of the time."""
    played: Played | None = getattr(message, "played", None)
    if played is None:
        return _line(message)
    text = played.trace
    trace = text.encode(errors="replace")
    try:
        played.trace, message.tail = "", len(trace)
        return _line(message) + trace
    finally:
        played.trace, message.tail = text, 0


def _line(message: Any) -> bytes:
    adapter = adapter_of(message.__class__)
    try:
        return adapter.dump_json(message, exclude_defaults=True) + b"\n"
    except ValueError:  # half of a surrogate pair
        plain = adapter.dump_python(message, mode="json", exclude_defaults=True)
        return json.dumps(plain, ensure_ascii=False).encode(errors="replace") + b"\n"


def decoded(kind: type[_Message], data: bytes) -> _Message:
    """The message of this kind that ``encoded`` gave; raises ``ValueError`` for anything else.

    Of a report that was read from a stream, ``data`` is the line alone.
    """
    line, _, trace = data.partition(b"\n")
    message: _Message = adapter_of(cast("Any", kind)).validate_json(line)
    if trace and isinstance(message, Report):
        message.attach(trace)
    return message


class RolloutLostError(Exception):
    """A rollout has ended its process twice; the text says how, and what it was doing."""


class Account(Protocol):
    """Counts the model calls of one attempt."""

    def used(self, role: Role, usage: Usage, model: str) -> None:
        """Count a call that ``model`` has answered."""

    def broken_off(self) -> None:
        """Count the calls so far as those of an attempt without a result; another attempt begins."""


class Executor(Protocol):
    """Plays rollouts until it is closed; ``describe`` comes first, and makes the ``folder`` of the results.

    ``room``, unless None, waits until no model call waits for a provider, and gives the number of rollouts
    that may begin then without their calls piling up.
    """

    folder: RunsFolder
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
