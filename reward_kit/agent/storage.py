"""The runs folder: where bases, final states, trajectories and evaluations lie.

::

    runs/
    ├─ .bases/<seed key>.db      each seeded state once; an empty file <seed key>.<hash>.seeded
    │                            holds what its content should be
    ├─ .cache/                   answers of models (``model_cache``)
    ├─ <row_id>/base.db          the row's seeded state, a link to the above
    │           gold.json        what the row's gold actions change; gold.dbd or gold.db is the state after
    │           roll_<id>.db     final state of a rollout (.dbd: as a delta from base.db)
    │           roll_<id>.json   its trajectory
    │           roll_<id>.log    the same to read, with --debug
    └─ evals/<eval_id>.jsonl     log of finished rollouts
             <eval_id>.json      results
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from reward_kit.agent.runs.atomic_file import (
    as_storage_error,
    readable_json,
    sync_folder,
    temporary_beside,
    write_file,
)
from reward_kit.agent.runs.parcels import NewFile, Parcel, RowFolder, save_parcels
from reward_kit.agent.runs.seeded_bases import SeededBases
from reward_kit.errors import DatabaseError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.bundles.seed import Seed
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.database import Database
    from reward_kit.agent.runs.gold_state import GoldState
    from reward_kit.agent.runs.rollout_record import RolloutRecord

__all__ = ["RunsFolder"]

Keep = Literal["full", "delta"]
SUFFIXES: dict[Keep, str] = {"full": ".db", "delta": ".dbd"}
GOLD_FORMAT = "reward-kit.gold/1"
ABANDONED_AFTER = 3600.0
"""Seconds; nobody writes a file for so long. (Its process may be on another machine: none can tell.)"""
FULL_UP_TO = 4 * 1024 * 1024
"""Bytes; final states of bigger bases are kept as deltas unless asked otherwise."""


class RunsFolder:
    """One folder of results, made if need be; ``StorageError`` where it cannot be written."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.evals = self.root / "evals"
        bases = self.root / ".bases"
        self._bases = SeededBases(bases)
        self._linked: set[str] = set()
        with as_storage_error(self.root):
            self.evals.mkdir(parents=True, exist_ok=True)
            bases.mkdir(exist_ok=True)
            # Found now rather than when the first paid rollout is to be written.
            probe = temporary_beside(self.evals / "probe")
            probe.touch()
            probe.unlink()

    def ensure_base(self, seed: Seed) -> Path:
        """The file of a seeded database, made if it is not there yet, made again if it is damaged.

        Two processes that seed the same base at once end up with the same file. Raises ``BundleError`` for a
        faulty seed.
        """
        return self._bases.ensure(seed)

    def open_base(self, seed: Seed, *, mode: Literal["overlay", "file"] = "overlay") -> Database:
        """The seeded database of ``seed``; see ``ensure_base``."""
        from reward_kit.agent.database import Database

        return Database.open(self.ensure_base(seed), mode=mode)

    def row_folder(self, task: Task) -> Path:
        """The folder of a row, with ``base.db`` in it."""
        folder = self.new_row_folder(task)
        if folder is not None:
            folder.make()
            with as_storage_error(self.root):
                sync_folder(self.root)
            self.row_folder_made(task)
        return self.root / task.row.id

    def new_row_folder(self, task: Task) -> RowFolder | None:
        """The folder of a row, for whoever saves the row's first rollouts; None once it was made."""
        if task.row.id in self._linked:
            return None
        return RowFolder(self.root / task.row.id, self._bases.path(task.seed.key))

    def row_folder_made(self, task: Task) -> None:
        """The folder of a row is on the disk."""
        self._linked.add(task.row.id)

    def write_gold(self, task: Task, gold: GoldState) -> str | None:
        """Write down what the row's gold actions do.

        Returns the name of the file with the state they lead to; None where that depends on the rollout's
        seed.
        """
        folder = self.row_folder(task)
        name = save_database(gold.database, folder / "gold", keep="delta") if gold.shared else None
        plain = {
            "format": GOLD_FORMAT,
            "row_id": task.row.id,
            "base": task.seed.key,
            "database": name,
            "actions": gold.calls,
            "changes": gold.database.changes().to_json(),
        }
        write_file(folder / "gold.json", readable_json(plain), durable=False)
        return name

    def sweep(self, tasks: Sequence[Task]) -> None:
        """Remove what processes that were killed have left half-written in the folders of ``tasks``."""
        before = time.time() - ABANDONED_AFTER
        for task in tasks:
            for path in (self.root / task.row.id).glob(".*.tmp"):
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < before:
                        path.unlink()

    def write_record(self, record: RolloutRecord, folder: Path) -> Path:
        """Write a trajectory; it and its name are on the disk when this returns."""
        file = record_file(record, folder)
        for fault in save_parcels([Parcel([file])]):
            if fault is not None:
                raise fault
        return file.path


def keep_of(asked: str | None, base: Database) -> Keep | None:
    """What is kept of the rollouts on this base; None for ``none``."""
    if asked == "none":
        return None
    full = base.base_size <= FULL_UP_TO if asked is None else asked == "full"
    return "full" if full else "delta"


def record_file(record: RolloutRecord, folder: Path) -> NewFile:
    """A trajectory as a file in ``folder``."""
    return NewFile(folder / record_name(record), (record.encoded(),))


def record_name(record: RolloutRecord) -> str:
    """The name of a trajectory's file."""
    return f"roll_{record.id}.json"


def final_state(database: Database, stem: Path, keep: Keep, files: list[NewFile]) -> str:
    """Add a final state, at ``stem`` with the suffix that fits, to the ``files`` that are to be saved.

    One that lies in a file is copied now. Returns the name of the file; ``StorageError`` if it cannot be had.
    """
    path = stem.with_name(stem.name + SUFFIXES[keep])
    try:
        parts = database.image(keep)
    except DatabaseError as error:
        raise StorageError(f"cannot be written: {error.fault}", place=str(path)) from error
    if parts is None:
        return save_database(database, stem, keep=keep)
    files.append(NewFile(path, parts))
    return path.name


def save_database(database: Database, stem: Path, *, keep: Keep) -> str:
    """Save a final state as ``stem`` with the suffix that fits; returns the file's name."""
    with as_storage_error(stem):
        return database.save(stem.with_name(stem.name + SUFFIXES[keep]), keep=keep).name
