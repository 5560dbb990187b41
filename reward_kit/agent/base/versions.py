"""Versions of the software that makes a result."""

from __future__ import annotations

import platform
import sqlite3
import sys
from importlib.metadata import PackageNotFoundError, version


def versions() -> dict[str, str]:
    """Versions of this package and of what results depend on; LiteLLM's only if it is in use."""
    found = {
        "reward-kit": _version("reward-kit"),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    found["sqlite"] = _sqlite()
    if "litellm" in sys.modules:
        found["litellm"] = _version("litellm")
    return found


def _sqlite() -> str:
    """The version of the library that holds the databases."""
    try:
        import apsw
    except ImportError:
        return sqlite3.sqlite_version
    return apsw.sqlite_lib_version()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
