"""The folder of the new bundle: checked before the source is read, and written as a whole."""

from __future__ import annotations

import importlib.util
import keyword
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .source import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.machinery import ModuleSpec


def check_target(out: Path) -> Path:
    """Return ``out`` as an absolute path; raise ``SourceError`` if no bundle can be written there."""
    target = out.resolve()
    _check_name(target)
    if target.exists():
        raise SourceError(f"{out} exists. Choose another folder, or remove it")
    return target


def write_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Write ``files`` (by path below ``target``) to a folder beside ``target``, then move it there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
        new = Path(temporary) / "new"
        for path, content in files.items():
            file = new / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        new.rename(target)


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
