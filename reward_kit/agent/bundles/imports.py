"""Importing a bundle's modules by the names that its rows use, from the bundle's own folder.

While a bundle is open, the folder above it and the working directory are at the end of ``sys.path``, so that
nothing in them hides an installed module. A package that is the bundle's folder, or holds it, is loaded from
there and from nowhere else, with or without ``__init__.py``. When the last bundle that uses them is closed,
these modules are forgotten, so that the next bundle with a folder of that name gets its own.

A name that begins with a dot is relative to the bundle's folder: ``.tools`` is its ``tools.py``.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from reward_kit.agent.bundles.files import is_file
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


@dataclass(slots=True)
class _Package:
    """A top-level package that open bundles have in ``sys.modules``."""

    folder: Path
    users: int = 0
    is_ours: bool = True


@dataclass(slots=True)
class _PathEntry:
    """A folder that open bundles have added to ``sys.path``."""

    names_before: frozenset[str]
    users: int = 0


# These mirror sys.modules and sys.path, which are one for the whole process.
_lock = RLock()
_packages: dict[str, _Package] = {}
_entries: dict[str, _PathEntry] = {}


class BundleImports:
    """The imports of one bundle, from ``BundleImports(folder)`` until ``close()``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._used: dict[str, _Package] = {}
        with _lock:
            self._added = [entry for entry in searched(self.folder) if _acquire(entry)]
            importlib.invalidate_caches()

    def module(self, name: str) -> ModuleType:
        """Import ``name``; raises ``BundleError`` on a clash of names, else whatever the import raises."""
        full = absolute(self.folder, name)
        top = full.partition(".")[0]
        with _lock, no_bytecode_kept():
            package = _package_folder(self.folder, full)
            if package is not None:
                self._use(top, package)
            module = importlib.import_module(full)
            if package is not None and not _lies_in(module, package):
                raise BundleError(f"module {full!r} comes from {_origin(module)}, not from {package}")
            return module

    def exists(self, name: str) -> bool:
        """True if there is a module ``name``, whose parent package has been imported already.

        Raises ``BundleError`` if the name of its file is something else than a file.
        """
        full = absolute(self.folder, name)
        with _lock:
            try:
                if importlib.util.find_spec(full) is not None:
                    return True
            except (ModuleNotFoundError, ValueError):
                pass
            self.check_file(full)
            return False

    def check_file(self, name: str) -> None:
        """Raise ``BundleError`` if the file name of the missing module ``name`` is something else."""
        parent, _, stem = name.rpartition(".")
        folders = getattr(sys.modules.get(parent), "__path__", ()) if parent else searched(self.folder)
        for folder in folders:
            is_file(Path(folder) / f"{stem}.py")

    def close(self) -> None:
        """Restore ``sys.path`` and forget the bundle's modules. May be called again."""
        with _lock:
            for name, package in self._used.items():
                package.users -= 1
                if package.users == 0:
                    del _packages[name]
                    if package.is_ours:
                        _forget(name)
            for entry in self._added:
                _release(entry)
            self._used, self._added = {}, []
            importlib.invalidate_caches()

    def _use(self, name: str, folder: Path) -> None:
        """Have the package ``name`` in ``sys.modules``, loaded from ``folder``."""
        if name in self._used:
            return
        package = _packages.get(name)
        if package is None:
            package = _load_package(name, folder)
            _packages[name] = package
        elif package.folder != folder:
            raise BundleError(
                f"the name {name!r} belongs to the bundle {package.folder}, which is open",
                remedy="Close that bundle first, or rename one of the folders.",
            )
        package.users += 1
        self._used[name] = package


def absolute(folder: Path, name: str) -> str:
    """The full name of a module: ``.tools`` in the folder ``my_task`` is ``my_task.tools``."""
    if not name.startswith("."):
        return name
    package = re.sub(r"\W", "_", folder.name)
    if not package.isidentifier() or package in sys.stdlib_module_names:
        package = f"bundle_{package}"
    return f"{package}{name}"


def searched(folder: Path) -> list[str]:
    """The folders in which modules of the bundle ``folder`` are looked for, besides the installed ones."""
    return list(dict.fromkeys([str(folder.parent), str(Path.cwd())]))


def place_outside(folder: Path, name: str) -> Path | None:
    """The file of the module ``name`` if it does not belong to the bundle ``folder``, else None.

    It belongs to the bundle if it lies in its folder, or in a package that holds the folder. Nothing is
    imported; None also for a module that is not found.
    """
    full = absolute(folder, name)
    package = _package_folder(folder, full)
    if package is not None:
        place = package.joinpath(*full.split(".")[1:])
        place = place if place.is_dir() else place.with_name(f"{place.name}.py")
    else:
        found = _located(folder, full)
        if found is None:
            return None
        place = found
    if place.is_relative_to(folder) or folder.is_relative_to(place.parent):
        return None
    return place


