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

from reward_kit.agent.base.places import import_fault
from reward_kit.agent.bundles.files import read_text
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENTRY = "seed"
INPUTS = "SEED_FILES"
"""A list of names or patterns in ``seed.py``: further files of the folder that the base depends on."""


class SeedScript:
    """``def seed(db)`` of a Python file; called with the open, empty database.

    The file is read when the object is made, and run when it is called. Raises ``BundleError`` for a file
    that is not Python or has no such function, and for any exception of the function.
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
            fault = f"is not Python: {str(error) or 'nested too deeply'}"
            raise BundleError(fault, place=str(path)) from None
        self._check()

    def _check(self) -> None:
        for node in self._tree.body:
            if isinstance(node, ast.AsyncFunctionDef) and node.name == ENTRY:
                fault = f'"{ENTRY}" must be a plain "def", not "async def"'
                raise BundleError(fault, place=f"{self.path}:{node.lineno}")
            if ENTRY in _names(node):
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

    def _inputs(self) -> list[str]:
        for node in self._tree.body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or INPUTS not in _names(node):
                continue
            try:
                value = ast.literal_eval(node.value) if node.value else None
            except ValueError:
                value = None
            if isinstance(value, list | tuple) and all(isinstance(name, str) and name for name in value):
                return list(value)
            fault = f'"{INPUTS}" must be a literal list of file names such as ["data/users.json"]'
            raise BundleError(fault, place=f"{self.path}:{node.lineno}")
        return []

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

    def __call__(self, db: Any) -> None:
        """Fill ``db``."""
        try:
            with _imported(self.path) as module:
                made = getattr(module, ENTRY)(db)
        except BundleError:
            raise
        except (Exception, SystemExit) as error:  # the border to the bundle's own code
            fault = import_fault(error)
            if fault.startswith(f"{self.path.name}:"):  # the line is in the script itself
                raise BundleError(f"{self.path.parent.name}/{fault}") from error
            raise BundleError(fault, place=self.place) from error
        if inspect.isgenerator(made) or inspect.iscoroutine(made):
            made.close()
            fault = f'"{ENTRY}" is a {type(made).__name__}, which has not run'
            raise BundleError(fault, place=self.place, remedy='Write a plain "def".')


def _names(node: ast.stmt) -> list[str]:
    """The names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    if isinstance(node, ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
    return [target.id for target in targets if isinstance(target, ast.Name)]


@contextmanager
def _imported(path: Path) -> Iterator[ModuleType]:
    """The script as a module of a private package: relative imports work, and no name clashes."""
    package = f"_reward_kit_seed_{hashlib.sha256(str(path.parent).encode()).hexdigest()[:16]}"
    above = str(path.parent.parent)
    sys.modules[package] = ModuleType(package)
    sys.modules[package].__path__ = [str(path.parent)]
    sys.path.append(above)
    importlib.invalidate_caches()
    name = f"{package}.{ENTRY}"
    try:
        spec = spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        with suppress(ValueError):  # the script has removed it
            sys.path.remove(above)
        for loaded in [one for one in sys.modules if one == package or one.startswith(f"{package}.")]:
            del sys.modules[loaded]
