"""Sources of ported bundles: the files of a checkout or a wheel, and its commit; folders for bundles."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import tempfile
import tomllib
import warnings
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_COMMIT = re.compile(r"[0-9a-f]{40,64}")


class SourceError(RewardKitError):
    """The source cannot be read, or has other content than expected."""


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The files below ``root``, a folder or a path in a wheel; ``name`` is its name in messages.

    ``inside`` begins the path of each. ``digests`` has the files that were read so far.
    """

    root: Path | zipfile.Path
    name: str
    digests: dict[str, str] = field(default_factory=dict)
    inside: str = ""

    def has(self, path: str) -> bool:
        return self.root.joinpath(f"{self.inside}{path}").is_file()

    def place(self, path: str) -> str:
        return f"{self.name}/{self.inside}{path}"

    def names(self, path: str, suffix: str) -> list[str]:
        """The names of the files of a folder."""
        folder = self.root.joinpath(f"{self.inside}{path}")
        if not folder.is_dir():
            raise SourceError(f"{self.place(path)} is missing")
        return sorted(one.name for one in folder.iterdir() if one.name.endswith(suffix))

    def data(self, path: str, what: str) -> bytes:
        """Return the content; ``what`` is the expected content, for errors."""
        if not self.has(path):
            raise SourceError(f"{self.place(path)} is missing. Expected there: {what}")
        try:
            content = self.root.joinpath(f"{self.inside}{path}").read_bytes()
        except (OSError, zipfile.BadZipFile) as error:
            raise SourceError(f"{self.place(path)} cannot be read: {error}") from error
        self.digests[f"{self.inside}{path}"] = hashlib.sha256(content).hexdigest()
        return content

    def text(self, path: str, what: str) -> str:
        try:
            return self.data(path, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{self.place(path)} is not UTF-8 text: {error}. Expected there: {what}"
            ) from error

    def value(self, path: str, what: str, expected: type = object) -> Any:
        """Return the value of a JSON or TOML file; raise ``SourceError`` unless it is an ``expected``."""
        text, place = self.text(path, what), self.place(path)
        try:
            value = tomllib.loads(text) if path.endswith(".toml") else json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{place} cannot be read: {error}. Expected there: {what}") from error
        if not isinstance(value, expected):
            raise SourceError(f"{place} holds a {type(value).__name__}. Expected there: {what}")
        return value

    def python(self, path: str, what: str) -> PythonFile:
        """Parse a Python file, which is never run."""
        text, place = self.text(path, what), self.place(path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the file's author sees those about escapes
                return PythonFile(place, text, ast.parse(text))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise SourceError(f"{place} is not Python: {error}. Expected there: {what}") from error

    def content_hash(self) -> str:
        """The SHA-256 over the lines ``DIGEST  PATH`` that ``sha256sum`` writes, sorted by path."""
        lines = "".join(f"{digest}  {path}\n" for path, digest in sorted(self.digests.items()))
        return hashlib.sha256(lines.encode()).hexdigest()


# --- the commit of a checkout, read from .git without running git


def commit_of(files: SourceFiles) -> str:
    """Return ``commit 0123…``; uncommitted changes do not show in it."""
    commit = _commit(files.root) if isinstance(files.root, Path) else None
    return f"commit {commit}" if commit else "unknown commit: the folder has no readable .git"


def _commit(root: Path) -> str | None:
    git = root / ".git"
    if (pointer := _text(git)).startswith("gitdir: "):  # in a worktree or submodule, .git is a file
        git = root / pointer.removeprefix("gitdir: ")
    found = _text(git / "HEAD")
    if found.startswith("ref: "):
        name = found.removeprefix("ref: ")
        shared = git / (_text(git / "commondir") or ".")
        packed = [line for line in _text(shared / "packed-refs").splitlines() if line.endswith(f" {name}")]
        found = _text(git / name) or _text(shared / name) or "".join(packed[:1]).partition(" ")[0]
    return found if _COMMIT.fullmatch(found) else None


def _text(path: Path) -> str:
    """The text of a file; nothing for one that cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


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
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


# --- values from Python files that are parsed and never run


_QUOTED = 70


@dataclass(frozen=True, slots=True)
class PythonFile:
    """A parsed file; ``place`` names it in errors."""

    place: str
    source: str
    tree: ast.Module

    def function(self, name: str, owner: str | None = None) -> ast.FunctionDef:
        """The first function of that name, in the class ``owner`` if it is given."""
        scopes = [self.tree] if owner is None else [*_named(self.tree, ast.ClassDef, owner)]
        for function in _named(scopes[0], ast.FunctionDef, name) if scopes else ():
            return function
        raise self.absent(f"{owner}.{name}()" if owner else f"{name}()")

    def fault(self, node: ast.AST, expected: str) -> SourceError:
        """Make an error about ``node``: its line, its text, the expected text."""
        found = " ".join(ast.unparse(node).split())
        if len(found) > _QUOTED:
            found = f"{found[: _QUOTED - 3]}..."
        line = getattr(node, "lineno", 0)
        return SourceError(f"{self.place}:{line}: found `{found}`. Expected there: {expected}")

    def assigned(self, name: str, expected: str) -> ast.expr:
        """Return the value of ``name``; raise ``SourceError`` unless one assignment is its only mention."""
        mentions = [statement for statement in self.tree.body if _mentions(statement, name)]
        if not mentions:
            raise SourceError(f"{self.place} has no {name}. Expected there: {expected}")
        first, *others = mentions
        if others:
            raise self.fault(others[0], f"no other mention of {name} after line {first.lineno}")
        value = first.value if isinstance(first, (ast.Assign, ast.AnnAssign)) else None
        if value is None:
            raise self.fault(first, expected)
        return value

    def absent(self, expected: str) -> SourceError:
        return SourceError(f"{self.place} has no {expected}")

    def value(self, name: str, expected: str) -> ast.expr:
        """Return the value that is first assigned to ``name``."""
        for statement in self.tree.body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
                return statement.value
        raise self.absent(f"{name}, {expected}")

    def elements(self, node: ast.expr, expected: str) -> list[ast.expr]:
        if not isinstance(node, (ast.List, ast.Tuple)) or any(isinstance(e, ast.Starred) for e in node.elts):
            raise self.fault(node, expected)
        return node.elts

    def arguments(self, node: ast.expr, function: str) -> dict[str, ast.expr]:
        """Return the keyword arguments of a call of ``function`` or ``anything.function``."""
        expected = f"{function}(name=value, ...)"
        called = getattr(node, "func", None)
        name = getattr(called, "attr", getattr(called, "id", None))
        if not isinstance(node, ast.Call) or node.args or name != function:
            raise self.fault(node, expected)
        named = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
        if len(named) != len(node.keywords):
            raise self.fault(node, expected)
        return named

    def literal(self, node: ast.expr, expected: str) -> Any:
        """Return the value of a literal that JSON can represent."""
        try:
            value = ast.literal_eval(node)
            json.dumps(value, allow_nan=False)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            raise self.fault(node, f"{expected}, as a literal") from error
        return value

    def text(self, node: ast.expr, expected: str) -> str:
        value = self.literal(node, expected)
        if not isinstance(value, str):
            raise self.fault(node, expected)
        return value

    def filled(self, node: ast.expr, parts: Mapping[str, str]) -> str:
        """Return the text of an f-string, with its expressions replaced by ``parts``."""
        texts = []
        for piece in node.values if isinstance(node, ast.JoinedStr) else [node]:
            if isinstance(piece, ast.Constant) and isinstance(piece.value, str):
                texts.append(piece.value)
                continue
            name = ""
            if isinstance(piece, ast.FormattedValue) and (piece.conversion, piece.format_spec) == (-1, None):
                name = ast.unparse(piece.value)
            if name not in parts:
                raise self.fault(piece, f"text, or one of {', '.join(parts)}")
            texts.append(parts[name])
        return "".join(texts)


_Node = TypeVar("_Node", ast.ClassDef, ast.FunctionDef)


def _named(tree: ast.AST, kind: type[_Node], name: str) -> Iterator[_Node]:
    return (node for node in ast.walk(tree) if isinstance(node, kind) and node.name == name)


def _mentions(statement: ast.stmt, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(statement))
