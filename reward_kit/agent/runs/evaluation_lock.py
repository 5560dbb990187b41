"""One process at a time writes an evaluation."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from reward_kit.agent.runs.atomic_file import storage_error
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


_held: set[EvaluationLock] = set()


def _left_to_the_parent() -> None:
    """In a process that a tool or reward has forked: it may outlive this one, and would hold its locks."""
    while _held:
        _held.pop().forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_left_to_the_parent)

_OPENING = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)
PATIENCE = 0.2
"""Seconds that a lock may be held by somebody who only looks whether it is."""


def writer_of(path: Path) -> str | None:
    """Who holds the lock of an evaluation, as far as the file system tells; None if nobody does."""
    try:
        descriptor = os.open(path, _OPENING)
    except OSError:
        return None
    holder: str | None = None
    try:
        is_free = _try_lock(descriptor)
        holder = _holder(descriptor)
    except OSError:  # there are no locks on this file system
        is_free = True
    finally:
        os.close(descriptor)
    if is_free:
        return None
    return f"process {holder}" if holder else "another process"


def _locked_within(seconds: float, descriptor: int) -> bool:
    end = time.monotonic() + seconds
    while not _try_lock(descriptor):
        if time.monotonic() >= end:
            return False
        time.sleep(0.01)
    return True


class EvaluationLock:
    """Holds ``<eval_id>.lock`` until ``release``.

    The system lets go of the lock when its process ends, however it ends: a file left behind by a killed
    process locks nothing. Raises ``StorageError`` that names the holder where another process has it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = self._acquire()
        _held.add(self)

    def _acquire(self) -> int:
        while True:
            descriptor = self._open()
            try:
                locked = _locked_within(PATIENCE, descriptor)
            except OSError as error:
                os.close(descriptor)
                raise StorageError(
                    f"the file system has no locks: {error.strerror}",
                    place=str(self.path.parent),
                    remedy="Choose another --output-dir: two processes could write this evaluation at once.",
                ) from error
            if not locked:
                holder = _holder(descriptor)
                os.close(descriptor)
                raise StorageError(
                    f"another process{f' ({holder})' if holder else ''} is running this evaluation",
                    place=self.path.stem,
                    remedy="Wait for it to end, or choose another --eval-id.",
                )
            # The former holder may have removed the file after we had opened it: that lock is on nothing.
            if _is_at(descriptor, self.path):
                self._file = os.fstat(descriptor)
                self._sign(descriptor)
                return descriptor
            os.close(descriptor)

    def _open(self) -> int:
        try:
            return os.open(self.path, _OPENING | os.O_CREAT, 0o666)
        except OSError as error:
            if not self.path.is_symlink():
                raise storage_error(error, self.path) from error
            raise StorageError(
                "is a link, so that another file would be written to",
                place=str(self.path),
                remedy="Remove it: an evaluation makes this file by itself.",
            ) from error

    def _sign(self, descriptor: int) -> None:
        """Write down who has it; where that cannot be written nothing can, and it is given free."""
        note = {"pid": os.getpid(), "host": socket.gethostname()}
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps(note).encode())  # nothing was read: this is its beginning
        except OSError as error:
            self._descriptor = descriptor
            self.release()
            raise storage_error(error, self.path) from error

    def keep(self) -> None:
        """Take it again if its file was removed; raises ``StorageError`` if another process has it by now."""
        if not _is_at(self._descriptor, self.path):
            self.forget()
            self._descriptor = self._acquire()
            _held.add(self)

    def release(self) -> None:
        """Give the evaluation free; may be called again."""
        if self._descriptor >= 0:
            with suppress(
                PermissionError
            ):  # of Windows, which removes no open file: what is left locks nothing
                if _is_at(self._descriptor, self.path):
                    self.path.unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """Close the file and leave it there."""
        _held.discard(self)
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        with suppress(OSError):  # a tool has closed it, and the number may be another file's by now
            if os.path.samestat(os.fstat(descriptor), self._file):
                os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return descriptor >= 0 and os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:  # there is none, or a tool has closed the descriptor
        return False


def _holder(descriptor: int) -> str | None:
    """Number and machine of the process; None where it has not written them yet."""
    try:
        note: Any = json.loads(os.read(descriptor, 1000))
        return f"{note['pid']} on {note['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None
