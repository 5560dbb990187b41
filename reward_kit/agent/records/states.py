"""The databases of a stored rollout: its final state, and what its gold actions lead to."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from reward_kit.agent.records.evaluation_file import base_path, connect, file_within, read_rollout
from reward_kit.agent.records.names import find_rollout
from reward_kit.errors import StorageError, UsageError

if TYPE_CHECKING:
    from contextlib import ExitStack

    from reward_kit.agent.database import Database
    from reward_kit.agent.database.backend import Mode

Kind = Literal["final", "gold"]


class StateFiles(NamedTuple):
    """A state on disk: a complete SQLite file, or with ``delta`` the base that it starts from."""

    path: Path
    delta: bytes | None = None


@dataclass(frozen=True, slots=True)
class StoredStates:
    """The states of rollout ``id`` in the evaluation's ``file``."""

    file: Path
    id: str

    def find(self, kind: Kind) -> StateFiles | None:
        """Where a state is; None if it was not kept.

        Raises ``StorageError`` where its file or base is missing, or lies outside of the runs folder.
        """
        with closing(connect(self.file)) as connection:
            stored = read_rollout(connection, self.id, self.file)
        runs = self.file.absolute().parent.parent
        if kind == "final" and stored.file is not None:
            path = file_within(runs, stored.file)
            if not path.exists():
                raise StorageError("the database of this rollout is missing", place=str(path))
            return StateFiles(path)
        delta = stored.state if kind == "final" else stored.gold
        if delta is None:
            return None
        base = base_path(runs, stored.base)
        if not base.exists():
            raise StorageError("the base of this rollout's database is missing", place=str(base))
        return StateFiles(base, delta)

    def open(self, kind: Kind, mode: Mode, opened: ExitStack) -> Database | None:
        """The state, closed with ``opened``; None if it was not kept.

        Raises ``StorageError`` and ``DatabaseError`` if it cannot be read.
        """
        from reward_kit.agent.database import Database

        found = self.find(kind)
        if found is None:
            return None
        if found.delta is None:
            return opened.enter_context(Database.open(found.path, mode=mode))
        database = opened.enter_context(Database.open(found.path, delta=found.delta))
        if mode == "overlay":
            return database
        folder = Path(tempfile.mkdtemp(prefix="reward-kit-state-"))
        opened.callback(shutil.rmtree, folder, ignore_errors=True)
        shutil.copy(found.path, folder / "base.db")
        return opened.enter_context(Database.open(database.export(folder / "state.db"), mode=mode))


def find_state(name: str | Path, output_dir: str | Path = "runs") -> StateFiles:
    """The final state of the rollout that ``name`` means, or the database file at that path.

    Raises ``UsageError`` where there is neither, ``StorageError`` where it was not kept.
    """
    path = Path(name)
    if path.is_file():
        return StateFiles(path)
    rollout = find_rollout(name, output_dir)
    if rollout is None:
        raise UsageError(
            "there is no such database file and no such rollout",
            place=str(name),
            remedy="Name a file, a rollout's id, or 'EVALUATION ROW#1'; is --output-dir right?",
        )
    found = StoredStates(*rollout).find("final")
    if found is None:
        raise StorageError(
            "the final database was not kept", place=str(name), remedy="Run with --keep-db full or delta."
        )
    return found
