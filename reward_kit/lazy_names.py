"""Lazily imported public names of a package, and a library that is imported as late."""

from __future__ import annotations

import importlib
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
    package: str, homes: Mapping[str, Collection[str]], older: Mapping[str, Collection[str]] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make ``__getattr__``, ``__dir__`` and ``__all__`` for a module; submodules are attributes, too.

    ``homes`` maps modules to the names they define; ``older`` names are importable, but not in ``__all__``.
    """
    listed = sorted(name for names in homes.values() for name in names)
    homes_and_older = [*homes.items(), *(older or {}).items()]
    home_of = {name: home for home, names in homes_and_older for name in names}
    attributes = vars(sys.modules[package])

    def find(name: str) -> Any:
        if name in home_of:
            value = attributes[name] = getattr(importlib.import_module(home_of[name]), name)
            return value
        if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: sorted({*attributes, *home_of}), listed
