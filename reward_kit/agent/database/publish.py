"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.agent.temporary_name import temporary_name
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedRandom


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
