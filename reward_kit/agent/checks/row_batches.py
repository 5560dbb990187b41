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
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.agent.checks.row_check import Repeatable, check_row
from reward_kit.agent.database import Database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from typing import IO

    from reward_kit.agent.bundles.bundle import Task
    from reward_kit.agent.checks.row_check import RowCheck

    Rows = Sequence[tuple[Task, Database]]

AT_ONCE = 10
"""Rows that a process plays at the same time."""
BATCH = 200
"""Rows between two reports of a process."""
MANY = 2_000
"""Rows from which other processes check them."""


async def checked_rows(
    rows: Rows, names: frozenset[str], printed: dict[str, str], *, deep: bool
) -> AsyncIterator[RowCheck]:
    """The check of each row; what the bundle's code prints elsewhere is added to ``printed``."""
    repeatable = Repeatable(deep=deep)
    with _forked(rows, names, printed, repeatable) as pipes:
        for number, start in enumerate(range(0, len(rows), BATCH)):
            received = None
            with suppress(EOFError, pickle.UnpicklingError, IndexError):
                received, elsewhere = pickle.load(pipes[number % (len(pipes) or 1)])  # noqa: S301 - our own
                printed.update({**elsewhere, **printed})
            if received is not None:
                for checked in received:
                    yield checked
                continue
            async for checked in _checked(rows[start : start + BATCH], names, repeatable):
                yield checked


async def _checked(rows: Rows, names: frozenset[str], repeatable: Repeatable) -> AsyncIterator[RowCheck]:
    for start in range(0, len(rows), AT_ONCE):
        checks = [check_row(task, base, repeatable, names) for task, base in rows[start : start + AT_ONCE]]
        for checked in await asyncio.gather(*checks):
            yield checked


@contextmanager
def _forked(
    rows: Rows, names: frozenset[str], printed: dict[str, str], repeatable: Repeatable
) -> Iterator[list[IO[bytes]]]:
    """The pipes from processes that check the ``rows``; none for few, or if this process has threads."""
    pipes: list[IO[bytes]] = []
    children: list[int] = []
    number = len(os.sched_getaffinity(0)) if len(rows) >= MANY and _is_without_threads() else 1
    try:
        for first in range(number if number > 1 else 0):
            reading, writing = os.pipe()
            sys.stdout.flush()
            child = os.fork()
            if not child:
                for pipe in pipes:
                    pipe.close()
                os.close(reading)
                _report(rows, names, printed, repeatable, first, number, writing)
            os.close(writing)
            pipes.append(os.fdopen(reading, "rb"))
            children.append(child)
        yield pipes
    except BaseException:
        for child in children:
            os.kill(child, signal.SIGKILL)
        raise
    finally:
        for pipe, child in zip(pipes, children, strict=True):
            pipe.close()
            os.waitpid(child, 0)


def _is_without_threads() -> bool:
    """True on Linux if no thread could hold a lock that a forked process needs."""
    return sys.platform == "linux" and len(list(Path("/proc/self/task").iterdir())) == 1


def _report(
    rows: Rows,
    names: frozenset[str],
    printed: dict[str, str],
    repeatable: Repeatable,
    first: int,
    number: int,
    pipe: int,
) -> None:
    """Check each batch of which the turn is that of this process, the ``first`` of ``number``, and end it."""

    async def check() -> None:
        bases = dict[Path, Database]()
        for start in range(first * BATCH, len(rows), number * BATCH):
            own = []
            for task, base in rows[start : start + BATCH]:
                if base.base_path not in bases:
                    bases[base.base_path] = Database.open(base.base_path, mode=base.mode)
                own.append((task, bases[base.base_path]))
            found = [checked async for checked in _checked(own, names, repeatable)]
            sys.stdout.flush()
            with os.fdopen(os.dup(pipe), "wb") as file:
                pickle.dump((found, printed), file)
            gc.collect()

    try:
        gc.freeze()  # a collection would copy the pages of all rows
        gc.disable()
        asyncio.new_event_loop().run_until_complete(check())
    finally:
        os._exit(0)  # what stands below on the stack belongs to the process that forked this one
