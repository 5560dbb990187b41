"""Saving what several rollouts leave behind with one wait for the disk.

A file that is to survive a power cut must be synced, and a disk syncs many in little more time than one. So
whatever waits is saved as one batch, in a thread, and while that is done the next batch gathers. A rollout
that ends alone is saved at once.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from reward_kit.agent.runs.atomic_file import Draft

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from reward_kit.agent.runs.atomic_file import Part

T = TypeVar("T")

LARGEST_BATCH = 32
"""Rollouts; each has up to three files open until they are on the disk, and macOS allows 256."""


class OutcomeLog(Protocol):
    """Takes a line per attempt at a rollout; what it has taken is not lost any more."""

    def append_each(self, lines: Sequence[Mapping[str, Any]]) -> Sequence[Exception | None]:
        """Take lines; for each of them None, or why it could not be taken."""


@dataclass(slots=True, frozen=True)
class NewFile:
    """A file that is to appear at ``path``; one that is ``durable`` is on the disk before the line is."""

    path: Path
    parts: Sequence[Part]
    durable: bool = True


@dataclass(slots=True, frozen=True)
class Finished(Generic[T]):
    """What is to be saved of a rollout: its files, then its line in the log; then ``then`` is called."""

    line: Mapping[str, Any]
    then: Callable[[], T]
    files: Sequence[NewFile] = ()


class GroupCommit:
    """Saves rollouts in a thread of ``files``, those together that wait at the same time."""

    def __init__(self, log: OutcomeLog, files: Executor) -> None:
        self._log = log
        self._files = files
        self._lock = threading.Lock()
        self._waiting: list[_Entry[Any]] = []
        self._busy = False

    def save(self, finished: Callable[[], Finished[T]]) -> asyncio.Future[T]:
        """Save what ``finished`` gives, and give what its ``then`` gives; both are called in the thread.

        What is raised (``StorageError`` where something cannot be written) concerns this rollout alone; the
        others of its batch are saved.
        """
        entry = _Entry(finished, asyncio.get_running_loop().create_future())
        with self._lock:
            self._waiting.append(entry)
            idle, self._busy = not self._busy, True
        if idle:
            self._files.submit(self._work)
        return entry.saved

    def _work(self) -> None:
        while batch := self._next_batch():
            _save_all(batch, self._log)
            with suppress(RuntimeError):  # the loop has ended, and nobody waits there any more
                batch[0].saved.get_loop().call_soon_threadsafe(_tell, batch)

    def _next_batch(self) -> list[_Entry[Any]]:
        with self._lock:
            batch = self._waiting[:LARGEST_BATCH]
            del self._waiting[:LARGEST_BATCH]
            self._busy = bool(batch)
        return batch


class _Entry(Generic[T]):
    """A rollout on its way to the disk; ``error`` says why it does not get there."""

    __slots__ = ("_drafts", "_finished", "_then", "error", "line", "result", "saved")

    result: T

    def __init__(self, finished: Callable[[], Finished[T]], saved: asyncio.Future[T]) -> None:
        self.saved = saved
        self.line: Mapping[str, Any] = {}
        self.error: BaseException | None = None
        self._finished = finished
        self._then: Callable[[], T]
        self._drafts: list[tuple[Draft, bool]] = []

    def write(self) -> None:
        """Write the files under temporary names, and have the system begin to bring them to the disk."""
        finished = self._finished()
        self.line, self._then = finished.line, finished.then
        for file in finished.files:
            draft = Draft(file.path, file.parts)
            self._drafts.append((draft, file.durable))
            if file.durable:
                draft.start_sync()

    def publish(self) -> None:
        """Let the files appear, each once it is on the disk."""
        for draft, durable in self._drafts:
            if durable:
                draft.sync()
            draft.publish()

    def end(self) -> None:
        """The line is in the log."""
        self.result = self._then()

    def attempt(self, step: Callable[[_Entry[T]], None]) -> None:
        """Take one of these steps, or fail."""
        try:
            step(self)
        except BaseException as error:  # noqa: BLE001 - raised where the rollout is waited for
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Give up: what has not appeared by now never will."""
        self.error = error
        for draft, _ in self._drafts:
            draft.discard()


def _save_all(batch: Sequence[_Entry[Any]], log: OutcomeLog) -> None:
    """Save a batch; each entry has a result or an error afterwards, and this raises nothing."""
    written = _further(batch, _Entry.write)
    visible = _further(written, _Entry.publish)
    try:
        faults: Sequence[BaseException | None] = log.append_each([entry.line for entry in visible])
    except BaseException as error:  # noqa: BLE001 - raised where the rollouts are waited for
        faults = [error] * len(visible)
    for entry, fault in zip(visible, faults, strict=True):
        if fault is not None:
            entry.fail(fault)
    _further([entry for entry in visible if entry.error is None], _Entry.end)


def _further(entries: Sequence[_Entry[Any]], step: Callable[[_Entry[Any]], None]) -> list[_Entry[Any]]:
    """Take all a step further; those that got there."""
    for entry in entries:
        entry.attempt(step)
    return [entry for entry in entries if entry.error is None]


def _tell(batch: Sequence[_Entry[Any]]) -> None:
    for entry in batch:
        if entry.saved.done():
            continue  # it was cancelled
        if entry.error is None:
            entry.saved.set_result(entry.result)
        else:
            entry.saved.set_exception(entry.error)
            entry.saved.exception()  # whoever waited may be gone, and then nobody else asks for it
