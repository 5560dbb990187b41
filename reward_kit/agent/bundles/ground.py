"""What a whole process stands on, put back after code that is not ours has run in it."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from os import getpid
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.agent.bundles.umask import note_umask, put_back_umask

if TYPE_CHECKING:
    from collections.abc import Iterator

_STREAMS = ("stdout", "stderr")
INTERRUPTED = 130
"""The exit code of a process that a second signal ends."""
end_process = os._exit
"""Ends the process at once, also where ``breakage.kept_process`` keeps others from it."""
_copies: list[dict[int, int | None]] = []
"""Of the output as it was, for each ``kept_ground`` that is open."""
_replaced: list[object] = []


@contextmanager
def kept_ground() -> Iterator[None]:
    """The working directory, the umask, the entries of ``sys.path`` and the output are afterwards as before.

    Another stream in the place of the output stays until the outermost ``kept_ground`` ends: the bundle may
    write to it, but the report is not for it.

    A bundle that changes to another folder would have results written there; one that closes the output would
    end the program in the middle of its report. A process that was forked meanwhile ends here.
    """
    folder, path, process = _working_directory(), list(sys.path), getpid()
    streams = {name: getattr(sys, name) for name in _STREAMS}
    copies = {number: _copy(number) for number in (1, 2)}
    if not _copies:
        note_umask()
    _copies.append(copies)
    try:
        yield
    finally:
        _copies.remove(copies)
        end_if_forked(process)
        put_back_umask()
        if folder is not None and _working_directory() != folder:
            with suppress(OSError):  # it may be gone
                os.chdir(folder)
        if not isinstance(sys.path, list):
            sys.path = []
        sys.path.extend(entry for entry in path if entry not in sys.path)
        for number, copy in copies.items():
            _put_back(number, copy, always=not _copies)
            if copy is not None:
                with suppress(OSError):  # somebody has closed it
                    os.close(copy)
        for name, stream in streams.items():
            if not _reopen(name, stream) and not _copies:
                _put_in_place(name, stream)


class KeptFunctions:
    """The functions and classes of Python's own modules are afterwards as they were before.

    Around all of a run: what is told at its end needs many of them, and no other's code runs any more.
    """

    def __enter__(self) -> None:
        known = sys.modules.copy()  # at once: threads may import
        modules = [module for name, module in known.items() if name.partition(".")[0] in _PYTHONS]
        self._kept = [
            (names, {name: value for name, value in names.copy().items() if callable(value)})
            for names in map(vars, filter(None, modules))
        ]

    def __exit__(self, *_: object) -> None:
        # without any function of Python's: it may be the one that is broken
        for names, values in self._kept:
            for name, value in values.items():
                if names.get(name) is not value:
                    names[name] = value


_PYTHONS = sys.stdlib_module_names - {"__main__"}


def end_if_forked(process: int) -> None:
    """End a child process that a bundle's code has forked and let run on into ours: one evaluation is enough.

    ``process`` is the id of the process that called the code.
    """
    if getpid() != process:
        end_process(0)


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


def reopen_streams(streams: tuple[object, object]) -> list[str]:
    """Put back the output where it was closed, ``streams`` as they were; returns the names of those."""
    reopened = []
    for number, name, stream in zip((1, 2), _STREAMS, streams, strict=True):
        copy = _copies[0][number] if _copies else None
        if _put_back(number, copy) | _reopen(name, stream):
            reopened.append(f"sys.{name}")
    return reopened


def _put_back(number: int, copy: int | None, *, always: bool = False) -> bool:
    """Whether the descriptor had been closed, and is open again.

    One that leads elsewhere by now is put back too if it is to be ``always``.
    """
    if copy is None:
        return False
    try:
        if not os.path.sameopenfile(number, copy) and always:
            os.dup2(copy, number)
    except OSError:
        with suppress(OSError):  # the copy may be closed as well
            os.dup2(copy, number)
        return True
    return False


def _put_in_place(name: str, stream: object) -> None:
    """Put back a stream in whose place there is another, which works."""
    present = getattr(sys, name, None)
    if present is stream or stream is None or _is_closed(stream):
        return
    _replaced.append(present)  # collected, it would close the descriptor that both may write to
    with suppress(BaseException):  # it is foreign code
        present.flush()  # type: ignore[union-attr]
    setattr(sys, name, stream)


def _is_closed(stream: object) -> bool:
    """Whether it takes nothing any more: it was closed, or its file was taken from it."""
    try:
        return bool(getattr(stream, "closed", False))
    except Exception:  # noqa: BLE001 - a stream that was detached, or foreign code
        return True


def _reopen(name: str, stream: object) -> bool:
    """Put another stream in the place of one that was closed; whether that was so."""
    present = getattr(sys, name, None)
    if stream is None or (present is not None and not _is_closed(present)):
        return False
    if not _is_closed(stream):
        setattr(sys, name, stream)
        return True
    number = _STREAMS.index(name) + 1
    with suppress(OSError):
        setattr(sys, name, open(number, "w", encoding="utf-8", errors="replace", closefd=False))  # noqa: SIM115 - stays open
    return True
