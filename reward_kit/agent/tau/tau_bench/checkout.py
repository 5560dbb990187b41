"""The commit of a checkout, read from its ``.git`` without running git."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .source import SourceFiles

_COMMIT = re.compile(r"[0-9a-f]{40,64}")
UNKNOWN = "unknown commit: the folder has no readable .git"


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
