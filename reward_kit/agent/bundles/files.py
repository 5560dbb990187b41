"""The text files of a bundle: ``file:NAME`` references, its own prompts, checked reading."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from reward_kit.agent.base.text import FILE, cut, did_you_mean
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from pathlib import Path

PROMPTS = "prompts"
LONGEST_SHOWN = 256
"""Characters of a file name in a message."""

PLACEHOLDERS: dict[str, tuple[str, ...]] = {
    "user": ("instruction",),
    "user_react": (),
    "user_verify": ("conversation", "line"),
    "user_reflect": ("conversation", "line"),
    "user_again": ("line", "advice"),
    "greeting": (),
    "stop": (),
    "act": ("policy", "tools"),
    "react": ("policy", "tools"),
}
"""The prompts that a bundle can bring, by name, each with the placeholders (``{instruction}``) it needs.

``act`` and ``react`` are for the agent's model; all others are for the simulated user."""
AGENT_PROMPTS = frozenset({"act", "react"})

_ELSEWHERE = "If the bundle's files are in another folder than its rows, name that with --task-dir."


class BundleFiles:
    """Text files of one folder; none outside of it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._texts: dict[str, str] = {}

    def resolve(self, reference: str) -> Path:
        """The path of ``file:NAME``; raises ``BundleError`` if the folder has no such file."""
        name = reference.removeprefix(FILE)
        if not name.strip():
            raise BundleError(f'"{FILE}" names no file')
        try:
            path = (self.folder / name).resolve()
            with suppress(FileNotFoundError, NotADirectoryError):
                path.stat()  # raises for a loop of links, which the others ignore from Python 3.13 on
            is_file, exists = path.is_file(), path.exists()
        except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL character, a loop of links
            reason = getattr(error, "strerror", None) or error
            raise BundleError(f"file {cut(name, LONGEST_SHOWN)!r} cannot be opened: {reason}") from None
        if not path.is_relative_to(self.folder):
            raise BundleError(f"file {name!r} is outside of the bundle's folder {self.folder}")
        if not is_file:
            fault = "is not a file" if exists else "does not exist"
            raise BundleError(f"file {name!r} {fault} in {self.folder}", remedy=_ELSEWHERE)
        return path

    def has(self, text: str) -> bool:
        """True if ``text`` is the name of a file of the folder, rather than anything longer."""
        return len(text) <= LONGEST_SHOWN and len(text.split()) == 1 and (self.folder / text).is_file()

    def text(self, reference: str) -> str:
        """The text of ``file:NAME``, read once; raises ``BundleError``."""
        if reference not in self._texts:
            self._texts[reference] = read_text(self.resolve(reference))
        return self._texts[reference]


def read_text(path: Path) -> str:
    """The text of a UTF-8 file without byte order mark, line ends ``\\n``; raises ``BundleError``."""
    try:
        data = path.read_bytes()
        if data.startswith(b"SQLite format 3\0"):
            remedy = f"Write it as SQL: sqlite3 {path.name} .dump > {path.stem}.sql"
            raise BundleError("is an SQLite database, not text", place=str(path), remedy=remedy)
        if data.startswith(b"PGDMP"):
            remedy = f"Write it as SQL: pg_restore -a --column-inserts -f {path.stem}.sql {path.name}"
            raise BundleError("is an archive of pg_dump, not text", place=str(path), remedy=remedy)
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror}", place=str(path)) from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BundleError(f"is not UTF-8 text ({error.reason})", place=f"{path}:{line}") from None


def own_file(folder: Path, name: str) -> Path | None:
    """The file of this name in a bundle's folder, None if there is none.

    Raises ``BundleError`` for a folder, a broken link, or a link that leads out of the bundle's folder:
    taking it for missing would run the bundle without its file.
    """
    path = folder / name
    if path.is_file():
        if path.resolve().is_relative_to(folder.resolve()):
            return path
        raise BundleError("is a link to a file outside of the bundle's folder", place=str(path))
    if path.exists() or path.is_symlink():
        raise BundleError("is not a file", place=str(path), remedy="Put the file there, or rename this.")
    return None


def read_prompts(folder: Path) -> dict[str, str]:
    """The texts of a bundle's ``prompts/*.txt``, by name without ``.txt``; one final line break is dropped.

    Raises ``BundleError`` for a file that nobody reads, cannot be read, or lacks a placeholder.
    """
    prompts = {}
    for path in sorted((folder / PROMPTS).glob("*.txt")):
        place = f"{PROMPTS}/{path.name}"
        if path.stem in PLACEHOLDERS:
            own_file(folder, place)
            prompts[path.stem] = read_text(path).removesuffix("\n")
            check_template(prompts[path.stem], path.stem, place)
        elif path.stem.startswith("user") or did_you_mean(path.stem, PLACEHOLDERS):
            remedy = f"Names that are read: {', '.join(f'{name}.txt' for name in PLACEHOLDERS)}."
            raise BundleError("nobody reads this prompt", place=place, remedy=remedy)
    return prompts


def check_template(text: str | None, prompt: str = "user", place: str | None = None) -> None:
    """Raise ``BundleError`` if the template of a prompt lacks a placeholder."""
    has = None if text is None else text.replace("{messages}", "{conversation}")  # two forms of the same
    needed = [f"{{{name}}}" for name in PLACEHOLDERS[prompt]]
    if missing := [name for name in needed if has is not None and name not in has]:
        fault = f"has no {' and no '.join(missing)}; write it where the text belongs that takes its place"
        raise BundleError(fault, place=place)
