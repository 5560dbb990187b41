"""Bundles packed as ``.zip``, ``.tar``, ``.tar.gz`` or ``.tgz``, unpacked without trust in what they say."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from reward_kit.agent.temporary_folder import temporary_folder
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIXES = (".zip", ".tar.gz", ".tgz", ".tar")

MAX_BYTES = 4 << 30
"""Unpacked size that is refused, in bytes."""

MAX_FILES = 20_000

_BLOCK = 1 << 20
_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
)
"""What reading a damaged archive, or one of an unknown kind, raises."""


def is_packed(path: Path) -> bool:
    """Whether the name of ``path`` is that of a packed bundle."""
    return path.name.lower().endswith(SUFFIXES)


def unpack(path: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> Path:
    """The files of ``path`` in a new temporary folder, which the caller removes.

    Raises ``BundleError`` for a file that is damaged, would write outside of the folder, holds links or
    devices, or is larger than the limits once unpacked.
    """
    folder = temporary_folder("bundle")
    try:
        members = _zip_members(path) if zipfile.is_zipfile(path) else _tar_members(path)
        _write(members, folder, max_bytes, max_files)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, BundleError):
            raise BundleError(error.fault, place=str(path)) from None
        if isinstance(error, OSError):
            raise BundleError(f"cannot be unpacked: {error.strerror or error}", place=str(path)) from error
        if isinstance(error, _DAMAGED):
            # tarfile tells a line for each of its kinds of archive
            why = "it is no archive" if isinstance(error, tarfile.ReadError) else f"{error}"
            raise BundleError(f"cannot be unpacked: {why}", place=str(path)) from error
        raise
    return folder


def _write(members: Iterator[tuple[str, IO[bytes]]], folder: Path, max_bytes: int, max_files: int) -> None:
    left = max_bytes
    for count, (name, stream) in enumerate(members):
        if count >= max_files:
            raise BundleError(f"holds more than {max_files} files")
        target = folder.joinpath(*_safe_parts(name))
        target.parent.mkdir(parents=True, exist_ok=True)
        with stream, target.open("xb") as out:
            # Counted while writing: the sizes that an archive states may be false.
            while block := stream.read(_BLOCK):
                left -= len(block)
                if left < 0:
                    raise BundleError(f"is larger than {max_bytes} bytes once unpacked")
                out.write(block)


def _safe_parts(name: str) -> tuple[str, ...]:
    parts = PurePosixPath(name).parts
    if (
        name.startswith(("/", "\\"))
        or ".." in parts
        or any("\\" in part or ":" in part for part in parts)
        or not parts
    ):
        raise BundleError(f"holds a file that would be written outside of its folder: {name!r}")
    return parts


def _zip_members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if (info.external_attr >> 16) & 0o170000 == 0o120000:
                raise BundleError(f"holds a link: {info.filename!r}")
            if not info.is_dir():
                yield info.filename, archive.open(info)


def _tar_members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(path, "r:*") as archive:
        for info in archive:
            if info.isdir():
                continue
            stream = archive.extractfile(info) if info.isreg() else None
            if stream is None:
                raise BundleError(f"holds something else than files and folders: {info.name!r}")
            yield info.name, stream
