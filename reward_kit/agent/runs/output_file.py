"""A file that a person has asked for: whole or not at all; devices and pipes are written as they are."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from reward_kit.agent.runs.atomic_file import temporary_beside
from reward_kit.errors import StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

TO_OUTPUT = "-"


def check_target(option: str, target: str | Path | None) -> None:
    """Find out before the work that what ``option`` names is no file; ``UsageError``."""
    if target is None or str(target) == TO_OUTPUT:
        return
    path = Path(target)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {target} {'is a folder' if path.is_dir() else 'lies in no folder'}")


def write_output(parts: Iterable[bytes], target: str | Path, output: BinaryIO | None = None) -> None:
    """Write ``parts``, as they come, to a file or, for ``-``, to ``output`` (the standard output).

    Raises ``StorageError`` where a file cannot be written: what stood there before then still stands there.
    An output that takes no more is an ``OSError``, as for whatever else is printed.
    """
    if str(target) == TO_OUTPUT:
        stream = output or sys.stdout.buffer
        stream.writelines(parts)
        stream.flush()
        return
    try:
        _write_file(parts, Path(target))
    except BrokenPipeError:
        raise
    except OSError as error:
        place = str(target)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError("the disk is full", place=place, remedy="Make room.") from error
        raise StorageError(f"cannot be written: {error.strerror or error}", place=place) from error


def _write_file(parts: Iterable[bytes], path: Path) -> None:
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            file.writelines(parts)
        return
    whole = Path(os.path.realpath(path))  # a link stays one
    temporary = temporary_beside(whole)
    try:
        with temporary.open("xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(whole)
    finally:
        temporary.unlink(missing_ok=True)
