"""Importing a bundle's modules by the names that its rows use, from the bundle's own folder.

While a bundle is open, the folder above it and the working directory are at the end of ``sys.path``, so that
nothing in them hides an installed module. A package that is the bundle's folder, or holds it, is loaded from
there and from nowhere else, with or without ``__init__.py``. When the last bundle that uses them is closed,
these modules are forgotten, so that the next bundle with a folder of that name gets its own. If a file has
changed since it was imported, the next bundle imports its folder anew, also while others have it open.

A name that begins with a dot is relative to the bundle's folder: ``.tools`` is its ``tools.py``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
from contextlib import contextmanager, suppress
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, NamedTuple

from reward_kit.agent.base.files import undone_by
from reward_kit.agent.base.places import import_fault
from reward_kit.agent.base.text import did_you_mean
from reward_kit.agent.bundles.files import own_file
from reward_kit.agent.bundles.task import DEFAULT_REWARD, no_tools
from reward_kit.agent.rows.task_row import INJECTED
from reward_kit.agent.tools.registry import ToolRegistry
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

    from reward_kit.agent.bundles.task import Reward

# sys.modules and sys.path are one for the whole process.
_lock = RLock()
_open: list[BundleImports] = []


class BundleImports:
    """The imports of one bundle, from ``BundleImports(folder)`` until ``close()``.

    ``packages`` are the top-level packages that it has loaded, with their folders; ``entries`` are those of
    ``sys.path`` that it needs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.packages: dict[str, Path] = {}
        self.entries: list[str] = []
        self._known = frozenset(sys.modules)
        with _lock:
            for name in changed_modules(self.folder):
                del sys.modules[name]
            added: set[str] = {entry for other in _open for entry in other.entries}
            present = {str(Path(entry).absolute()) for entry in sys.path} - added
            self.entries = [entry for entry in searched(self.folder) if entry not in present]
            sys.path += [entry for entry in self.entries if entry not in added]
            _open.append(self)
            importlib.invalidate_caches()

    def module(self, name: str) -> ModuleType:
        """Import ``name``; raises ``BundleError`` on a clash of names, else whatever the import raises."""
        full = absolute(self.folder, name)
        with _lock, no_bytecode_kept():
            if (package := _package_folder(self.folder, full)) is not None:
                self._use(full.partition(".")[0], package)
            module = importlib.import_module(full)
            changed_modules(self.folder)  # notes them
            if package is not None and not place_of(module).is_relative_to(package):
                raise BundleError(f"module {full!r} comes from {place_of(module)}, not from {package}")
            return module

    def exists(self, name: str) -> bool:
        """True if there is a module ``name``, whose parent package has been imported already."""
        try:
            return importlib.util.find_spec(absolute(self.folder, name)) is not None
        except (ModuleNotFoundError, ValueError):
            return False

    def close(self) -> None:
        """Restore ``sys.path`` and forget the bundle's modules. May be called again."""
        with _lock:
            if self not in _open:
                return
            _open.remove(self)
            for name in self.packages:
                if not any(name in other.packages for other in _open):
                    forget(name)
            for entry in self.entries:
                if not any(entry in other.entries for other in _open):
                    sys.path.remove(entry)
                    self._forget_found_in(Path(entry))
            importlib.invalidate_caches()

    def _forget_found_in(self, entry: Path) -> None:
        """Forget the modules that were imported from a folder that is no longer on ``sys.path``."""
        used = {name for other in _open for name in other.packages}
        for name in set(sys.modules) - self._known - used:
            if "." not in name and name in sys.modules:
                place = place_of(sys.modules[name])
                if place == entry / f"{name}.py" or place.is_relative_to(entry / name):
                    forget(name)

    def _use(self, name: str, folder: Path) -> None:
        """Have the package ``name`` in ``sys.modules``, loaded from ``folder``."""
        loaded = next((other.packages[name] for other in _open if name in other.packages), None)
        present = sys.modules.get(name)
        if loaded is not None and loaded != folder:
            remedy = "Close that bundle first, or rename one of the folders."
            fault = f"the name {name!r} belongs to the bundle {loaded}, which is open"
            raise BundleError(fault, remedy=remedy)
        if loaded is None and present is not None:
            if place_of(present).is_relative_to(folder):
                return  # somebody else's import, which stays
            remedy = "Rename the bundle's folder, or load it in a process of its own."
            fault = f"a module {name!r} from {place_of(present)} is imported already; the bundle is {folder}"
            raise BundleError(fault, remedy=remedy)
        if present is None:
            _load_package(name, folder)
        self.packages[name] = folder


