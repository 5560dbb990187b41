"""The checks of a bundle's rows, in the order of the rows: thousands in a forked process for each processor.

A process reports each batch before it takes its next one. A batch whose process has ended is checked in this
one, where its fault shows.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from reward_kit.agent.checks.row_check import check_row
from reward_kit.agent.database import Database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from typing import IO

    from reward_kit.agent.bundles.bundle import Task
    from reward_kit.agent.checks.row_check import Repeatable, RowCheck

AT_ONCE = 10
"""Rows that a process plays at the same time."""
BATCH = 200
"""Rows between two reports of a process."""
MANY = 2_000
"""Rows from which other processes check them."""


@dataclass(slots=True)
class RowBatches:
    """Rows, with the arguments of ``check_row``; ``printed`` is what the bundle's code prints."""

    rows: Sequence[tuple[Task, Database]]
    repeatable: Repeatable
    names: frozenset[str]
    printed: dict[str, str]

    async def checks(self) -> AsyncIterator[RowCheck]:
        """The check of each row."""
        with self._forked() as pipes:
            for number, start in enumerate(range(0, len(self.rows), BATCH)):
                received = None
                with suppress(EOFError, pickle.UnpicklingError, IndexError):
                    received, printed = pickle.load(pipes[number % (len(pipes) or 1)])  # noqa: S301 - our own
                    self.printed.update({**printed, **self.printed})
                if received is not None:
                    for checked in received:
                        yield checked
                    continue
                async for checked in self._check(self.rows[start : start + BATCH]):
                    yield checked

    async def _check(self, rows: Sequence[tuple[Task, Database]]) -> AsyncIterator[RowCheck]:
        for start in range(0, len(rows), AT_ONCE):
            some = rows[start : start + AT_ONCE]
            checks = [check_row(task, base, self.repeatable, self.names) for task, base in some]
            for checked in await asyncio.gather(*checks):
                yield checked

    @contextmanager
    def _forked(self) -> Iterator[list[IO[bytes]]]:
        """The pipes from processes that check the rows; none for few, or if this process has threads."""
        pipes: list[IO[bytes]] = []
        children: list[int] = []
        number = 0
        if (
            len(self.rows) >= MANY
            and sys.platform == "linux"
            and not [*Path("/proc/self/task").iterdir()][1:]
        ):
            number = len(os.sched_getaffinity(0))
        try:
            for first in range(number if number > 1 else 0):
                reading, writing = os.pipe()
                sys.stdout.flush()
                child = os.fork()
                if not child:
                    for pipe in pipes:
                        pipe.close()
                    os.close(reading)
                    self._report(range(first * BATCH, len(self.rows), number * BATCH), writing)
                os.close(writing)
                pipes.append(os.fdopen(reading, "rb"))
                children.append(child)
            yield pipes
        finally:
            for pipe, child in zip(pipes, children, strict=True):
                pipe.close()
                os.kill(child, signal.SIGKILL)  # if the checks end early; else it has ended by itself
                os.waitpid(child, 0)

    def _report(self, starts: range, pipe: int) -> NoReturn:
        """Check the batches that begin there, write their checks to ``pipe``, and end this process."""

        async def check() -> None:
            bases = dict[Path, Database]()
            for start in starts:
                own = []
                for task, base in self.rows[start : start + BATCH]:
                    if base.base_path not in bases:
                        bases[base.base_path] = Database.open(base.base_path, mode=base.mode)
                    own.append((task, bases[base.base_path]))
                found = [checked async for checked in self._check(own)]
                sys.stdout.flush()
                with os.fdopen(os.dup(pipe), "wb") as file:
                    pickle.dump((found, self.printed), file)
                gc.collect()

        try:
            gc.freeze()  # a collection would copy the pages of all rows
            gc.disable()
            asyncio.new_event_loop().run_until_complete(check())
        finally:
            os._exit(0)  # what stands below on the stack belongs to the process that forked this one
