"""``seed.py``: a bundle's base filled by Python."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import sys
from contextlib import contextmanager, suppress
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import TYPE_CHECKING, Any

from reward_kit.agent.bundles.files import read_text
from reward_kit.agent.bundles.ground import kept_ground
from reward_kit.agent.bundles.user_code import code_fault
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENTRY = "seed"
INPUTS = "SEED_FILES"
"""A list of names or patterns in ``seed.py``: further files of the folder that the base depends on."""


class SeedScript:
    """``def seed(db)`` of a Python file; called with the open, empty database.

    The file is read when the object is made, and run when it is called. ``BundleError`` on a file that is not
    Python or has no such function, and on whatever the function raises.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = read_text(path)
        self.place = f"{path.parent.name}/{path.name}"
        try:
            self._tree = ast.parse(self.source)
        except SyntaxError as error:
            raise BundleError(f"SyntaxError: {error.msg}", place=f"{path}:{error.lineno}") from None
        except (ValueError, MemoryError, RecursionError) as error:  # a NUL character, nested too deeply
            raise BundleError(
                f"is not Python: {str(error) or 'nested too deeply'}", place=str(path)
            ) from None
        self._check()

    def _check(self) -> None:
        for node in self._tree.body:
            if isinstance(node, ast.AsyncFunctionDef) and node.name == ENTRY:
                raise BundleError(
                    f'"{ENTRY}" must be a plain "def", not "async def"', place=f"{self.path}:{node.lineno}"
                )
            names = (
                (alias.asname or alias.name for alias in node.names)
                if isinstance(node, ast.ImportFrom)
                else ()
            )
            if isinstance(node, ast.FunctionDef) and node.name == ENTRY:
                return
            if ENTRY in names or ENTRY in _targets(node):
                return
        raise BundleError(f'has no "def {ENTRY}(db)"', place=str(self.path))

    def fingerprint(self) -> bytes:
        """A digest of the script and of the files that it names in ``SEED_FILES``."""
        digest = hashlib.sha256(self.source.encode())
        for pattern in self._inputs():
            digest.update(b"\0" + pattern.encode(errors="surrogatepass"))
            for file in self._matching(pattern):
                content = hashlib.sha256(file.read_bytes()).digest()
                digest.update(file.relative_to(self.path.parent).as_posix().encode() + b"\0" + content)
        return digest.digest()

    def _matching(self, pattern: str) -> list[Path]:
        """The files that ``pattern`` names, none outside of the folder."""
        folder, fault = self.path.parent, f"{INPUTS!r} names {pattern!r}"
        try:
            files = [file for file in sorted(folder.glob(pattern)) if file.is_file()]
        except (NotImplementedError, ValueError, IndexError, OSError) as error:
            remedy = f"Name files relative to {folder}."
            raise BundleError(f"{fault}: {error}", place=str(self.path), remedy=remedy) from None
        inside = folder.resolve()
        if not all(file.resolve().is_relative_to(inside) for file in files):
            raise BundleError(f"{fault}, which is outside of the bundle's folder", place=str(self.path))
        return files

    def _inputs(self) -> list[str]:
        for node in self._tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and INPUTS in _targets(node):
                try:
                    value = ast.literal_eval(node.value) if node.value else None
                except ValueError:
                    value = None
                if isinstance(value, (list, tuple)) and all(isinstance(name, str) and name for name in value):
                    return list(value)
                fault = f'"{INPUTS}" must be a literal list of file names such as ["data/users.json"]'
                raise BundleError(fault, place=f"{self.path}:{node.lineno}")
        return []

    def __call__(self, db: Any) -> None:
        """Fill ``db``."""
        try:
            with kept_ground(), _imported(self.path) as module:
                _refuse_not_run(getattr(module, ENTRY)(db), self.place)
        except (BundleError, KeyboardInterrupt):
            raise
        except BaseException as error:  # the border to the bundle's own code
            fault = code_fault(error)
            if fault.startswith(f"{self.path.name}:"):  # the line is in the script itself
                raise BundleError(f"{self.path.parent.name}/{fault}") from error
            raise BundleError(fault, place=self.place) from error


def _refuse_not_run(left: Any, place: str) -> None:
    """Raise where calling a function has only prepared it to run."""
    if inspect.isgenerator(left) or inspect.iscoroutine(left):
        left.close()
        kind = type(left).__name__
        raise BundleError(
            f'"{ENTRY}" is a {kind}, which has not run', place=place, remedy='Write a plain "def".'
        )


def _targets(node: ast.stmt) -> list[str]:
    """The names that an assignment gives a value."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


@contextmanager
def _imported(path: Path) -> Iterator[ModuleType]:
    """The script as a module of a package of its own, so that relative imports work and nothing clashes."""
    package = f"_reward_kit_seed_{hashlib.sha256(str(path.parent).encode()).hexdigest()[:16]}"
    parent = str(path.parent.parent)
    sys.modules[package] = ModuleType(package)
    sys.modules[package].__path__ = [str(path.parent)]
    sys.path.append(parent)
    importlib.invalidate_caches()
    try:
        yield _module_from(path, f"{package}.{ENTRY}")
    finally:
        with suppress(ValueError):  # the script has removed it
            sys.path.remove(parent)
        for name in [name for name in sys.modules if name == package or name.startswith(package + ".")]:
            del sys.modules[name]


def _module_from(path: Path, name: str) -> ModuleType:
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
