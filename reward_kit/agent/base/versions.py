"""Versions of the software that makes a result."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version


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


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