def changed_modules(folder: Path) -> list[str]:
    """Note the files of the modules that were imported from ``folder``; names them all if one has changed.

    What lies in a folder of ``sys.path`` below it, such as the packages of a ``.venv``, is none of them.
    """
    changed, inside, root = False, set(), f"{folder}{os.sep}"
    others = tuple(
        [f"{entry.rstrip(os.sep)}{os.sep}" for entry in map(str, sys.path) if entry.startswith(root)]
    )
    for name, module in [*sys.modules.items()]:
        own = getattr(module, "__dict__", {})  # without imports of modules that wait for their first use
        file, spec = str(own.get("__file__")), own.get("__spec__")
        if not file.startswith(root) or file.startswith(others) or spec is None or spec.name != name:
            continue  # also __main__
        inside.add(name)
        with suppress(OSError):
            now = (stat := Path(file).stat()).st_mtime_ns, stat.st_size
            changed |= vars(spec).setdefault("noted", now) != now  # a reload makes another spec
    if not changed:
        return []
    above = {name[: dot.start()] for name in inside for dot in re.finditer(r"\.", name)} & sys.modules.keys()
    return [*inside, *(one for one in above - inside if place_of(sys.modules[one]).is_relative_to(folder))]


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


def place_of(module: ModuleType) -> Path:
    """The file of a module, the folder of a package without ``__init__.py``, or ``the interpreter``."""
    path = list(getattr(module, "__path__", ()))
    place = getattr(module, "__file__", None) or (path[0] if path else None)
    return Path(place).resolve() if place else Path("the interpreter")


def _package_folder(folder: Path, name: str) -> Path | None:
    """The folder of the top-level package of ``name``, if that is the bundle's folder or holds it."""
    names = name.split(".")
    if len(names) > 1 and names[0] == absolute(folder, ".").rstrip("."):
        return folder
    for ancestor in (folder, *folder.parents):
        file = ancestor.parent.joinpath(*names)
        if ancestor.name == names[0] and (
            ancestor == folder or file.is_dir() or file.with_name(f"{file.name}.py").is_file()
        ):
            return ancestor
    return None


def _load_package(name: str, folder: Path) -> None:
    if name in sys.stdlib_module_names:
        raise BundleError(f"{name!r} is a module of Python itself", remedy="Rename the bundle's folder.")
    init = folder / "__init__.py"
    spec = ModuleSpec(name, None, is_package=True)
    if init.is_file():
        spec = importlib.util.spec_from_file_location(name, init) or spec
    # A plain list: the path of an ordinary namespace package would later take in folders of sys.path.
    spec.submodule_search_locations = [str(folder)]
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    with undone_by(partial(forget, name)):
        if spec.loader is not None:
            spec.loader.exec_module(module)


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


def forget(name: str) -> None:
    """Remove a package and its modules from those that are imported."""
    for loaded in [one for one in list(sys.modules) if one == name or one.startswith(f"{name}.")]:
        del sys.modules[loaded]


# --- the tools and the reward that a row names


REGISTRY = "R"
TOOLS = "tools"
USER_TOOLS = "user_tools"
REWARD = "reward"


def load_registry(imports: BundleImports, toolset: str, outside: bool | None = True) -> ToolRegistry:
    """The registry that ``module`` or ``module:attribute`` names; raises ``BundleError``.

    Without an attribute it is the module's ``R``, else the only ``ToolRegistry`` in the module. Unless
    ``outside`` is true, the module has to lie in the bundle's folder, or in a package that holds the folder.
    """
    name, _, attribute = toolset.partition(":")
    module = _import(imports, name, TOOLS)
    place = place_of(module)
    above = place.parent.parent if place.name == "__init__.py" else place.parent
    if not outside and not (place.is_relative_to(imports.folder) or imports.folder.is_relative_to(above)):
        own = f'write ".{TOOLS}" for the bundle\'s own tools, or ' if _has(imports.folder, TOOLS) else ""
        raise BundleError(
            f"{name!r} is {place}, outside of the bundle's folder {imports.folder}; "
            f'{own}add "toolset_outside": true to the row to use it'
        )
    if attribute or hasattr(module, REGISTRY):
        found = getattr(module, attribute or REGISTRY, None)
        if isinstance(found, ToolRegistry):
            return found
        got = "does not exist" if found is None else f"is {type(found).__name__}"
        raise BundleError(f"{attribute or REGISTRY!r} in module {name!r} {got}, expected a ToolRegistry")
    members = vars(module).items()
    registries = {one: f'"{name}:{key}"' for key, one in members if isinstance(one, ToolRegistry)}
    if len(registries) == 1:
        return next(iter(registries))
    if registries:
        remedy = f"Write which one: {', '.join(registries.values())}."
        raise BundleError(f"module {name!r} has several registries", remedy=remedy)
    remedy = f'Write {REGISTRY} = ToolRegistry("…") in it and register the tools with @{REGISTRY}.tool.'
    raise BundleError(f"module {name!r} has no ToolRegistry", remedy=remedy)


