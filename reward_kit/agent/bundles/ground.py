"""What a whole process stands on, put back after code that is not ours has run in it."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_STREAMS = ("stdout", "stderr")


@contextmanager
def kept_ground() -> Iterator[None]:
    """The working directory, the entries of ``sys.path`` and the output are afterwards as they were before.

    A bundle that changes to another folder would have results written there; one that closes the output would
    end the program in the middle of its report. A process that was forked meanwhile ends here.
    """
    folder, path, process = _working_directory(), list(sys.path), os.getpid()
    streams = {name: getattr(sys, name) for name in _STREAMS}
    copies = {number: _copy(number) for number in (1, 2)}
    try:
        yield
    finally:
        end_if_forked(process)
        if folder is not None and _working_directory() != folder:
            with suppress(OSError):  # it may be gone
                os.chdir(folder)
        sys.path.extend(entry for entry in path if entry not in sys.path)
        for number, copy in copies.items():
            _put_back(number, copy)
        for name, stream in streams.items():
            _reopen(name, stream)


def end_if_forked(process: int) -> None:
    """End a child process that a bundle's code has forked and let run on into ours: one evaluation is enough.

    ``process`` is the id of the process that called the code.
    """
    if os.getpid() != process:
        os._exit(0)


def _working_directory() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _copy(number: int) -> int | None:
    try:
        return os.dup(number)
    except OSError:  # it was closed before
        return None


def _put_back(number: int, copy: int | None) -> None:
    if copy is None:
        return
    try:
        os.fstat(number)
    except OSError:
        os.dup2(copy, number)
    os.close(copy)


def _reopen(name: str, stream: object) -> None:
    """Put another stream in the place of one that was closed."""
    present = getattr(sys, name)
    if present is not None and not getattr(present, "closed", False):
        return
    if stream is not None and not getattr(stream, "closed", False):
        setattr(sys, name, stream)
        return
    number = _STREAMS.index(name) + 1
    with suppress(OSError):
        setattr(sys, name, open(number, "w", encoding="utf-8", errors="replace", closefd=False))  # noqa: SIM115 - stays open
