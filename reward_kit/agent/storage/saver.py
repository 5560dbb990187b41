"""Group commit: all rollouts that wait at the same time are stored with one wait for the disk."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from reward_kit.agent.records.broken_off import BrokenOff
    from reward_kit.agent.records.played import PlayedRollout
    from reward_kit.agent.storage.store import Store

LARGEST_GROUP = 64
"""Rollouts in one transaction."""


class SavesRollouts(Protocol):
    """Takes rollouts that were played: the store of this process, or of the one that started it."""

    async def save(self, played: PlayedRollout) -> None:
        """Return when ``played`` is on the disk; ``StorageError`` if it cannot be written."""

    def add_usage(self, kind: str, used: BrokenOff) -> None:
        """Store usage of attempts that came to no end."""


class Saver:
    """Writes to ``store`` from one thread; used by one event loop.

    While a group is written, the next gathers; a rollout that ends alone is written at once.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evaluation-store")
        self._waiting: list[tuple[PlayedRollout, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._notes: list[asyncio.Future[None]] = []

    async def save(self, played: PlayedRollout) -> None:
        """Return when ``played`` is on the disk.

        A caller that is cancelled leaves the writing alone. Raises ``StorageError`` if it cannot be written.
        """
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((played, saved))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        await asyncio.shield(saved)

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group, self._waiting = self._waiting[:LARGEST_GROUP], self._waiting[LARGEST_GROUP:]
            fault: StorageError | None = None
            try:
                await loop.run_in_executor(self._thread, self._store.add, [played for played, _ in group])
            except StorageError as error:
                fault = error
            for _, saved in group:
                if fault is None:
                    saved.set_result(None)
                else:
                    saved.set_exception(fault)
                    saved.exception()  # a cancelled caller does not ask for it

    def add_usage(self, kind: str, used: BrokenOff) -> None:
        """Store usage soon; ``close`` raises where that failed."""
        if used.rollouts:
            loop = asyncio.get_running_loop()
            self._notes.append(loop.run_in_executor(self._thread, self._store.add_usage, kind, used))

    async def close(self) -> StorageError | None:
        """Wait for all that was given; the first fault of ``add_usage``, if there was one."""
        while self._writing is not None and not self._writing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({self._writing})
        done = await asyncio.gather(*self._notes, return_exceptions=True)
        self._thread.shutdown()
        return next((fault for fault in done if isinstance(fault, StorageError)), None)
