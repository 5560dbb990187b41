"""Finding a bundle: a ``.jsonl`` file, a folder, a packed bundle, an installed one's import name."""

from __future__ import annotations

import atexit
import importlib.util
import shutil
import sys
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from reward_kit.agent.base.text import cut, did_you_mean
from reward_kit.agent.bundles.archive import SUFFIXES, check_manifest, unpack
from reward_kit.agent.bundles.files import LONGEST_SHOWN
from reward_kit.errors import BundleError

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
        """Remove what was unpacked."""
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
    folder = _package_folder(package)
    if folder is None:
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
