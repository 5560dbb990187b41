"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import sys
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.temporary_name import temporary_name
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

Part = bytes | memoryview
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_JOINED = 1 << 20
"""Bytes that are copied together rather than written piece by piece."""
OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE})
_TAIL = 16
"""Bytes at the end of a file that are looked at; white space may follow the object."""


def write_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write ``data`` under a temporary name beside ``path``, then rename it; ``durable`` waits for the disk.

    Raises ``StorageError``; what stood at ``path`` before then still stands there.
    """
    draft = Draft(path, (data,))
    try:
        if durable:
            draft.sync()
        draft.publish()
    finally:
        draft.discard()


class Draft:
    """What will stand at ``path``: written under a temporary name, then synced if need be, then renamed.

    The steps are apart so that many files can share the disk's work. All raise ``StorageError``; what stood
    at ``path`` before stands there until ``publish``. End with ``discard``, whatever happened.
    """

    __slots__ = ("_descriptor", "_path", "_temporary")

    def __init__(self, path: Path, parts: Sequence[Part]) -> None:
        """Write ``parts``, one after the other."""
        self._path = path
        self._temporary: str | None = None
        self._descriptor = -1
        temporary = f"{path.parent}{os.sep}{temporary_name(path.name)}"
        try:
            self._descriptor = os.open(temporary, _NEW_FILE, 0o666)
            self._temporary = temporary
            write_parts(self._descriptor, parts)
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError):
                raise storage_error(error, path) from error
            raise

    def start_sync(self) -> None:
        """Let the system begin to write, without waiting: files that were begun together take one wait."""
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):  # it is advice
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def sync(self) -> None:
        """Wait until the content is on the disk."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise storage_error(error, self._path) from error

    def publish(self) -> None:
        """Let the file appear at ``path``."""
        assert self._temporary is not None, "it is published once"
        try:
            self._close()
            os.replace(self._temporary, self._path)  # noqa: PTH105 - once per file of a rollout: the cheaper call
            self._temporary = None
        except OSError as error:
            raise storage_error(error, self._path) from error

    def discard(self) -> None:
        """Remove what has not been published; may be called again."""
        with suppress(OSError):  # the fault that led here is the one to tell of
            self._close()
        if self._temporary is not None:
            with suppress(OSError):
                os.unlink(self._temporary)  # noqa: PTH108 - a string it is
            self._temporary = None

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def write_parts(descriptor: int, parts: Sequence[Part]) -> None:
    """Write one part after the other; what is small, with one call."""
    if len(parts) > 1 and sum(map(len, parts)) <= _JOINED:
        parts = [b"".join(parts)]
    for part in parts:
        write_all(descriptor, part)


def write_all(descriptor: int, data: Part) -> None:
    """Write all of it: with one call to the system, unless a signal or a full disk cuts that short."""
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, data[written:])


def sync_folder(folder: Path) -> None:
    """Wait until the names in ``folder`` are on the disk: a renamed file is there after a power cut, too."""
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


def is_whole_json(path: Path) -> bool:
    """Whether a file that holds one JSON object is there and has its beginning and its end.

    It is not parsed: thousands are looked at before an evaluation goes on.
    """
    try:
        with path.open("rb", buffering=0) as file:
            begins = file.read(1) == b"{"
            file.seek(max(file.seek(0, os.SEEK_END) - _TAIL, 0))
            return begins and file.read(_TAIL).rstrip().endswith(b"}")
    except OSError:
        return False


def temporary_beside(path: Path) -> Path:
    """A name that no other writer, in this or another process, uses at the same time."""
    return path.with_name(temporary_name(path.name))


def link_or_copy(source: Path, target: Path) -> None:
    """Make ``target`` the same file as ``source``: a hard link, or a copy where the file system has none."""
    import shutil

    temporary = temporary_beside(target)
    try:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copy2(source, temporary)
        temporary.replace(target)
    except OSError as error:
        raise storage_error(error, target) from error
    finally:
        # Renaming a link over another link to the same file does nothing, and leaves the temporary name.
        temporary.unlink(missing_ok=True)


def json_bytes(value: Any) -> bytes:
    """``value`` as UTF-8 JSON; dataclasses become objects, what else JSON does not know becomes its text."""
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain).encode()
    except (
        UnicodeEncodeError
    ):  # half of a surrogate pair, as models sometimes write: only escapes can hold it
        return json.dumps(value, default=_plain).encode()


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    return str(value)


def compact_json(value: Any) -> bytes:
    """``value`` as ``json_bytes`` gives it, without spaces and in a quarter of the time."""
    from pydantic_core import to_json  # not for the processes that only write files

    try:
        return to_json(value, inf_nan_mode="constants", fallback=str)
    except ValueError:  # half of a surrogate pair, or nested deeper than the encoder goes
        return json_bytes(value)


def readable_json(members: Mapping[str, Any]) -> bytes:
    """An object with a line for each field, and for each item of a field that is a list of objects.

    ``json.dumps(indent=...)`` would be many times slower, and tear small objects apart.
    """
    parts = []
    for name, value in members.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = b"[\n  " + b",\n  ".join(map(compact_json, value)) + b"\n ]"
        else:
            text = json_bytes(value)
        parts.append(json_bytes(name) + b": " + text)
    return b"{\n " + b",\n ".join(parts) + b"\n}\n"


def storage_error(error: OSError, path: Path | str) -> StorageError:
    """What to tell a person about a failed write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            "the disk is full",
            place=str(path),
            remedy="Make room, then continue with --resume: what is finished is kept.",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StorageError(
            "may not be written", place=str(path), remedy="Choose another folder with --output-dir."
        )
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
    """Turn an ``OSError`` into a ``StorageError`` about ``path``, also one worded by another layer."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error
    except StorageError as error:
        if isinstance(error.__cause__, OSError):
            raise storage_error(error.__cause__, path) from error
        raise
