"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.agent.temporary_name import temporary_name
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedRandom
    from typing import BinaryIO

_FICLONE = 0x40049409
"""Linux ioctl: share the blocks of another file until one of the two is written to."""


@contextlib.contextmanager
def temporary_beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A fresh name in the folder of ``path``; whatever stands under it is removed on leaving.

    ``OSError`` inside the block becomes ``StorageError``.
    """
    target = Path(path)
    temporary = target.with_name(temporary_name(target.name))
    try:
        yield temporary
    except OSError as error:
        raise StorageError(
            f"cannot write the file: {error.strerror or error}",
            place=str(target),
            remedy="No part of it was kept.",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def share_or_copy(source: BinaryIO, target: BinaryIO) -> None:
    """Fill ``target`` with ``source``, sharing its blocks where the file system can."""
    try:
        import fcntl

        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
    except (ImportError, OSError):  # no such system call, or no such file system
        shutil.copyfileobj(source, target, 1 << 20)


@contextlib.contextmanager
def publish(path: str | os.PathLike[str]) -> Iterator[BufferedRandom]:
    """A file that takes the place of ``path`` when the block ends without an exception.

    ``StorageError`` if it cannot be written; the former file is then still there.
    """
    with temporary_beside(path) as temporary:
        with temporary.open("x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
