"""Versions of the software that makes a result, and the packages that an extra needs."""

from __future__ import annotations

import platform
import shlex
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version


def versions() -> dict[str, str]:
    """Versions of this package and of what results depend on; LiteLLM's only if it is in use."""
    import apsw

    found = {
        "reward-kit": _version("reward-kit"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "sqlite": apsw.sqlite_lib_version(),
    }
    if "litellm" in sys.modules:
        found["litellm"] = _version("litellm")
    return found


def install_line(extra: str) -> str:
    """The command that installs the packages of an extra, however this package was installed."""
    marked = (one.partition(";") for one in requires("reward-kit") or ())
    found = [
        requirement.strip()
        for requirement, _, marker in marked
        if f"extra == '{extra}'" in marker.replace('"', "'")
    ]
    return shlex.join(["pip", "install", *found])


@cache
def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
