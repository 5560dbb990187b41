"""Bundles packed as ``.zip``, ``.tar``, ``.tar.gz`` or ``.tgz``, unpacked without trust in their contents."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import stat
import tarfile
import zipfile
import zlib
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from reward_kit.agent.base.files import temporary_folder, write_file
from reward_kit.agent.base.redaction import hide, redact
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


SUFFIXES = (".zip", ".tar.gz", ".tgz", ".tar")

MANIFEST = "bundle.manifest.json"
"""The file of a packed bundle that lists the hashes of the others."""
MANIFEST_FORMAT = "reward-kit.bundle/1"

MAX_BYTES = 4 << 30
"""Bytes; an archive that is larger once unpacked is refused."""

MAX_FILES = 20_000

_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, RuntimeError, ValueError)
"""Errors of reading a damaged archive, or one of an unknown kind."""


def unpack(path: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> Path:
    """The files of ``path`` in a new temporary folder, which the caller removes.

    Raises ``BundleError`` for a file that is damaged, would write outside of the folder, holds links or
    devices, or exceeds the limits once unpacked. All of that is checked before anything is written; neither
    kind of archive yields more bytes than it states.
    """
    folder = temporary_folder("bundle")
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            with zipfile.ZipFile(path) if zipfile.is_zipfile(path) else tarfile.open(path, "r:*") as archive:
                _check(_members(archive), max_bytes, max_files)
                archive.extractall(folder)  # noqa: S202 - its members are checked
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


def _members(archive: zipfile.ZipFile | tarfile.TarFile) -> Iterator[tuple[str, int, bool]]:
    """Name, size in bytes, and true for a file or folder, of each member."""
    if isinstance(archive, zipfile.ZipFile):
        for info in archive.infolist():
            yield info.filename, info.file_size, not stat.S_ISLNK(info.external_attr >> 16)
    else:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and later
        for item in archive:
            yield item.name, item.size, item.isreg() or item.isdir()


def _check(members: Iterable[tuple[str, int, bool]], max_bytes: int, max_files: int) -> None:
    total = 0
    for count, (name, size, is_plain) in enumerate(members, 1):
        total += size
        if count > max_files:
            raise BundleError(f"holds more than {max_files} files")
        if total > max_bytes:
            raise BundleError(f"is larger than {max_bytes} bytes once unpacked")
        if not is_plain:
            raise BundleError(f"holds something other than files and folders: {name!r}")
        if name.startswith("/") or "\\" in name or ":" in name or ".." in PurePosixPath(name).parts:
            raise BundleError(f"holds a file that would be written outside of its folder: {name!r}")


def check_manifest(folder: Path) -> None:
    """Raise ``BundleError`` if a file of an unpacked bundle differs from its manifest; it may have none."""
    path = folder / MANIFEST
    if not path.is_file():
        return
    try:
        manifest = json.loads(path.read_bytes())
        files = manifest["files"] if manifest["format"] == MANIFEST_FORMAT else None
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"has a damaged {MANIFEST}: {error!r}") from error
    if files is None:
        raise BundleError(f"has a {MANIFEST} of another version: {manifest['format']!r}")
    for name, expected in files.items():
        file = folder / name
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != expected:
            raise BundleError(f"{name} was changed or removed since the bundle was packed")


# --- packing


JUNK = frozenset({"runs", "__pycache__", "node_modules", "venv", "build", "dist"})
"""Folders that are no part of a bundle, as are hidden files and folders."""
_SECRET_SUFFIXES = (".pem", ".key", ".p12", ".pfx")


def bundle_files(folder: Path) -> Iterator[Path]:
    """The files of a bundle, sorted by name; raises ``BundleError`` for a link."""
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        if any(part.startswith(".") or part in JUNK or part.endswith(".egg-info") for part in inner.parts):
            continue
        if path.is_symlink():
            raise BundleError("is a link, which cannot be packed", place=str(path), remedy="Copy its target.")
        if path.is_file() and path.suffix not in (".pyc", ".log") and str(inner) != MANIFEST:
            yield path


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of a bundle, by its path in the folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in bundle_files(folder)
    }


def bundle_hash(hashes: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


def pack(folder: Path, target: Path, *, rows: int, licence: str | None = None) -> str:
    """Write ``folder`` as a ``.tar.gz`` to ``target``; returns the SHA-256 of that file.

    ``rows`` is the number of rows, and ``licence`` an SPDX identifier, for the manifest. The archive depends
    on names and contents of the files only. Raises ``BundleError`` for files that hold or look like secrets.
    """
    hashes = file_hashes(folder)
    _refuse_secrets(folder, hashes)
    manifest = {
        "format": MANIFEST_FORMAT,
        "name": folder.name,
        "rows": rows,
        "licence": licence,
        "hash": bundle_hash(hashes),
        "files": hashes,
    }
    content = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=content, mode="wb", mtime=0, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        _add(archive, f"{folder.name}/{MANIFEST}", json.dumps(manifest, indent=1).encode() + b"\n")
        for name in hashes:
            _add(archive, f"{folder.name}/{name}", (folder / name).read_bytes())
    write_file(target, content.getvalue())
    return hashlib.sha256(content.getvalue()).hexdigest()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    archive.addfile(member, io.BytesIO(data))


def _refuse_secrets(folder: Path, names: Mapping[str, str]) -> None:
    faults = []
    for name in names:
        text = (folder / name).read_bytes().decode("utf-8", "replace")
        if name.endswith(_SECRET_SUFFIXES) or "PRIVATE KEY-----" in text:
            faults.append(f"{name}: holds a private key")
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if hide(line, is_shown=True) != line:
                faults.append(f"{name}:{number}: holds a secret of the environment")
            elif redact(line) != line:
                faults.append(f"{name}:{number}: holds a text that looks like a key or password")
    if faults:
        remedy = "Remove them, or move the files to a folder whose name begins with a dot."
        raise BundleError("; ".join(faults[:10]), place=str(folder), remedy=remedy)
