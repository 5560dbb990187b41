"""Saving what several rollouts leave behind with one wait for the disk.

A file that is to survive a power cut must be synced, and a disk syncs many in little more time than one. So
whatever waits is saved as one batch, in a thread, and while that is done the next batch gathers. A rollout
that ends alone is saved at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from reward_kit.agent.runs.file_process import FileProcess
from reward_kit.agent.runs.parcels import Parcel, save_parcels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor

T = TypeVar("T")

LARGEST_BATCH = 32
"""Rollouts; each has up to three files open until they are on the disk, and macOS allows 256."""

WORTH_A_PROCESS = 8
"""So many rollouts that wait show that saving is what holds others up: see ``FileProcess``."""

SURELY_WORTH_A_PROCESS = 64
"""Of so many rollouts at once, some will end together."""


class OutcomeLog(Protocol):
    """Takes a line per attempt at a rollout; what it has taken is not lost any more."""

    def append_each(self, lines: Sequence[Mapping[str, Any]]) -> Sequence[Exception | None]:
        """Take lines; for each of them None, or why it could not be taken."""


@dataclass(slots=True, frozen=True)
class Finished(Generic[T]):
    """What is to be saved of a rollout: its files, then its line in the log; then ``then`` is called."""

    line: Mapping[str, Any]
    then: Callable[[], T]
    parcel: Parcel = Parcel()  # noqa: RUF009 - it is frozen


class GroupCommit:
    """Saves rollouts in a thread of ``files``, those together that wait at the same time.

    Of a crowd that ends together, only as many as fill two batches have their files in memory at a time.
    """

    def __init__(self, log: OutcomeLog, files: Executor) -> None:
        self._log = log
        self._files = files
        self._lock = threading.Lock()
        self._outside: deque[_Entry[Any]] = deque()
        self._admitted = 0
        self._waiting: list[_Entry[Any]] = []
        self._busy = False
        self._process = FileProcess()

    def expect(self, at_once: int) -> None:
        """So many rollouts are about to be played at once: have the process ready if it will be needed."""
        if at_once >= SURELY_WORTH_A_PROCESS:
            self._process.start()

    def close(self) -> None:
        """No more will be saved; called when all that was begun is over."""
        self._process.close()

    def save(self, finished: Callable[[], Finished[T]], *, is_quick: bool = False) -> asyncio.Future[T]:
        """Save what ``finished`` gives, and give what its ``then`` gives.

        Both are called in the thread; where ``finished`` ``is_quick``, it is called by the event loop: while
        rollouts play, a thread that needs the interpreter costs more than what it does for them. What is
        raised (``StorageError`` where something cannot be written) concerns this rollout alone; the others of
        its batch are saved.
        """
        entry = _Entry(finished, asyncio.get_running_loop().create_future(), is_quick=is_quick)
        if self._admitted < 2 * LARGEST_BATCH:
            self._admitted += 1
            self._admit(entry)
        else:
            self._outside.append(entry)
        return entry.saved

    def _admit(self, entry: _Entry[Any]) -> None:
        if entry.is_quick:
            entry.attempt(_Entry.begin)
        with self._lock:
            self._waiting.append(entry)
            idle, self._busy = not self._busy, True
        if idle:
            self._files.submit(self._work)

    def _work(self) -> None:
        while batch := self._next_batch():
            try:
                self._save_all(batch)
            except BaseException as error:  # noqa: BLE001 - nobody may wait for ever, whatever happens
                for entry in batch:
                    entry.error = error
            with suppress(RuntimeError):  # the loop has ended, and nobody waits there any more
                batch[0].saved.get_loop().call_soon_threadsafe(self._leave, batch)

    def _save_all(self, batch: Sequence[_Entry[Any]]) -> None:
        """Save a batch; each entry has a result or an error afterwards."""
        _further([entry for entry in batch if not entry.is_quick], _Entry.begin)
        begun = [entry for entry in batch if entry.error is None]
        parcels = [entry.finished.parcel for entry in begun]
        kept = _together(begun, lambda: self._write(parcels))
        lines = [entry.finished.line for entry in kept]
        told = _together(kept, lambda: self._log.append_each(lines))
        _further(told, _Entry.end)

    def _write(self, parcels: Sequence[Parcel]) -> Sequence[BaseException | None]:
        many = sum(bool(parcel.files) for parcel in parcels) >= WORTH_A_PROCESS
        if many or self._process.has_begun():
            faults = self._process.save(parcels)
            if faults is not None:
                return faults
        return save_parcels(parcels)

    def _leave(self, batch: Sequence[_Entry[Any]]) -> None:
        """Tell those who wait for a batch, and let in others in its place."""
        for entry in batch:
            entry.tell()
        loop = asyncio.get_running_loop()
        for _ in batch:
            if self._outside:
                loop.call_soon(self._admit, self._outside.popleft())
            else:
                self._admitted -= 1

    def _next_batch(self) -> list[_Entry[Any]]:
        with self._lock:
            batch = self._waiting[:LARGEST_BATCH]
            del self._waiting[:LARGEST_BATCH]
            self._busy = bool(batch)
        return batch


class _Entry(Generic[T]):
    """A rollout on its way to the disk; ``error`` says why it does not get there."""

    __slots__ = ("_finished", "error", "finished", "is_quick", "result", "saved")

    result: T
    finished: Finished[T]

    def __init__(
        self, finished: Callable[[], Finished[T]], saved: asyncio.Future[T], *, is_quick: bool
    ) -> None:
        self.saved = saved
        self.is_quick = is_quick
        self.error: BaseException | None = None
        self._finished = finished

    def begin(self) -> None:
        """Have told what there is to save."""
        self.finished = self._finished()

    def end(self) -> None:
        """The line is in the log."""
        self.result = self.finished.then()

    def attempt(self, step: Callable[[_Entry[T]], None]) -> None:
        """Take one of these steps, or fail."""
        try:
            step(self)
        except BaseException as error:  # noqa: BLE001 - raised where the rollout is waited for
            self.error = error

    def tell(self) -> None:
        """Tell who waits for it, in the event loop."""
        if self.saved.done():
            return  # it was cancelled
        if self.error is None:
            self.saved.set_result(self.result)
        else:
            self.saved.set_exception(self.error)
            self.saved.exception()  # whoever waited may be gone, and then nobody else asks for it


def _further(entries: Sequence[_Entry[Any]], step: Callable[[_Entry[Any]], None]) -> list[_Entry[Any]]:
    """Take all a step further; those that got there."""
    for entry in entries:
        entry.attempt(step)
    return [entry for entry in entries if entry.error is None]


def _together(
    entries: Sequence[_Entry[Any]], work: Callable[[], Sequence[BaseException | None]]
) -> list[_Entry[Any]]:
    """Take all a step further at once; ``work`` gives for each why it does not get there, or None."""
    try:
        faults = work()
    except BaseException as error:  # noqa: BLE001 - raised where the rollouts are waited for
        faults = [error] * len(entries)
    for entry, fault in zip(entries, faults, strict=True):
        entry.error = fault
    return [entry for entry in entries if entry.error is None]
