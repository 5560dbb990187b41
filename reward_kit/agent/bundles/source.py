"""Finding, unpacking and packing bundles: a ``.jsonl`` file, a folder, an archive, an installed package."""

from __future__ import annotations

import atexit
import gzip
import hashlib
import importlib.util
import io
import json
import shutil
import stat
import sys
import tarfile
import zipfile
import zlib
from dataclasses import dataclass, replace
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from reward_kit.agent.base.files import temporary_folder, undone_by, write_file
from reward_kit.agent.base.redaction import hide, redact
from reward_kit.agent.base.text import cut, did_you_mean
from reward_kit.agent.bundles.files import LONGEST_SHOWN
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


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
    with undone_by(partial(shutil.rmtree, folder, ignore_errors=True)):
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


JUNK = frozenset({"runs", "__pycache__", "node_modules", "venv"})
"""Folders that are no part of a bundle, as are hidden files and folders."""


def bundle_files(folder: Path) -> Iterator[Path]:
    """The files of a bundle, sorted by name; raises ``BundleError`` for a link."""
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        if any(part.startswith(".") or part in JUNK or part.endswith(".egg-info") for part in inner.parts):
            continue
        if any((folder / place / ".bases").is_dir() for place in [*inner.parents][:-1]):  # results
            continue
        if path.is_symlink():
            raise BundleError("is a link, which cannot be packed", place=str(path), remedy="Copy its target.")
        if path.is_file() and path.suffix != ".pyc" and str(inner) != MANIFEST:
            yield path


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of a bundle, by its path in the folder."""
    files = {path.relative_to(folder).as_posix(): path for path in bundle_files(folder)}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


def bundle_hash(hashes: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


def pack(folder: Path, target: Path, *, rows: int, licence: str | None = None) -> str:
    """Write ``folder`` as a ``.tar.gz`` to ``target``; returns the SHA-256 of that file.

    ``rows`` is the number of rows, and ``licence`` an SPDX identifier, for the manifest. The archive depends
    on names and contents of the files only. Raises ``BundleError`` for files that hold or look like secrets.
    """
    own = target.resolve()
    hashes = {name: one for name, one in file_hashes(folder).items() if (folder / name).resolve() != own}
    _refuse_secrets(folder, hashes)
    about = {"format": MANIFEST_FORMAT, "name": folder.name, "rows": rows, "licence": licence}
    manifest = {**about, "hash": bundle_hash(hashes), "files": hashes}
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
        if name.endswith((".pem", ".key", ".p12", ".pfx")) or "PRIVATE KEY-----" in text:
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


DATASET = "task.jsonl"
LINES = (".jsonl", ".ndjson")
EXPECTED = "A dataset is a .jsonl file, a bundle's folder, or a bundle packed as .zip or .tar.gz."


@dataclass(frozen=True, slots=True)
class BundleSource:
    """The files of a bundle; ``temporary`` is the folder to remove in the end."""

    dataset: Path
    folder: Path
    temporary: Path | None = None

    def discard(self) -> None:
        """Remove the unpacked files."""
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)
            atexit.unregister(self.discard)


def find_bundle(source: str | Path | None, task_dir: str | Path | None = None) -> BundleSource:
    """The dataset and the folder that ``source`` names; raises ``BundleError`` if there is none.

    ``task_dir`` is the bundle's folder if the dataset lies elsewhere: its seed files, its ``file:``
    references and the import path are then those of ``task_dir``. Without a ``source`` the dataset is its
    ``task.jsonl``.
    """
    try:
        if task_dir is None:
            if source is None:
                raise BundleError("no dataset is named", remedy="Name a .jsonl file or a bundle's folder.")
            return _find(source)
        folder = Path(task_dir).resolve()
        if not folder.is_dir():
            raise BundleError("there is no such folder", place=str(task_dir))
        if source is None:
            return _in_folder(folder)
        is_inside = not Path(source).exists() and (folder / source).is_file()
        return replace(_find(folder / source if is_inside else source), folder=folder)
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        place = cut(str(error.filename or source), LONGEST_SHOWN)
        raise BundleError(f"cannot be opened: {error.strerror}", place=place) from None


def _find(source: str | Path) -> BundleSource:
    if str(source).startswith("file:"):
        source = url2pathname(urlsplit(str(source)).path)
    path = Path(source)
    if path.is_dir():
        return _in_folder(path.resolve())
    if not path.exists():
        return _installed(str(source))
    if path.is_file() and path.name.lower().endswith(SUFFIXES):
        return _unpacked(path.resolve())
    if path.is_file() and path.suffix.lower() in LINES:
        return BundleSource(path.absolute(), path.absolute().parent.resolve())
    raise BundleError("is not a dataset", place=str(source), remedy=EXPECTED)


def _in_folder(folder: Path) -> BundleSource:
    dataset = folder / DATASET
    if not dataset.is_file():
        others = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in LINES)
        remedy = f"Name one of its datasets: {', '.join(others[:5])}." if others else None
        raise BundleError(f"the folder has no {DATASET}", place=str(folder), remedy=remedy)
    return BundleSource(dataset, folder)


def _unpacked(path: Path) -> BundleSource:
    temporary = unpack(path)
    source = BundleSource(temporary, temporary, temporary)
    # A bundle may be dropped without close(); its tools still need their files until the process ends.
    atexit.register(source.discard)
    try:
        root = _bundle_root(temporary, path)
        check_manifest(root)
        return replace(_in_folder(root), temporary=temporary)
    except BundleError as error:
        source.discard()
        raise BundleError(error.fault, place=str(path), remedy=error.remedy) from None


def _bundle_root(temporary: Path, archive: Path) -> Path:
    """The only folder with a dataset; files packed without a folder get one named like the archive."""
    if (temporary / DATASET).is_file():
        members = list(temporary.iterdir())
        stem = next(archive.name[: -len(end)] for end in SUFFIXES if archive.name.lower().endswith(end))
        root = temporary / "bundle" / stem
        root.mkdir(parents=True)
        for member in members:
            member.rename(root / member.name)
        return root
    roots = [dataset.parent for dataset in temporary.glob(f"*/{DATASET}")]
    if len(roots) != 1:
        found = "several bundles" if roots else f"no {DATASET}"
        raise BundleError(f"the packed bundle holds {found}", place=str(archive))
    return roots[0]


def _installed(name: str) -> BundleSource:
    package, _, file = name.replace("\\", "/").partition("/")
    if (folder := _package_folder(package)) is None:
        wanted = Path(name)
        beside = wanted.parent.iterdir() if wanted.parent.is_dir() else ()
        meant = did_you_mean(wanted.name, [path.name for path in beside if _is_bundle(path)])
        fault = f"no such file or folder, and no installed bundle of that name{meant}"
        raise BundleError(fault, place=name, remedy=f"The working directory is {Path.cwd()}.")
    if not file:
        return _in_folder(folder)
    if not (folder / file).is_file():
        raise BundleError(f"there is no {file} in {folder}", place=name)
    return _find(folder / file)


def _is_bundle(path: Path) -> bool:
    return path.suffix.lower() in LINES or path.name.lower().endswith(SUFFIXES) or (path / DATASET).is_file()


def _package_folder(name: str) -> Path | None:
    """The folder of an importable package, found without running any code, also not that of its parents."""
    top, *inner = name.split(".")
    if not name or top in sys.builtin_module_names:
        return None
    importlib.invalidate_caches()
    try:
        spec = importlib.util.find_spec(top)
        for part in inner:
            locations = list(spec.submodule_search_locations or ()) if spec else []
            spec = PathFinder.find_spec(f"{top}.{part}", locations)
    except (ImportError, ValueError, AttributeError):
        return None
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return next((Path(location).resolve() for location in locations if Path(location).is_dir()), None)
