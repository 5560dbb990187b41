"""The runs folder: bases, evaluations, and complete final databases.

::

    runs/
    ├─ .bases/<seed key>.db      each seeded state once
    │         <seed key>.<hash>.seeded   empty: the content that the base had when it was seeded
    ├─ .cache/                   answers of models (``models.cache``)
    ├─ <row_id>/roll_<id>.db     final state of a rollout, if a complete file is kept
    │           base.db          beside it the row's seeded state, a link to the above
    └─ evals/<eval_id>.db        the evaluation (``store``)
             <eval_id>.json      results, written at the end
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from reward_kit.agent.base.files import as_storage_error, draft_beside, link_or_copy, sync_folder
from reward_kit.agent.bundles.source import DATASET
from reward_kit.agent.store.evaluation_file import SUFFIX
from reward_kit.errors import DatabaseError, StorageError

if TYPE_CHECKING:
    from collections.abc import Container

    from reward_kit.agent.bundles.seed import Seed
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.database import Database

logger = logging.getLogger(__name__)

Keep = Literal["full", "delta"]
ABANDONED_AFTER = 3600.0
"""Seconds after which a temporary file has no writer any more, on this or another machine."""
FULL_UP_TO = 256 * 1024
"""Bytes of the largest base whose final states are kept as complete files unless asked otherwise."""
FULL_ROLLOUTS = 200
"""Rollouts of the largest evaluation whose final states are kept so."""


class RunsFolder:
    """One folder of results, made if need be; ``StorageError`` if it cannot be written."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.evals = self.root / "evals"
        self._bases = self.root / ".bases"
        self._checked: set[str] = set()
        self._made: set[str] = set()
        with as_storage_error(self.root):
            is_new = not self.root.exists()
            self.evals.mkdir(parents=True, exist_ok=True)
            if is_new and (self.root.parent / DATASET).is_file():  # results are no part of a bundle
                (self.root / ".gitignore").write_text("*\n", encoding="utf-8")
            self._bases.mkdir(exist_ok=True)
            # Found now rather than when the first paid rollout is to be written.
            with draft_beside(self.evals / "probe") as probe:
                probe.touch()

    def evaluation(self, eval_id: str) -> Path:
        return self.evals / f"{eval_id}{SUFFIX}"

    def ensure_base(self, seed: Seed) -> Path:
        """The file of a seeded database, made if it is not there yet, made again if it is damaged.

        The whole file is read and hashed, once per instance (about 1 s for 1 GB). Two processes that seed the
        same base at once end up with the same file. Raises ``BundleError`` for a faulty seed, and
        ``StorageError`` if nothing can be written.
        """
        path = self.base(seed)
        if seed.key not in self._checked:
            if not _is_intact(path):
                _seed(seed, path)
            self._checked.add(seed.key)
        return path

    def base(self, seed: Seed) -> Path:
        return self._bases / f"{seed.key}.db"

    def row_folder(self, row_id: str, seed: Seed) -> Path:
        """The folder of a row, with ``base.db`` in it; ``StorageError`` if it is a link to elsewhere."""
        folder = self.root / row_id
        if row_id in self._made:
            return folder
        if folder.is_symlink():
            raise StorageError(
                "is a link, so that files elsewhere would be written", place=str(folder), remedy="Remove it."
            )
        base, link = self.base(seed), folder / "base.db"
        with as_storage_error(folder):
            folder.mkdir(exist_ok=True)
            if not (link.exists() and link.samefile(base)):
                link_or_copy(base, link)
            sync_folder(self.root)
        self._made.add(row_id)
        return folder

    def save_final(self, database: Database, task: Task, rollout: str) -> str:
        """Write a final state as a complete file that is on the disk; returns its name in this folder."""
        folder = self.row_folder(task.row.id, task.seed)
        path = folder / f"roll_{rollout}.db"
        with as_storage_error(path):
            database.export(path)
            sync_folder(folder)
        return f"{folder.name}/{path.name}"

    def sweep(self, rows: Container[str]) -> None:
        """Remove the temporary files of killed processes from the folders of ``rows``."""
        before = time.time() - ABANDONED_AFTER
        for folder in self.root.iterdir():
            for path in folder.glob(".*.tmp") if folder.name in rows else ():
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < before:
                        path.unlink()


def keep_of(asked: str | None, base: Database, planned: int) -> Keep | None:
    """The form in which final states are kept: as ``--keep-db`` asks, or by the sizes of base and plan."""
    if asked == "none":
        return None
    full = base.base_size <= FULL_UP_TO and planned <= FULL_ROLLOUTS if asked is None else asked == "full"
    return "full" if full else "delta"


def _marker(path: Path, content: Path) -> Path | None:
    """The empty file beside the base ``path`` that vouches for ``content``; None for no whole database."""
    from reward_kit.agent.database.vfs import BaseImage

    try:
        return path.with_suffix(f".{BaseImage.open(content).measure().hex()}.seeded")
    except DatabaseError:
        return None


def _is_intact(path: Path) -> bool:
    marker = _marker(path, path)
    return marker is not None and marker.exists()


def _seed(seed: Seed, path: Path) -> None:
    with draft_beside(path) as draft:
        seed.write(draft)
        marker = _marker(path, draft)
        if marker is None:
            raise OSError("what was written cannot be read back")
        marker.touch()  # before the base is there: everybody who sees the base can check it
        try:
            os.link(draft, path)  # unlike a rename this never replaces a base that others have open
        except OSError:
            if not _is_intact(path):  # else another process was first
                if path.exists():
                    logger.warning("%s: the base was damaged and is seeded again", path)
                draft.replace(path)
