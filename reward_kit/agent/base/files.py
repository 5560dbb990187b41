"""Files that appear whole or not at all, temporary folders, caches, and errors about failed writes."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import sys
import tempfile
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from reward_kit.agent.base.redaction import hide_bytes
from reward_kit.errors import StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from io import BufferedRandom

TO_OUTPUT = "-"
"""The name of the standard output, where an option takes a file."""
_FICLONE = 0x40049409
"""Linux ioctl: share the blocks of another file until one of the two is written to."""


@contextmanager
def draft_beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A hidden name in the folder of ``path`` that no other writer, in this or another process, uses.

    A file of that name is removed at the end. Raises ``StorageError`` for an ``OSError`` inside the block.
    """
    draft = Path(path).with_name(f".{Path(path).name}.{os.urandom(8).hex()}.tmp")
    try:
        with as_storage_error(Path(path)):
            yield draft
    finally:
        with suppress(OSError):
            draft.unlink()


@contextmanager
def publish(path: str | os.PathLike[str], *, durable: bool = True) -> Iterator[BufferedRandom]:
    """A file that replaces ``path`` if the block ends without an exception; ``durable`` waits for the disk.

    Raises ``StorageError`` if it cannot be written; the former file is then still there.
    """
    with draft_beside(path) as temporary:
        with temporary.open("x+b") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)


def write_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write ``data`` to ``path``, whole or not at all; raises as ``publish``."""
    with publish(path, durable=durable) as file:
        file.write(data)


def write_text(path: Path, parts: Iterable[bytes], *, durable: bool = True) -> None:
    """``write_file`` for a text of people or programs: it is written without secrets, one part at a time."""
    with publish(path, durable=durable) as file:
        file.writelines(map(hide_bytes, parts))


def write_output(parts: Iterable[bytes], target: str | Path, output: BinaryIO | None = None) -> None:
    """Write texts without secrets to a file that a person asked for, or, for ``-``, to ``output`` (stdout).

    A file is written whole or not at all; a device or pipe as it is. Raises ``StorageError`` for a file, and
    ``OSError`` for an output that is closed.
    """
    path = Path(target)
    if str(target) == TO_OUTPUT:
        stream = output or sys.stdout.buffer
        stream.writelines(map(hide_bytes, parts))
        stream.flush()
    elif path.exists() and not path.is_file() and not path.is_dir():
        with path.open("wb") as file:
            file.writelines(map(hide_bytes, parts))
    else:
        write_text(path.resolve() if path.is_symlink() else path, parts)  # a link stays one


def check_target(option: str, target: str | Path | None) -> None:
    """Raise ``UsageError``, before any work, if ``option`` names something that cannot be a file."""
    if target is None or str(target) == TO_OUTPUT:
        return
    path = Path(target)
    file = path.resolve()
    is_results = file.suffix == ".json" and file.parent.name == "evals" and file.with_suffix(".db").exists()
    if is_results or file.suffix == ".db":
        what = f"has the results of evaluation {file.stem}" if is_results else "is the name of a database"
        raise UsageError(f"{option} {target} {what}, which it would replace")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {target} {'is a folder' if path.is_dir() else 'lies in no folder'}")


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
    with draft_beside(target) as temporary:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copy2(source, temporary)
        temporary.replace(target)


def share_or_copy(source: BinaryIO, target: BinaryIO) -> None:
    """Fill ``target`` with ``source``, sharing its blocks if the file system can."""
    try:
        import fcntl

        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except (ImportError, OSError):  # no such system call, or no such file system
        shutil.copyfileobj(source, target, 1 << 20)


def temporary_folder(kind: str) -> Path:
    """A new folder among the temporary files (``TMPDIR``), named by ``kind``; the caller removes it."""
    return Path(tempfile.mkdtemp(prefix=f"reward-kit-{kind}-"))


def storage_error(error: OSError, path: Path | str) -> StorageError:
    """The error for a person about a failed write, with its remedy."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fault = "the disk is full"
        remedy = "Make room, then continue with --resume: what is finished is kept."
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        fault, remedy = "may not be written", "Choose another folder with --output-dir."
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        fault = "cannot be written: this process has too many files open"
        remedy = "Raise the limit (ulimit -n), or find the tool or agent that leaves them open."
    elif error.errno in (errno.EEXIST, errno.ENOTDIR):
        path = error.filename or path
        fault = "cannot be written: a file or a dangling link lies where a folder must be"
        remedy = "Remove it, or choose another folder with --output-dir."
    elif error.errno == errno.ENOENT:
        fault = f"cannot be written: {error.strerror}"
        remedy = "Make the folder first; --resume makes it again if an evaluation has lost it."
    else:
        return StorageError(f"cannot be written: {error.strerror or error}", place=str(path))
    return StorageError(fault, place=str(path), remedy=remedy)


@contextmanager
def as_storage_error(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` into a ``StorageError`` about ``path``, also one reworded by another layer."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise storage_error(error, path) from error
    except StorageError as error:
        if isinstance(error.__cause__, OSError):
            raise storage_error(error.__cause__, path) from error
        raise


class Closing:
    """Closed by ``close``, also at the end of a ``with`` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what it holds."""


@contextmanager
def undone_by(undo: Callable[[], object]) -> Iterator[None]:
    """Call ``undo`` if the block raises."""
    with ExitStack() as stack:
        stack.callback(undo)
        yield
        stack.pop_all()


@dataclass(eq=False)
class CacheFile:
    """A SQLite file with a ``table`` of values that can be computed again, shared by threads and processes.

    Its faults never raise: ``warn`` gets the message ``told`` with the first one in it. ``synchronous`` is
    SQLite's, and ``busy`` the time limit in seconds for other processes' writes.
    """

    path: Path
    table: str
    told: str
    warn: Callable[[str], None]
    synchronous: str = "NORMAL"
    busy: float = 30.0
    fault: Exception | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def execute(self, sql: str, *rows: Sequence[object]) -> list[Any]:
        """Run a statement with the values of each of ``rows`` in a transaction; returns all it finds."""
        with self._lock:
            try:
                with self._connection as connection:
                    return [found for row in rows for found in connection.execute(sql, row)]
            except (OSError, sqlite3.Error) as error:
                self.fail(error)
                return []

    def fail(self, error: Exception) -> None:
        """Note a fault."""
        if self.fault is None:
            self.fault = error
            self.warn(f"{self.path}: {self.told.format(error)}")

    def clear(self) -> None:
        """Delete all that is kept, with the file itself if it is damaged."""
        if not self.path.exists():
            return
        try:
            with self._connection as connection:
                connection.execute(f"DELETE FROM {self.table.partition(' ')[0]}")  # noqa: S608
        except (OSError, sqlite3.Error) as error:
            if type(error) is not sqlite3.DatabaseError:  # it is locked, perhaps
                self.warn(f"{self.path}: cannot be cleared ({error})")
                return
            for end in ("", "-wal", "-shm"):
                with suppress(OSError):
                    self.path.with_name(f"{self.path.name}{end}").unlink()

    def close(self) -> None:
        if "_connection" in vars(self):
            self._connection.close()
            del self._connection

    @cached_property
    def _connection(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=self.busy, check_same_thread=False)
        with suppress(sqlite3.OperationalError):  # NFS has no WAL
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        connection.execute(f"CREATE TABLE IF NOT EXISTS {self.table}")
        return connection
