"""Importing a bundle's modules by the names that its rows use, wherever its folder is.

While a bundle is open, the folder above it and the working directory are at the end of ``sys.path``, so that
nothing in them hides an installed module. A name whose first part is the bundle's own folder is *pinned*: it
is looked for in that folder and nowhere else, with or without ``__init__.py``. When the bundle is closed, the
modules that came from there are forgotten, so that the next bundle with a folder of that name gets its own.

The state at module level mirrors what is process-wide: ``sys.path``, ``sys.meta_path``, ``sys.modules``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections import Counter
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from reward_kit.agent.bundles.files import is_file
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import ModuleType

_lock = RLock()
_open: list[BundleImports] = []
_added_to_path: Counter[str] = Counter()


class _PinnedFinder:
    """Finds the pinned names of all open bundles."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None:
            return None
        root = next((imports.pins[name] for imports in _open if name in imports.pins), None)
        if root is None:
            return None
        spec = PathFinder.find_spec(name, [str(root)], target)
        if spec is not None and spec.origin is not None and spec.submodule_search_locations is not None:
            return spec
        # A plain list: the path of an ordinary namespace package would later take in folders of sys.path.
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(root / name)]
        return spec


class BundleImports:
    """The import system as one bundle needs it, from ``BundleImports(folder)`` until ``close()``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.pins: dict[str, Path] = {}
        self._entries = list(dict.fromkeys([str(self.folder.parent), str(Path.cwd())]))
        self.before = {name.partition(".")[0] for name in set(sys.modules)}
        with _lock:
            _open.append(self)
            if _PinnedFinder not in sys.meta_path:
                sys.meta_path.insert(0, _PinnedFinder)
            self._added = [entry for entry in self._entries if _acquire(entry)]
            importlib.invalidate_caches()

    def module(self, name: str) -> ModuleType:
        """Import ``name``; raises ``BundleError`` on a clash of names, else whatever the import raises."""
        with _lock:
            home = self._home(name)
            if home is not None:
                self._pin(name.partition(".")[0], home)
            with no_bytecode_kept():
                module = importlib.import_module(name)
            if home is not None and not _lies_in(module, home / name.partition(".")[0]):
                raise BundleError(f"module {name!r} comes from {_origin(module)}, not from {home}")
            return module

    def exists(self, name: str) -> bool:
        """Whether there is a module ``name``; its parent package has been imported already.

        Raises ``BundleError`` where its file is none, a link to nothing say.
        """
        with _lock:
            try:
                if importlib.util.find_spec(name) is not None:
                    return True
            except (ModuleNotFoundError, ValueError):
                pass
            self.refuse_no_file(name)
            return False

    def refuse_no_file(self, name: str) -> None:
        """Raise ``BundleError`` where what would be the file of the module ``name`` is no file."""
        parent, _, stem = name.rpartition(".")
        folders = getattr(sys.modules.get(parent), "__path__", ()) if parent else self._entries
        for folder in folders:
            is_file(Path(folder) / f"{stem}.py")

    def searched(self) -> list[str]:
        """The folders, besides the installed packages, where modules are looked for."""
        return self._entries

    def close(self) -> None:
        """Take back what opening did and forget the bundle's modules. May be called again."""
        with _lock:
            if self not in _open:
                return
            _open.remove(self)
            for entry in self._added:
                _release(entry)
            gone = [entry for entry in self._added if entry not in sys.path]
            for name in {name.partition(".")[0] for name in set(sys.modules)} - self.before:
                needed = any(name in other.pins for other in _open)
                if not needed and self._brought(name, gone):
                    _forget(name)
                if needed or name not in sys.modules:
                    for other in _open:
                        other.before.discard(name)  # theirs to forget now
            if not _open:
                sys.meta_path.remove(_PinnedFinder)
            importlib.invalidate_caches()

    def _brought(self, name: str, entries: Iterable[str]) -> bool:
        """Whether the top-level module ``name`` was found where only this bundle made Python look."""
        return name in self.pins or any(_lies_in(sys.modules[name], Path(entry) / name) for entry in entries)

    def _home(self, name: str) -> Path | None:
        """The folder that holds the first part of ``name``, if it names the bundle's folder or one above."""
        parts = tuple(name.split("."))
        for ancestor in (self.folder, *self.folder.parents):
            for length in range(len(parts), 0, -1):
                if ancestor.parts[-length:] != parts[:length] or len(ancestor.parts) <= length:
                    continue
                root = ancestor.parents[length - 1]
                file = root.joinpath(*parts)
                if file.is_dir() or file.with_name(file.name + ".py").is_file() or ancestor == self.folder:
                    return root
        return None

    def _pin(self, name: str, root: Path) -> None:
        if self.pins.get(name) == root:
            return
        rival = next((imports for imports in _open if imports.pins.get(name, root) != root), None)
        if rival is not None:
            raise BundleError(
                f"the name {name!r} belongs to the bundle {rival.pins[name] / name}, which is open",
                remedy="Close that bundle first, or rename one of the folders.",
            )
        present = sys.modules.get(name)
        if present is not None and not _lies_in(present, root / name):
            raise BundleError(
                f"a module {name!r} from {_origin(present)} is imported already; the bundle is {root / name}",
                remedy="Rename the bundle's folder, or load it in a process of its own.",
            )
        if present is None and name in sys.stdlib_module_names:
            raise BundleError(f"{name!r} is a module of Python itself", remedy="Rename the bundle's folder.")
        self.pins[name] = root


@contextmanager
def no_bytecode_kept() -> Iterator[None]:
    """Modules that are imported meanwhile leave no compiled files.

    Python takes one for that of the source if size and second of the last change are the same, and so would
    run what stood there before an edit.
    """
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _acquire(entry: str) -> bool:
    """Put ``entry`` on ``sys.path``; False where it was there without us."""
    if not _added_to_path[entry]:
        if entry in (str(Path(known).absolute()) for known in sys.path):
            return False
        sys.path.append(entry)
    _added_to_path[entry] += 1
    return True


def _release(entry: str) -> None:
    _added_to_path[entry] -= 1
    if not _added_to_path[entry] and entry in sys.path:
        sys.path.remove(entry)


def _forget(name: str) -> None:
    for loaded in [loaded for loaded in sys.modules if loaded == name or loaded.startswith(name + ".")]:
        del sys.modules[loaded]


def _lies_in(module: ModuleType, place: Path) -> bool:
    """Whether ``module`` is the file ``place.py``, or the package ``place``, or something inside of it."""
    inside = place.resolve()
    files = (
        [module.__file__] if getattr(module, "__file__", None) else list(getattr(module, "__path__", ()))[:1]
    )
    return any(
        file.is_relative_to(inside)
        or (file.parent == inside.parent and file.name.split(".")[0] == inside.name)
        for file in (Path(name).resolve() for name in files if name)
    )


def _origin(module: ModuleType) -> str:
    path = list(getattr(module, "__path__", ()))
    return getattr(module, "__file__", None) or (path[0] if path else "the interpreter")
