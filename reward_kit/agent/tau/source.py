"""Sources of ported bundles: the files of a checkout or a wheel, and its commit; folders for bundles."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Iterator

UNKNOWN = "unknown commit: the folder has no readable .git"
_COMMIT = re.compile(r"[0-9a-f]{40,64}")


class SourceError(RewardKitError):
    """The source cannot be read, or has other content than expected."""


@dataclass(slots=True)
class SourceFiles:
    """The files below ``root``, a folder or a path in a wheel; ``name`` is its name in messages.

    ``digests`` has the files that were read so far.
    """

    root: Path | zipfile.Path
    name: str
    digests: dict[str, str] = field(default_factory=dict)

    def has(self, path: str) -> bool:
        return self.root.joinpath(path).is_file()

    def place(self, path: str) -> str:
        return f"{self.name}/{path}"

    def data(self, path: str, what: str) -> bytes:
        """Return the content; ``what`` is the expected content, for errors."""
        if not self.has(path):
            raise SourceError(f"{self.place(path)} is missing. Expected there: {what}")
        try:
            content = self.root.joinpath(path).read_bytes()
        except (OSError, zipfile.BadZipFile) as error:
            raise SourceError(f"{self.place(path)} cannot be read: {error}") from error
        self.digests[path] = hashlib.sha256(content).hexdigest()
        return content

    def text(self, path: str, what: str) -> str:
        try:
            return self.data(path, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{self.place(path)} is not UTF-8 text: {error}. Expected there: {what}"
            ) from error

    def json(self, path: str, what: str, expected: type) -> Any:
        """Return the JSON value; raise ``SourceError`` unless its type is ``expected`` (dict or list)."""
        text, place = self.text(path, what), self.place(path)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{place} is not JSON: {error}. Expected there: {what}") from error
        if not isinstance(value, expected):
            raise SourceError(f"{place} holds a JSON {_kind(value)}. Expected there: {what}")
        return value

    def content_hash(self) -> str:
        """The SHA-256 over the lines ``DIGEST  PATH`` that ``sha256sum`` writes, sorted by path."""
        lines = "".join(f"{digest}  {path}\n" for path, digest in sorted(self.digests.items()))
        return hashlib.sha256(lines.encode()).hexdigest()


def _kind(value: object) -> str:
    return {dict: "object", list: "array", str: "text", type(None): "null"}.get(type(value), "value")


# --- the commit of a checkout, read from .git without running git


def commit_of(files: SourceFiles) -> str:
    """Return ``commit 0123…``; uncommitted changes do not show in it."""
    commit = _commit(files.root) if isinstance(files.root, Path) else None
    return f"commit {commit}" if commit else UNKNOWN


def _commit(root: Path) -> str | None:
    git = root / ".git"
    pointer = _line(git)  # in a worktree or submodule, .git is a file
    if pointer is not None and pointer.startswith("gitdir: "):
        git = root / pointer.removeprefix("gitdir: ")
    head = _line(git / "HEAD")
    if head is None or not head.startswith("ref: "):
        return _checked(head)
    name = head.removeprefix("ref: ")
    shared = git / (_line(git / "commondir") or ".")
    for folder in (git, shared):
        commit = _checked(_line(folder / name))
        if commit:
            return commit
    return _packed(shared / "packed-refs", name)


def _packed(path: Path, name: str) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    return next((_checked(line.split(" ")[0]) for line in lines if line.endswith(f" {name}")), None)


def _line(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None


def _checked(text: str | None) -> str | None:
    return text if text and _COMMIT.fullmatch(text) else None


# --- a new folder


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to write to, beside ``target``; it becomes ``target`` if the block does not raise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
        folder = Path(temporary) / target.name
        yield folder
        folder.rename(target)


def put(path: Path, content: str | bytes) -> None:
    """Write a file, and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
