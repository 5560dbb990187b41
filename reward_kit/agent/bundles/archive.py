"""Bundles packed as ``.zip``, ``.tar``, ``.tar.gz`` or ``.tgz``, unpacked without trust in their contents."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from reward_kit.agent.base.files import temporary_folder
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SUFFIXES = (".zip", ".tar.gz", ".tgz", ".tar")

MAX_BYTES = 4 << 30
"""Bytes; an archive that is larger once unpacked is refused."""

MAX_FILES = 20_000

_BLOCK = 1 << 20
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""Errors of reading a damaged archive, or one of an unknown kind."""


def is_packed(path: Path) -> bool:
    """True if ``path`` has the name of a packed bundle."""
    return path.name.lower().endswith(SUFFIXES)


def unpack(path: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> Path:
    """The files of ``path`` in a new temporary folder, which the caller removes.

    Raises ``BundleError`` for a file that is damaged, would write outside of the folder, holds links or
    devices, or exceeds the limits once unpacked; the sizes that it states are checked before anything is
    written, and the bytes are counted while they are.
    """
    folder = temporary_folder("bundle")
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            _unpack(path, folder, max_bytes, max_files)
        except BundleError as error:
            raise BundleError(error.fault, place=str(path)) from None
        except OSError as error:
            raise BundleError(f"cannot be unpacked: {error.strerror or error}", place=str(path)) from error
        except _DAMAGED as error:
            # tarfile says a line about each of its kinds of archive
            why = "it is not an archive" if isinstance(error, tarfile.ReadError) else f"{error}"
            raise BundleError(f"cannot be unpacked: {why}", place=str(path)) from error
        undo.pop_all()
    return folder


def _unpack(path: Path, folder: Path, max_bytes: int, max_files: int) -> None:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            _check_sizes((info.file_size for info in infos), max_bytes, max_files)
            _write(_zip_members(archive, infos), folder, max_bytes)
    else:
        with tarfile.open(path, "r:*") as archive:
            _check_sizes((info.size for info in archive), max_bytes, max_files)
            _write(_tar_members(archive), folder, max_bytes)


def _check_sizes(sizes: Iterable[int], max_bytes: int, max_files: int) -> None:
    total = 0
    for count, size in enumerate(sizes, 1):
        total += size
        if count > max_files:
            raise BundleError(f"holds more than {max_files} files")
        if total > max_bytes:
            raise BundleError(f"is larger than {max_bytes} bytes once unpacked")


def _write(members: Iterator[tuple[str, IO[bytes]]], folder: Path, max_bytes: int) -> None:
    left = max_bytes
    for name, stream in members:
        target = folder.joinpath(*_safe_path(name))
        target.parent.mkdir(parents=True, exist_ok=True)
        with stream, target.open("xb") as out:
            while block := stream.read(_BLOCK):
                left -= len(block)
                if left < 0:  # the sizes that an archive states may be false
                    raise BundleError(f"is larger than {max_bytes} bytes once unpacked")
                out.write(block)


def _safe_path(name: str) -> tuple[str, ...]:
    names = PurePosixPath(name).parts
    is_odd = any("\\" in one or ":" in one or one == ".." for one in names)
    if not names or is_odd or name.startswith(("/", "\\")):
        raise BundleError(f"holds a file that would be written outside of its folder: {name!r}")
    return names


def _zip_members(
    archive: zipfile.ZipFile, infos: Iterable[zipfile.ZipInfo]
) -> Iterator[tuple[str, IO[bytes]]]:
    for info in infos:
        if (info.external_attr >> 16) & 0o170000 == 0o120000:
            raise BundleError(f"holds a link: {info.filename!r}")
        if not info.is_dir():
            yield info.filename, archive.open(info)


def _tar_members(archive: tarfile.TarFile) -> Iterator[tuple[str, IO[bytes]]]:
    for info in archive:
        if info.isdir():
            continue
        stream = archive.extractfile(info) if info.isreg() else None
        if stream is None:
            raise BundleError(f"holds something other than files and folders: {info.name!r}")
        yield info.name, stream
