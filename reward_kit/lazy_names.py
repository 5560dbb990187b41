"""Public names that are imported when first used, so that importing a package costs next to nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


def lazy_names(
    package: str, homes: Mapping[str, Collection[str]], submodules: Collection[str] = ()
) -> Callable[[str], Any]:
    """A module ``__getattr__`` for ``package``.

    ``homes`` says which module defines which names; ``submodules`` are reachable as attributes without an
    import of their own.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name in home_of:
            return getattr(importlib.import_module(home_of[name]), name)
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
