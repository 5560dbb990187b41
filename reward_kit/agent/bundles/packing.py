"""Packed bundles: the same folder always gives the same archive, with a manifest of its files."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING

from reward_kit.agent.base.files import write_file
from reward_kit.agent.base.redaction import hide, redact
from reward_kit.agent.bundles.archive import MANIFEST, MANIFEST_FORMAT
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

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
    """One hash of all files of a bundle."""
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
