"""Files: written whole or not at all, temporary folders, words for failed writes."""

from __future__ import annotations

import errno
import itertools
import os
import platform
import secrets
import shutil
import sys
import tempfile
import threading
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from reward_kit.errors import StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from io import BufferedRandom

TO_OUTPUT = "-"
"""The name of the standard output, where a file is asked for."""
OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE})
_FICLONE = 0x40049409
"""Linux ioctl: share the blocks of another file until one of the two is written to."""
_PROCESS = secrets.token_hex(4)
"""Distinguishes processes of several machines or containers with the same number."""
_counter = itertools.count()
_swept: set[str] = set()
"""The folders of temporary files that this process has looked through."""


def temporary_beside(path: Path) -> Path:
    """A hidden name in the folder of ``path`` that no other writer, in this or another process, uses."""
    return path.with_name(f".{path.name}.{os.getpid()}-{_PROCESS}-{next(_counter)}.tmp")


@contextmanager
def draft_beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A fresh name in the folder of ``path``; a file of that name is removed on leaving.

    ``OSError`` inside the block becomes ``StorageError``.
    """
    target = Path(path)
    temporary = temporary_beside(target)
    try:
        yield temporary
    except OSError as error:
        fault = f"cannot write the file: {error.strerror or error}"
        raise StorageError(fault, place=str(target), remedy="No part of it was kept.") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def publish(path: str | os.PathLike[str]) -> Iterator[BufferedRandom]:
    """A file that takes the place of ``path`` when the block ends without an exception.

    Raises ``StorageError`` if it cannot be written; the former file is then still there.
    """
    with draft_beside(path) as temporary:
        with temporary.open("x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def write_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write ``data`` under a temporary name beside ``path``, then rename it; ``durable`` waits for the disk.

    Raises ``StorageError``; the former file at ``path`` is then still there.
    """
    temporary = temporary_beside(path)
    try:
        with as_storage_error(path):
            with temporary.open("xb", buffering=0) as file:
                _write_all(file.fileno(), data)
                if durable:
                    os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``, also if a signal or a full disk cuts a write short."""
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, data[written:])


def sync_folder(folder: Path) -> None:
    """Wait until the names in ``folder`` are on the disk, so that a renamed file survives a power cut."""
    if sys.platform == "win32":
        return  # has no such call; its file systems keep the order themselves
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems have no such call
            raise
    finally:
        os.close(descriptor)


def link_or_copy(source: Path, target: Path) -> None:
    """Make ``target`` the same file as ``source``: a hard link, or a copy if the file system has none."""
    temporary = temporary_beside(target)
    try:
        with as_storage_error(target):
            try:
                os.link(source, temporary)
            except OSError:
                shutil.copy2(source, temporary)
            temporary.replace(target)
    finally:
        # Renaming a link over another link to the same file does nothing, and leaves the temporary name.
        temporary.unlink(missing_ok=True)


def share_or_copy(source: BinaryIO, target: BinaryIO) -> None:
    """Fill ``target`` with ``source``, sharing its blocks if the file system can."""
    try:
        import fcntl

        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except (ImportError, OSError):  # no such system call, or no such file system
        shutil.copyfileobj(source, target, 1 << 20)


def check_target(option: str, target: str | Path | None) -> None:
    """Raise ``UsageError``, before any work, if ``option`` names something that cannot be a file."""
    if target is None or str(target) == TO_OUTPUT:
        return
    path = Path(target)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {target} {'is a folder' if path.is_dir() else 'lies in no folder'}")


def write_output(parts: Iterable[bytes], target: str | Path, output: BinaryIO | None = None) -> None:
    """Write ``parts`` to a file that a person asked for, or, for ``-``, to ``output`` (standard output).

    A file is written whole or not at all; a device or pipe as it is. Raises ``StorageError`` for a file, and
    ``OSError`` for an output that takes no more.
    """
    if str(target) == TO_OUTPUT:
        stream = output or sys.stdout.buffer
        stream.writelines(parts)
        stream.flush()
        return
    path = Path(target)
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                file.writelines(parts)
            return
        whole = Path(os.path.realpath(path))  # a link stays one
        temporary = temporary_beside(whole)
        try:
            with temporary.open("xb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(whole)
        finally:
            temporary.unlink(missing_ok=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        place = str(target)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError("the disk is full", place=place, remedy="Make room.") from error
        raise StorageError(f"cannot be written: {error.strerror or error}", place=place) from error


def temporary_folder(kind: str) -> Path:
    """A new folder among the temporary files (``TMPDIR``), named after its ``kind`` and this process.

    The caller removes it. Folders of killed processes are removed when a process asks for its first one.
    """
    place = tempfile.gettempdir()
    if place not in _swept:
        _swept.add(place)
        threading.Thread(target=remove_left_over, args=(Path(place),), daemon=True).start()
    return Path(tempfile.mkdtemp(prefix=f"{_prefix(kind)}{os.getpid()}-"))


def remove_left_over(place: Path) -> None:
    """Remove the folders in ``place`` of processes of this machine or container that no longer run."""
    here = _prefix("").rpartition("--")[2]
    for folder in place.glob(_prefix("*") + "*"):
        process = folder.name.rpartition(f"-{here}")[2].partition("-")[0]
        if process.isdigit() and not _runs(int(process)):
            shutil.rmtree(folder, ignore_errors=True)


def _prefix(kind: str) -> str:
    """``reward-kit-bundle-1a2b3c4d-``: process numbers mean nothing in another container."""
    processes = ""
    with suppress(OSError):
        processes = str(Path("/proc/self/ns/pid").readlink())
    return f"reward-kit-{kind}-{zlib.crc32(f'{platform.node()} {processes}'.encode()):08x}-"


def _runs(process: int) -> bool:
    if sys.platform == "win32":
        return True  # os.kill would end it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another person's
        return True
    return True


def storage_error(error: OSError, path: Path | str) -> StorageError:
    """The error for a person about a failed write, with its remedy."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "Make room, then continue with --resume: what is finished is kept."
        return StorageError("the disk is full", place=str(path), remedy=remedy)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "Choose another folder with --output-dir."
        return StorageError("may not be written", place=str(path), remedy=remedy)
    if error.errno in OUT_OF_FILES:
        return StorageError(
            "cannot be written: this process has too many files open",
            place=str(path),
            remedy="Raise the limit (ulimit -n), or find the tool or agent that leaves them open.",
        )
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return StorageError(
            "cannot be written: a file or a dangling link lies where a folder must be",
            place=str(path if error.filename is None else error.filename),
            remedy="Remove it, or choose another folder with --output-dir.",
        )
    return StorageError(f"cannot be written: {error.strerror or error}", place=str(path))


@contextmanager
def as_storage_error(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` into a ``StorageError`` about ``path``, also one reworded by another layer."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error
    except StorageError as error:
        if isinstance(error.__cause__, OSError):
            raise storage_error(error.__cause__, path) from error
        raise
