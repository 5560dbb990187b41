"""The files that a bundle's rows refer to as ``file:NAME``."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from reward_kit.agent.cut_text import cut
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "file:"
LONGEST_SHOWN = 256
_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"))


_ELSEWHERE = "Where the bundle lies in another folder than its rows, --task-dir names it."


class BundleFiles:
    """Text files of one folder; each is read once, and none outside of the folder is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._texts: dict[str, str] = {}
        self._faults: dict[str, str] = {}

    def resolve(self, reference: str) -> Path:
        """The file that ``file:NAME`` stands for; ``BundleError`` where the folder has none."""
        name = reference.removeprefix(PREFIX)
        if not name.strip():
            raise BundleError(f'"{PREFIX}" names no file')
        try:
            path = (self.folder / name).resolve()
            inside = path.is_relative_to(self.folder)
            exists = inside and path.exists()
            if inside and not exists and path.is_symlink():
                path.stat()  # Python 3.13 takes a loop of links for nothing at all
        except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL character, a loop of links
            reason = getattr(error, "strerror", None) or error
            raise BundleError(f"file {cut(name, LONGEST_SHOWN)!r} cannot be opened: {reason}") from None
        if not inside:
            raise BundleError(f"file {name!r} is outside of the bundle's folder {self.folder}")
        if not exists:
            elsewhere = (
                None
                if (self.folder / "tools.py").exists() or (self.folder / "tools").exists()
                else _ELSEWHERE
            )
            raise BundleError(f"file {name!r} does not exist in {self.folder}", remedy=elsewhere)
        if not path.is_file():
            raise BundleError(f"{name!r} in {self.folder} is not a file")
        return path

    def has(self, text: str) -> bool:
        """Whether ``text`` is the name of a file of the folder, rather than anything longer."""
        if len(text) > LONGEST_SHOWN or len(text.split()) != 1:
            return False
        try:
            return self.resolve(text).is_file()
        except BundleError:
            return False

    def text(self, reference: str) -> str:
        """The text of the file that ``file:NAME`` stands for; raises ``BundleError``."""
        if reference not in self._texts and reference not in self._faults:
            try:
                self._texts[reference] = read_text(self.resolve(reference))
            except BundleError as error:
                self._faults[reference] = str(error)
        if reference in self._faults:
            raise BundleError(self._faults[reference])
        return self._texts[reference]


def read_text(path: Path) -> str:
    """The text of a UTF-8 file without byte order mark, line ends ``\\n``; raises ``BundleError``."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror}", place=str(path)) from error
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BundleError(f"is not UTF-8 text ({error.reason})", place=f"{path}:{line}") from None


def is_file(path: Path) -> bool:
    """Whether there is a file ``path``; ``BundleError`` where what has its name is none: that is never meant
    to count as nothing.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # a NUL character in its name
        number = getattr(error, "errno", None)
        is_link = os.path.islink(path)  # noqa: PTH114 - Path's own raises where a name is too long
        if not is_link and number != errno.EACCES:
            return False
        if number == errno.ENOENT:
            fault = "is a link to a file that is not there"
        elif number == errno.ELOOP:
            fault = "is a link that leads back to itself"
        else:
            fault = f"cannot be read: {getattr(error, 'strerror', error)}"
        remedy = "Put the file there, or remove the link if the bundle is to have none."
        raise BundleError(fault, place=str(path), remedy=remedy) from None
    if stat.S_ISREG(mode):
        return True
    kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "a device")
    remedy = "Rename it, or put the file in its place."
    raise BundleError(f"is {kind}, expected a file", place=str(path), remedy=remedy)
