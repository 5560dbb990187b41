"""Inspect's wheel with the retail tasks of tau2-bench: downloaded once, checked by its hash, never run."""

from __future__ import annotations

import ast
import gzip
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .docstrings import describe
from .prompts import inspect_prompts
from .python_source import PythonFile
from .source import Source, SourceError, SourceFiles, read_json
from .tau2_bench import DIFFERENCES, OPTIONS, PAPER, tau2_domain
from .tau2_tasks import tau2_rows

_PACKAGE = "inspect_evals/tau2"
_DATA = f"{_PACKAGE}/data/domains/retail"
_LIST = "all_retail_tools = [...] with functions of this file and of common/tools.py"
_PIP_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Wheel:
    """One release of inspect-evals; ``sha256`` in hexadecimal."""

    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"inspect_evals-{self.version}-py3-none-any.whl"


PINNED = Wheel("0.26.0", "b76d15813182807da141a0f06bb6f18a5f82d1f06291ec2633bb84cdf661f8d0")


def fetch(wheel: Wheel, cache: Path) -> Path:
    """Return the path of the wheel in ``cache``; download it with pip if needed. Raises ``SourceError``."""
    path = cache / wheel.file_name
    if path.is_file() and _sha256(path) == wheel.sha256:
        return path
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download.", dir=cache) as folder:
            _download(wheel, Path(folder))
            downloaded = Path(folder) / wheel.file_name
            check(downloaded, wheel)
            downloaded.replace(path)
    except OSError as error:
        raise SourceError(f"{cache} cannot be written to: {error}") from error
    return path


def check(path: Path, wheel: Wheel) -> None:
    """Raise ``SourceError`` if the file at ``path`` is not this wheel."""
    try:
        found = _sha256(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
    if found != wheel.sha256:
        raise SourceError(
            f"{path.name} is not the expected file: its SHA-256 is {found}, but inspect-evals "
            f"{wheel.version} has {wheel.sha256}"
        )


def user_cache() -> Path:
    """Return the folder that keeps downloads."""
    if sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "reward-kit"


def read_inspect_evals(path: Path, wheel: Wheel) -> Source:
    """Read the parts of a bundle from the wheel; raises ``SourceError``."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(SourceFiles(zipfile.Path(archive), path.name), wheel)
    except (zipfile.BadZipFile, OSError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error


def _read(files: SourceFiles, wheel: Wheel) -> Source:
    policy = files.data(f"{_DATA}/policy.txt", "the agent's policy")
    tasks = files.json(f"{_DATA}/tasks.json", "the tasks, a JSON list", list)
    splits = files.json(f"{_DATA}/split_tasks.json", "ids by split", dict)
    licences = f"inspect_evals-{wheel.version}.dist-info/licenses"
    return Source(
        title="tau2-bench, as packaged in inspect-evals",
        home="https://github.com/UKGovernmentBEIS/inspect_evals",
        version=f"inspect-evals {wheel.version}, {wheel.file_name} with SHA-256 {wheel.sha256}",
        paper=PAPER,
        tools=_read_tools(files),
        terminal=(),
        parallel_tool_calls=True,
        options=OPTIONS,
        rows=tau2_rows(tasks, splits, files.place(f"{_DATA}/tasks.json")),
        domain=tau2_domain(_read_database(files), files.name),
        texts={
            "policy.md": policy,
            "system_prompt.md": _system_prompt(files, policy.decode("utf-8", errors="replace")).encode(),
            "LICENSE": files.data(f"{licences}/LICENSE", "the licence of inspect-evals"),
            "NOTICE": files.data(f"{licences}/NOTICE", "the licences of its sources"),
            **inspect_prompts(files),
        },
        digests=files.digests,
        differences=(
            *DIFFERENCES,
            (
                "The wheel has the tasks from before tau2-bench 1.0.0, which corrected 26 of them again. For "
                "numbers comparable with later ones, use a checkout of tau2-bench."
            ),
        ),
    )


def _read_database(files: SourceFiles) -> dict[str, Any]:
    path, what = f"{_DATA}/db.json.gz", "users, products and orders"
    try:
        text = gzip.decompress(files.data(path, what))
    except (OSError, EOFError, ValueError) as error:
        raise SourceError(f"{files.place(path)} cannot be unpacked: {error}") from error
    content: dict[str, Any] = read_json(text, files.place(path), what, dict)
    return content


def _read_tools(files: SourceFiles) -> list[dict[str, Any]]:
    """Describe the tools in the order in which Inspect's agent gets them."""
    makers: dict[str, tuple[PythonFile, ast.FunctionDef]] = {}
    own = PythonFile.read(files, f"{_PACKAGE}/retail/tools.py", _LIST)
    common = PythonFile.read(files, f"{_PACKAGE}/common/tools.py", "functions that make tools")
    for file in (common, own):
        for statement in file.body:
            if isinstance(statement, ast.FunctionDef):
                makers[statement.name] = file, statement
    tools = []
    for node in own.elements(own.assigned("all_retail_tools", _LIST), _LIST):
        if not isinstance(node, ast.Name) or node.id not in makers:
            raise own.fault(node, "a function that makes a tool")
        file, maker = makers[node.id]
        inner = [part for part in maker.body if isinstance(part, ast.AsyncFunctionDef)]
        if len(inner) != 1:
            raise file.fault(maker, "a function with the tool as one `async def` in it")
        tools.append(describe(file, inner[0], maker.name).without_titles())
    return tools


def _system_prompt(files: SourceFiles, policy: str) -> str:
    """Return the system prompt of Inspect's agent: a few sentences around the policy."""
    file = PythonFile.read(files, f"{_PACKAGE}/common/agents.py", "the agent's instructions")
    for statement in file.body:
        for node in ast.walk(statement):
            if not isinstance(node, ast.JoinedStr) or "<instructions>" not in ast.unparse(node):
                continue
            holes = [part for part in node.values if isinstance(part, ast.FormattedValue)]
            if [ast.unparse(hole.value) for hole in holes] != ["config.get_domain_policy()"]:
                raise file.fault(node, "instructions with the policy as their only placeholder")
            return "".join(
                str(part.value) if isinstance(part, ast.Constant) else f"<policy>\n{policy}\n</policy>"
                for part in node.values
            )
    raise SourceError(
        f"{file.place} has no text with <instructions>. Expected there: the agent's instructions"
    )


def _download(wheel: Wheel, folder: Path) -> None:
    """Download the wheel into ``folder`` with pip, which installs, builds and runs nothing."""
    arguments = ["download", f"inspect-evals=={wheel.version}", "--no-deps", "--only-binary=:all:"]
    options = ["--ignore-requires-python", "--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", *arguments, *options]
    remedy = (
        f"Download {wheel.file_name} from the package index in another way, and give its path instead of "
        "inspect-evals."
    )
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments, no shell
            command, capture_output=True, text=True, timeout=_PIP_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"pip did not finish within {_PIP_SECONDS} seconds. {remedy}") from error
    if done.returncode or not (folder / wheel.file_name).is_file():
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        reason = " ".join(said[-3:]) or "it gave no reason"
        raise SourceError(f"pip could not download {wheel.file_name}: {reason}. {remedy}")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
