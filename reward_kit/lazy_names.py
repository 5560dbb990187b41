"""Lazily imported public names of a package, and a library that is imported as late."""

from __future__ import annotations

import dis
import importlib
import inspect
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


class _Requests:
    """The library ``requests``, imported when one of its attributes is first used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("requests"), name)


lazy_requests = _Requests()


def lazy_names(
    package: str, homes: Mapping[str, str] | None = None, older: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make ``__getattr__``, ``__dir__`` and ``__all__`` for a module; submodules are attributes, too.

    ``homes`` maps names to the modules that define them; by default they are those that the module's code
    re-exports to type checkers: ``from home import name as name``. Modules in ``compat`` are imported by
    their published paths. ``older`` names are not in ``__all__``.
    """
    attributes = vars(sys.modules[package])
    if homes is None:
        homes, home = {}, ""
        frame: Any = inspect.currentframe()
        for one in dis.get_instructions(frame.f_back.f_code):
            if one.opname == "IMPORT_NAME":
                home = one.argval.replace(".compat.", ".")
            elif one.opname == "IMPORT_FROM" and home.startswith("reward_kit.") and home != __name__:
                homes[one.argval] = home

    def find(name: str) -> Any:
        if name in homes:
            value = attributes[name] = getattr(importlib.import_module(homes[name]), name)
            return value
        if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: sorted({*attributes, *homes}), sorted(homes.keys() - {*older})
