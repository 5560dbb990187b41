"""The folder of the new bundle: checked before the source is read, and replaced as a whole."""

from __future__ import annotations

import importlib.util
import keyword
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .build_seed import BUNDLE
from .source import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from importlib.machinery import ModuleSpec

_HERE = Path(__file__).resolve().parent


def check_target(out: Path, *, force: bool, spare: Iterable[Path]) -> Path:
    """Return ``out`` as an absolute path; raise ``SourceError`` if no bundle can be written there.

    ``force`` allows a folder that is not empty, unless it is or contains one of ``spare``.
    """
    target = out.resolve()
    _check_name(target)
    if target.exists() and not target.is_dir():
        raise SourceError(f"{out} is a file. Give a folder that is empty or does not exist")
    if not target.exists() or not any(target.iterdir()):
        return target
    if not force:
        raise SourceError(f"{out} is not empty. Choose another folder, or replace it with --force")
    for kept in (Path.cwd(), Path.home(), _HERE, BUNDLE, *spare):
        if kept.resolve().is_relative_to(target):
            raise SourceError(f"{out} is not replaced: it is or contains {kept}. Choose another folder")
    if (target / ".git").exists():
        raise SourceError(f"{out} is not replaced: it is a checkout. Choose another folder")
    return target


def write_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Write ``files`` (by path below ``target``) to a folder beside ``target``, then move it there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
        new, old = Path(temporary) / "new", Path(temporary) / "old"
        for path, content in files.items():
            file = new / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        if target.exists():
            target.rename(old)
        try:
            new.rename(target)
        except OSError:
            if old.exists():
                shutil.move(old, target)
            raise


def _check_name(target: Path) -> None:
    """Raise ``SourceError`` unless Python can import ``NAME.tools``, which the rows name, from the folder."""
    name = target.name
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        raise SourceError(
            f"Python cannot import a folder named {name!r}. Use letters, digits and _, not beginning with a "
            "digit"
        )
    taken = name in sys.stdlib_module_names or name in sys.builtin_module_names
    spec = None if taken else _spec(name)
    if spec is not None and spec.origin is not None:
        taken = not Path(spec.origin).resolve().is_relative_to(target)
    if taken:
        raise SourceError(f"{name!r} is the name of an installed Python module. Choose another name")


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # __main__ has no spec
        return None
