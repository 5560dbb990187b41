"""A source of a bundle: its files, and the parts that were read from them."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .build_seed import SourceError

if TYPE_CHECKING:
    from pathlib import Path

Row = dict[str, Any]
"""A row of a dataset without ``toolset``, which depends on the bundle's name."""

__all__ = ["Row", "Source", "SourceError", "SourceFiles"]


@dataclass(frozen=True, slots=True)
class Source:
    """The parts of a source.

    ``tools`` are in the OpenAI format, ``rows`` by file name, ``domain`` has ``users``, ``products`` and
    ``orders`` by id, ``texts`` are files to copy unchanged. ``options`` are the options of ``agent-eval`` for
    the benchmark's defaults. ``digests`` has the SHA-256 of every file that was read. ``differences`` are
    sentences for the bundle's README; ``warnings`` are printed as well.
    """

    title: str
    home: str
    version: str
    paper: str
    tools: list[dict[str, Any]]
    terminal: tuple[str, ...]
    parallel_tool_calls: bool
    options: str
    rows: dict[str, list[Row]]
    domain: dict[str, dict[str, Any]]
    texts: dict[str, bytes]
    digests: dict[str, str]
    differences: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


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
        return read_json(self.text(path, what), self.place(path), what, expected)


def read_json(text: str | bytes, place: str, what: str, expected: type) -> Any:
    """Return the value of a JSON text; raise ``SourceError`` unless its type is ``expected``."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{place} is not JSON: {error}. Expected there: {what}") from error
    if not isinstance(value, expected):
        raise SourceError(f"{place} holds a JSON {_kind(value)}. Expected there: {what}")
    return value


def _kind(value: object) -> str:
    return {dict: "object", list: "array", str: "text", type(None): "null"}.get(type(value), "value")
