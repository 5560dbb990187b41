"""What the nodes of a Ray cluster need of this machine: the bundle, code not installed there, some settings.

Files keep their absolute paths, below a folder of the node's own: whatever names them relative to each other
or to the working directory finds them there.
"""

from __future__ import annotations

import io
import os
import re
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.agent.bundles.source import find_bundle
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from reward_kit.agent.evaluation_config import EvaluationConfig

LARGEST = 500 * 2**20
"""Bytes, before they are packed."""

FORWARDED = re.compile(
    r"[A-Z0-9_]+_(API_KEY|API_BASE|API_VERSION|BASE_URL)"
    r"|AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|REGION|REGION_NAME|DEFAULT_REGION)"
    r"|HF_TOKEN|OPENAI_ORGANIZATION|VERTEXAI_(PROJECT|LOCATION)|WATSONX_(URL|PROJECT_ID)"
    r"|REWARD_KIT_[A-Z0-9_]+|OTEL_[A-Z0-9_]+"
)
"""Names of the variables that models, agents and telemetry are set up with."""

_LEFT_OUT = frozenset({"__pycache__", "node_modules"})


@dataclass(frozen=True, slots=True)
class Shipment:
    """``data`` is a ZIP archive; the paths are within it: the dataset, the bundle's folder, the working
    directory, and the file of few-shot displays.
    """

    data: bytes
    dataset: str
    folder: str
    directory: str
    few_shot_displays: str | None = None


def pack(config: EvaluationConfig) -> Shipment:
    """Pack what the open bundle and the agents and users that are imported already need.

    Raises ``UsageError`` if that is too much.
    """
    found = find_bundle(config.dataset, config.task_dir)
    try:
        dataset, folder, directory = found.dataset.resolve(), found.folder.resolve(), Path.cwd().resolve()
        places = {dataset, folder, *own_modules([directory, folder.parent])}
        displays = Path(config.few_shot_displays).resolve() if config.few_shot_displays else None
        if displays is not None:
            places.add(displays)
        data = _packed(sorted(places), without=Path(config.output_dir).resolve())
    finally:
        found.discard()
    return Shipment(
        data,
        within(dataset),
        within(folder),
        within(directory),
        within(displays) if displays is not None else None,
    )


def forwarded_environment() -> dict[str, str]:
    """The variables of this process that a node's process gets."""
    return {name: value for name, value in os.environ.items() if FORWARDED.fullmatch(name)}


def own_modules(folders: Iterable[Path]) -> set[Path]:
    """The top-level modules and packages that were imported from these folders and are not installed."""
    folders = set(folders)
    found = set()
    for module in list(sys.modules.values()):
        top = _top_level(module)
        if top is not None and top.parent in folders and not _is_installed(top):
            found.add(top)
    return found


def within(path: Path) -> str:
    """The place of an absolute path in the archive."""
    return path.relative_to(path.anchor).as_posix()


def _top_level(module: ModuleType) -> Path | None:
    """The file or folder of the first part of the module's name."""
    file = getattr(module, "__file__", None)
    parts = getattr(module, "__name__", "").split(".")
    if not isinstance(file, str) or parts[0] in ("reward_kit", "__main__"):
        return None
    path = Path(file).resolve()
    levels = len(parts) - (path.stem != "__init__")
    top = path if not levels else path.parents[levels - 1]
    return top if top.name.partition(".")[0] == parts[0] else None


def _is_installed(path: Path) -> bool:
    homes = [sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()]
    return bool({"site-packages", "dist-packages"} & set(path.parts)) or any(
        path.is_relative_to(Path(home).resolve()) for home in homes
    )


def _packed(places: Iterable[Path], *, without: Path) -> bytes:
    buffer = io.BytesIO()
    total = 0
    names: set[str] = set()
    with zipfile.ZipFile(
        buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False
    ) as archive:
        for place in places:
            for file in _files(place, without):
                name = within(file)
                if name in names:
                    continue
                names.add(name)
                total += file.stat().st_size
                if total > LARGEST:
                    raise UsageError(
                        f"{place} holds more than the {LARGEST // 2**20} MB that can be sent to Ray's nodes",
                        remedy="Keep what the tools do not need out of the bundle's folder.",
                    )
                archive.write(file, name)
    return buffer.getvalue()


def _files(place: Path, without: Path) -> Iterator[Path]:
    """The files below ``place``: no hidden ones (.git, .env), no caches, environments or results."""
    if place.is_file():
        yield place
        return
    for folder, inner, files in os.walk(place):
        here = Path(folder)
        inner[:] = sorted(
            name
            for name in inner
            if not name.startswith(".")
            and name not in _LEFT_OUT
            and here / name != without
            and not (here / name / "pyvenv.cfg").exists()
        )
        yield from (
            here / name
            for name in sorted(files)
            if not name.startswith(".") and not name.endswith(".pyc") and (here / name).is_file()
        )
