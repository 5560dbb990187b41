"""Temporary folders of a process, which the next one removes where it was killed."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import threading
import zlib
from contextlib import suppress
from pathlib import Path

_swept: set[str] = set()
"""The folders of temporary files that this process has looked through."""


def temporary_folder(kind: str) -> Path:
    """A new folder in that of temporary files (``TMPDIR``), named after its ``kind`` and this process.

    The caller removes it. What killed processes have left is removed when a process asks for its first one.
    """
    place = tempfile.gettempdir()
    if place not in _swept:
        _swept.add(place)
        threading.Thread(target=remove_left_over, args=(Path(place),), daemon=True).start()
    return Path(tempfile.mkdtemp(prefix=f"{_prefix(kind)}{os.getpid()}-"))


def remove_left_over(place: Path) -> None:
    """Remove what processes that no longer run have left in ``place``; of this machine or container alone."""
    for folder in place.glob(_prefix("*") + "*"):
        process = folder.name.rpartition(f"-{_here()}-")[2].partition("-")[0]
        if process.isdigit() and not _runs(int(process)):
            shutil.rmtree(folder, ignore_errors=True)


def _prefix(kind: str) -> str:
    return f"reward-kit-{kind}-{_here()}-"


def _here() -> str:
    """What numbers of processes are told apart by: they mean nothing in another container."""
    processes = ""
    with suppress(OSError):
        processes = str(Path("/proc/self/ns/pid").readlink())
    return f"{zlib.crc32(f'{platform.node()} {processes}'.encode()):08x}"


def _runs(process: int) -> bool:
    if sys.platform == "win32":
        return True  # os.kill would end it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another person's
        return True
    return True