def _located(folder: Path, name: str) -> Path | None:
    """The file or folder of a module, found on ``sys.path`` without importing anything."""
    top, *inner = name.split(".")
    present = sys.modules.get(top)
    if present is not None and not inner:
        file = getattr(present, "__file__", None)
        return Path(file).resolve() if file else None
    search = list(getattr(present, "__path__", ())) if present else [*sys.path, *searched(folder)]
    spec = None
    try:
        for depth in range(1 if present else 0, 1 + len(inner)):
            full = ".".join((top, *inner[:depth]))
            spec = PathFinder.find_spec(full, search)
            if spec is None:
                return None
            search = list(spec.submodule_search_locations or ())
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    place = spec.origin if spec.has_location else next(iter(search), None)
    return Path(place).resolve() if place else None


def _package_folder(folder: Path, name: str) -> Path | None:
    """The folder of the top-level package of ``name``, if that is the bundle's folder or holds it."""
    names = tuple(name.split("."))
    if len(names) > 1 and names[0] == absolute(folder, ".").rstrip("."):
        return folder
    for ancestor in (folder, *folder.parents):
        for length in range(len(names), 0, -1):
            if ancestor.parts[-length:] != names[:length] or len(ancestor.parts) <= length:
                continue
            root = ancestor.parents[length - 1]
            file = root.joinpath(*names)
            if ancestor == folder or file.is_dir() or file.with_name(f"{file.name}.py").is_file():
                return root / names[0]
    return None


def _load_package(name: str, folder: Path) -> _Package:
    present = sys.modules.get(name)
    if present is not None:
        if _lies_in(present, folder):
            return _Package(folder, is_ours=False)
        raise BundleError(
            f"a module {name!r} from {_origin(present)} is imported already; the bundle is {folder}",
            remedy="Rename the bundle's folder, or load it in a process of its own.",
        )
    if name in sys.stdlib_module_names:
        raise BundleError(f"{name!r} is a module of Python itself", remedy="Rename the bundle's folder.")
    init = folder / "__init__.py"
    if is_file(init):
        spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(folder)])
    else:
        spec = ModuleSpec(name, None, is_package=True)
        # A plain list: the path of an ordinary namespace package would later take in folders of sys.path.
        spec.submodule_search_locations = [str(folder)]
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__path__ = [str(folder)]
    sys.modules[name] = module
    with ExitStack() as undo:
        undo.callback(_forget, name)
        if spec.loader is not None:
            spec.loader.exec_module(module)
        undo.pop_all()
    return _Package(folder)


@contextmanager
def no_bytecode_kept() -> Iterator[None]:
    """Import without writing compiled files.

    Python uses a compiled file if size and second of the last change of the source are the same, and so would
    run the state before a quick edit.
    """
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _acquire(entry: str) -> bool:
    """Put ``entry`` on ``sys.path``; False if it was there without us."""
    known = _entries.get(entry)
    if known is None:
        if entry in (str(Path(one).absolute()) for one in sys.path):
            return False
        known = _entries[entry] = _PathEntry(frozenset(sys.modules))
        sys.path.append(entry)
    known.users += 1
    return True


def _release(entry: str) -> None:
    """Take ``entry`` off ``sys.path`` after its last user, and forget the modules that were found in it."""
    known = _entries[entry]
    known.users -= 1
    if known.users:
        return
    del _entries[entry]
    if entry in sys.path:
        sys.path.remove(entry)
    for name in set(sys.modules) - known.names_before:
        is_top = "." not in name and name not in _packages
        if is_top and _lies_in(sys.modules[name], Path(entry) / name):
            _forget(name)


def _forget(name: str) -> None:
    for loaded in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
        del sys.modules[loaded]


def _lies_in(module: ModuleType, place: Path) -> bool:
    """True if ``module`` is the file ``place.py``, or the package ``place``, or something inside of it."""
    inside = place.resolve()
    files = [module.__file__] if getattr(module, "__file__", None) else [*getattr(module, "__path__", ())][:1]
    return any(
        file.is_relative_to(inside)
        or (file.parent == inside.parent and file.name.split(".")[0] == inside.name)
        for file in (Path(name).resolve() for name in files if name)
    )


def _origin(module: ModuleType) -> str:
    path = list(getattr(module, "__path__", ()))
    return getattr(module, "__file__", None) or (path[0] if path else "the interpreter")
