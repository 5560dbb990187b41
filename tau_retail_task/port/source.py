"""What a bundle is made from: the files of a source, and what was read from them."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..build_seed import SourceError

if TYPE_CHECKING:
    from pathlib import Path

Row = dict[str, Any]
"""A row of a dataset, without ``toolset``, which depends on the name of the bundle."""

__all__ = ["Row", "Source", "SourceError", "SourceFiles"]


@dataclass(frozen=True, slots=True)
class Source:
    """All that is taken from a source.

    ``tools`` are in the OpenAI format, ``rows`` by the name of their file, ``domain`` has ``users``,
    ``products`` and ``orders`` by id, ``texts`` are files that are written as they stand. ``options`` are
    those of ``agent-eval`` with which the benchmark's defaults hold. ``digests`` has the
    SHA-256 of every file that was read. ``differences`` are sentences for the bundle's README, ``warnings``
    such that are printed as well.
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
    """The files below ``root``, a folder or a place in a wheel; ``name`` is how the user calls it.

    ``digests`` fills as files are read.
    """

    root: Path | zipfile.Path
    name: str
    digests: dict[str, str] = field(default_factory=dict)

    def has(self, path: str) -> bool:
        return self.root.joinpath(path).is_file()

    def place(self, path: str) -> str:
        return f"{self.name}/{path}"

    def data(self, path: str, what: str) -> bytes:
        """The content; ``what`` says in an error what was expected there."""
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
        """The JSON value, which has to be an ``expected`` (``dict`` or ``list``)."""
        return read_json(self.text(path, what), self.place(path), what, expected)


def read_json(text: str | bytes, place: str, what: str, expected: type) -> Any:
    """The value of a JSON text from ``place``; raises ``SourceError`` where it is none or no ``expected``."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{place} is not JSON: {error}. Expected there: {what}") from error
    if not isinstance(value, expected):
        raise SourceError(f"{place} holds a JSON {_kind(value)}. Expected there: {what}")
    return value


def _kind(value: object) -> str:
    return {dict: "object", list: "array", str: "text", type(None): "null"}.get(type(value), "value")