def load_user_registry(
    imports: BundleImports, toolset: str | None, outside: bool | None = True
) -> ToolRegistry:
    """The user's tools: those of ``toolset``, by default ``user_tools.py``; none without the file."""
    if toolset is None and (own_file(imports.folder, f"{USER_TOOLS}.py") or _has(imports.folder, USER_TOOLS)):
        toolset = f".{USER_TOOLS}"
    return no_tools() if toolset is None else load_registry(imports, toolset, outside)


def allowed_tools(registry: ToolRegistry, names: Sequence[str] | None) -> ToolRegistry:
    """The user's tools of these names, all for None; raises ``BundleError`` for an unknown name."""
    for name in names or ():
        if name not in registry.tools:
            raise BundleError(f"the user has no tool {name!r}{did_you_mean(name, list(registry.tools))}")
    return registry if names is None else registry.only(names)


JUDGED_BY = ("end_goal_sql", "actions", "checks", "required_calls", "forbidden_calls", "criteria")
"""Row fields of which the default reward needs one."""


class FoundReward(NamedTuple):
    """A reward, the row fields that it needs, and ``why`` it needs them; one of ``instead`` will do."""

    function: Reward
    required: frozenset[str]
    why: str = "but the reward needs it"
    instead: frozenset[str] = frozenset()


def load_reward(imports: BundleImports, toolset: str, reward: str | None) -> FoundReward:
    """The reward ``module:function``; without one, ``evaluate`` in the tools' sibling ``reward``.

    If there is no such module, it is ``DEFAULT_REWARD``. Raises ``BundleError`` if it is not a reward.
    """
    if reward is None:
        package = absolute(imports.folder, toolset.partition(":")[0]).rpartition(".")[0]
        module_name, function_name = f"{package}.{REWARD}" if package else REWARD, "evaluate"
        if not imports.exists(module_name):
            own_file(imports.folder, f"{REWARD}.py")  # a broken link is not taken for a missing reward
            missing = f"{(package or imports.folder.name).replace('.', '/')}/{REWARD}.py"
            why = f"and there is no {missing}: no reward is defined ({', '.join(JUDGED_BY[1:])} would do too)"
            found = load_reward(imports, toolset, DEFAULT_REWARD)
            return found._replace(required=frozenset(JUDGED_BY[:1]), why=why, instead=frozenset(JUDGED_BY))
    else:
        module_name, _, function_name = reward.partition(":")
    function = getattr(_import(imports, module_name, REWARD), function_name, None)
    place, remedy = f"{module_name}:{function_name}", 'Write "def evaluate(messages, *, db, **kwargs)".'
    if function is None:
        raise BundleError(f"module {module_name!r} has no {function_name!r}")
    if not callable(function):
        raise BundleError(f"{place} is {type(function).__name__}, expected a function")
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # written in C
        raise BundleError(f"{place} has no signature: it is not a Python function", remedy=remedy) from None
    if not any(one.kind is one.VAR_KEYWORD for one in parameters):
        fault = f"{place} does not take **kwargs, but a reward is called with all fields of its row"
        raise BundleError(fault, remedy=remedy)
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    return FoundReward(function, frozenset(one.name for one in named if one.default is one.empty) - INJECTED)


def _import(imports: BundleImports, name: str, kind: str) -> ModuleType:
    folder, full = imports.folder, absolute(imports.folder, name)
    try:
        return imports.module(name)
    except BundleError:
        raise
    except (Exception, SystemExit) as error:  # the border to the bundle's own code
        missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        remedy = None
        if missing and f"{full}.".startswith(f"{missing}."):
            parent = missing.rpartition(".")[0]
            others = f"{', '.join(searched(folder))} or what is installed"
            places = f"package {parent!r}" if parent else others
            if _has(folder, kind):
                remedy = f'The bundle\'s folder is {folder.name!r}: did you mean ".{kind}"?'
            raise BundleError(f"there is no module {missing!r} in {places}", remedy=remedy) from None
        if missing and _has(folder, top := missing.partition(".")[0]):
            imported = f'"from {folder.name} import {top}"'
            remedy = f"Modules of a bundle are imported by the name of its folder: {imported}."
        fault = f"module {full!r} cannot be imported: {import_fault(error)}"
        raise BundleError(fault, remedy=remedy) from error


def _has(folder: Path, module: str) -> bool:
    return (folder / f"{module}.py").is_file() or (folder / module / "__init__.py").is_file()
