"""Find a stored rollout by the name that a person gives, and load it: its trace and its databases.

A rollout is named by ``EVAL ROW#N`` (N from 1, as reports count), its id or the beginning of it,
``runs/evals/EVAL.db/ID``, or the path of a ``roll_ID.json`` that an export wrote.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from reward_kit.agent.base.files import temporary_folder
from reward_kit.agent.base.text import closest, cut
from reward_kit.agent.rollout.trace import Trace, read_trace
from reward_kit.agent.store.evaluation_file import (
    NAMED,
    SUFFIX,
    RolloutData,
    base_path,
    checksum,
    damaged_at,
    file_within,
    find_evaluation,
    no_rollout,
    reading,
    rollout_at,
    sqlite_faults,
    stored_files,
)
from reward_kit.agent.store.schema import FINAL, checked_id
from reward_kit.errors import BundleError, StorageError, UsageError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import ExitStack

    from reward_kit.agent.database import Database
    from reward_kit.agent.database.database import Mode

Kind = Literal["final", "gold"]
READ_AT_ONCE = 16
"""Traces that one statement reads."""
_PLACE = re.compile(r"(?P<evaluation>.+?)\s+(?P<row>\S+?)\s*#(?P<number>[1-9][0-9]*)")
_ID = re.compile(r"(?:roll_)?(?P<id>[A-Za-z0-9_-]{4,80})")


class StateFiles(NamedTuple):
    """A state on disk: a complete SQLite file, or with ``delta`` the base that it starts from."""

    path: Path
    delta: bytes | None = None


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """Rollout ``id`` in an evaluation's ``file``; ``data`` is its stored data, if they were read."""

    file: Path
    id: str
    data: RolloutData | None = field(default=None, repr=False, compare=False)

    @property
    def address(self) -> Path:
        """``runs/evals/EVAL.db/ID``, which ``load_rollout`` reads."""
        return self.file / self.id

    @property
    def gold_fault(self) -> str | None:
        """That of the first gold action that cannot be made."""
        return (self.data or rollout_at(self.address)).gold_fault

    def __str__(self) -> str:
        return str(self.address)

    def read(self, connection: sqlite3.Connection | None = None) -> Trace:
        """Its trace, which keeps the data; raises ``StorageError`` if that or a state is damaged."""
        data = self.data or rollout_at(self.address, connection)
        trace = read_trace(data.trace, replace(self, data=data))
        trace.given = data.fields
        return trace

    def find(self, kind: Kind) -> StateFiles | None:
        """The files of a state; None if it was not kept.

        Raises ``StorageError`` if a file or the base is missing, or is outside of the runs folder.
        """
        data, runs = self.data or rollout_at(self.address), self.file.absolute().parent.parent
        delta = data.state if kind == "final" else data.gold
        if kind == "final" and data.database is not None:
            found, what = StateFiles(file_within(runs, data.database)), "database of this rollout"
        elif delta is not None:
            found, what = StateFiles(base_path(runs, data.base), delta), "base of this rollout's database"
        else:
            return None
        if not found.path.exists():
            remedy = None if found.delta is None else f"--resume {self.file.stem} seeds it."
            raise StorageError(f"the {what} is missing", place=str(found.path), remedy=remedy)
        return found

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
        folder = temporary_folder("state")
        opened.callback(shutil.rmtree, folder, ignore_errors=True)
        return opened.enter_context(Database.open(database.export(folder / "state.db"), mode=mode))


def load_rollout(name: str | Path, output_dir: str | Path = "runs") -> Trace:
    """Read a rollout: ``load_rollout("EVAL ROW#1")`` is the first of row ROW.

    ``name`` is also a rollout's id, the path of a ``roll_ID.json`` from ``export --format rollouts``, or
    ``runs/evals/EVAL.db/ID``. Raises ``StorageError`` if it is missing or damaged, ``UsageError`` for what
    is no name.
    """
    if not isinstance(name, str | os.PathLike):
        remedy = "Give 'EVALUATION ROW#1', or result.folder / outcome.file."
        raise UsageError(f"a rollout has a name or a path, it is not {cut(repr(name), 80)}", remedy=remedy)
    path = Path(name)
    if path.suffix == ".json" and path.is_file():
        return read_file(path)
    found = find_rollout(name if isinstance(name, str) else path, output_dir)
    if found is None:
        remedy = "Name it 'EVALUATION ROW#1', or by its id, or give the path of an exported roll_ID.json."
        raise StorageError("there is no such rollout", place=str(name), remedy=remedy)
    return next(read_rollouts(found.file, [found.id]))


def read_file(path: Path) -> Trace:
    """The rollout in a ``roll_ID.json``; raises ``StorageError`` if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
        trace = read_trace(text, path)
        trace.fields = dict(json.loads(text)["fields"])
    except KeyError:
        raise StorageError("has no fields of its row", place=str(path)) from None
    except (OSError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise StorageError(f"cannot be read: {error}", place=str(path)) from error
    return trace


def read_rollouts(
    file: Path, rollouts: Iterable[str], damaged: Callable[[StorageError], None] | None = None
) -> Iterator[Trace]:
    """Rollouts of an evaluation by their ids, each read when its turn comes.

    One that is missing or damaged is left out, and the error given to ``damaged``; without that it is raised.
    """
    waiting, row_id, fields = iter(rollouts), None, "{}"
    with reading(file) as connection:
        while ids := list(islice(waiting, READ_AT_ONCE)):
            chosen = ", ".join("?" * len(ids))
            query = f"SELECT rollout, json, crc FROM traces WHERE rollout IN ({chosen})"  # noqa: S608
            found = {rollout: (text, crc) for rollout, text, crc in connection.execute(query, ids)}
            for rollout in ids:
                try:
                    trace = _read(StoredRollout(file, rollout), found.get(rollout))
                    if trace.row_id != row_id:  # the next rollouts are of the same row
                        with sqlite_faults(file):
                            query = "SELECT json(fields) FROM rows WHERE row_id = ?"
                            row = connection.execute(query, (trace.row_id,)).fetchone()
                        row_id, fields = trace.row_id, row[0] if row else "{}"
                except StorageError as error:
                    if damaged is None:
                        raise
                    damaged(error)
                    continue
                trace.given = fields
                yield trace


def _read(source: StoredRollout, stored: tuple[str, int] | None) -> Trace:
    if stored is None:
        raise no_rollout(source.address)
    text, crc = stored
    if checksum(text) != crc:
        raise damaged_at(source.address)
    return read_trace(text, source)


def find_state(name: str | Path, output_dir: str | Path = "runs") -> StateFiles:
    """The final state of the rollout that ``name`` means, or the database file at that path.

    That of an exported ``roll_ID.json`` is in its evaluation. Raises ``UsageError`` if there is neither,
    ``StorageError`` if it was not kept.
    """
    is_file = os.path.isfile(name)  # noqa: PTH113 - the name may be too long for a file
    if is_file and Path(name).suffix != ".json":
        return StateFiles(Path(name))
    rollout = find_rollout(read_file(Path(name)).id if is_file else name, output_dir)
    if rollout is None:
        remedy = "Name a file, a rollout's id, or 'EVALUATION ROW#1'; is --output-dir right?"
        raise UsageError("there is no such database file and no such rollout", place=str(name), remedy=remedy)
    found = rollout.find("final")
    if found is None:
        remedy = "Run with --keep-db full or delta."
        raise StorageError("the final database was not kept", place=str(name), remedy=remedy)
    return found


def find_rollout(name: str | Path, output_dir: str | Path = "runs") -> StoredRollout | None:
    """The stored rollout that ``name`` means; None for any other text and for an unknown id.

    Raises ``UsageError`` for ``EVAL ROW#N`` of an evaluation or rollout that does not exist, and for the
    beginning of several ids.
    """
    path = Path(name)
    if path.parent.suffix == SUFFIX and path.parent.is_file():
        return StoredRollout(path.parent, checked_id(path.name, path.parent))
    if isinstance(name, Path):
        return None
    if place := _PLACE.fullmatch(name.strip()):
        return _at_place(find_evaluation(place["evaluation"], output_dir), place["row"], int(place["number"]))
    rollout = _ID.fullmatch(name)
    return rollout and _by_id(Path(output_dir) / "evals", rollout["id"])


def _at_place(file: Path, row_id: str, number: int) -> StoredRollout:
    query = "SELECT id FROM rollouts WHERE row_id = ? AND idx = ? AND final ORDER BY seq DESC LIMIT 1"
    with reading(file) as connection:
        for (rollout,) in connection.execute(query, (row_id, number - 1)):
            return StoredRollout(file, checked_id(rollout, file))
        rows = [row for (row,) in connection.execute("SELECT DISTINCT row_id FROM rollouts")]
    if row_id in rows:
        raise UsageError(f"row {row_id} has no rollout {number} that is over", place=str(file))
    near = closest(row_id, rows)
    remedy = f"Did you mean {near!r}?" if near else None
    raise UsageError(f"there is no rollout of a row {row_id!r}", place=str(file), remedy=remedy)


def _by_id(evals: Path, start: str) -> StoredRollout | None:
    """The rollout whose id begins so; of one that is in copies of its evaluation, too, the original."""
    found: dict[str, StoredRollout] = {}
    query = "SELECT id, eval_id FROM rollouts JOIN evaluation USING (run) WHERE id >= ? AND id < ?"
    for file in stored_files(evals):
        with suppress(StorageError), reading(file) as connection:  # a damaged one hides no rollout of another
            for one, name in connection.execute(query, (start, f"{start}\U0010ffff")):
                if one not in found or name == file.stem:
                    found[one] = StoredRollout(file, checked_id(one, file))
    if len(found) > 1 and start not in found:
        names = ", ".join([*found][:NAMED])
        more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
        fault = f"{len(found)} rollouts have such an id: {names}{more}"
        raise UsageError(fault, place=start, remedy="Give more of the id.")
    return found.get(start, next(iter(found.values()), None))


class Recordings:
    """Recorded rollouts by row id and index."""

    def __init__(self, recordings: Iterable[Trace], source: Path) -> None:
        """Raises ``BundleError`` without recordings, and if a rollout is recorded twice."""
        self.source = source
        self.redacted: list[Trace] = []
        self._rows: dict[str, dict[int, Trace]] = {}
        for recording in recordings:
            self.redacted += [recording] if recording.redacted else []
            other = self._rows.setdefault(recording.row_id, {}).setdefault(recording.index, recording)
            if other is not recording:
                ids = f"{other.id} and {recording.id}"
                fault = f"rollout {recording.index} of row {recording.row_id} is recorded twice, as {ids}"
                remedy = "Replay one evaluation: runs/evals/NAME.db."
                raise BundleError(fault, place=str(source), remedy=remedy)
        if not self._rows:
            raise BundleError("no recorded rollouts are there", place=str(source))

    @classmethod
    def load(cls, source: Path) -> Recordings:
        """Read a ``roll_*.json``, a folder of them (also nested), or an evaluation ``runs/evals/NAME.db``.

        Raises ``BundleError`` for a missing or faulty file, and if no rollout is found.
        """
        try:
            if source.is_dir() or source.suffix != SUFFIX:
                files = sorted(source.rglob("roll_*.json")) if source.is_dir() else [source]
                return cls(map(read_file, files), source)
            with reading(source) as connection:
                query = f"SELECT id FROM rollouts WHERE {FINAL} ORDER BY seq"  # noqa: S608
                found = [rollout for (rollout,) in connection.execute(query)]
            return cls(read_rollouts(source, found), source)
        except StorageError as error:
            fault = f"the recording cannot be read: {error.fault.removeprefix('cannot be read: ')}"
            file = f"{source.name.removesuffix(SUFFIX)}{SUFFIX}"
            remedy = None if source.exists() else f"Name a file, such as runs/evals/{file}"
            raise BundleError(fault, place=error.place or str(source), remedy=remedy) from error

    def check(self, row_id: str) -> None:
        """Raise ``BundleError`` if no rollout of the row was recorded."""
        if row_id not in self._rows:
            raise BundleError(f"no rollout of row {row_id} is recorded there", place=str(self.source))

    def check_rollouts(self, row_id: str, n_rollouts: int) -> int:
        """Raise ``BundleError`` unless rollouts 0 to ``n_rollouts`` - 1 of the row can all be replayed.

        Returns the number of the others.

        If an evaluation or folder holds one rollout of the row, it answers for one, whatever its index; a
        single file answers for as many as are asked for.
        """
        self.check(row_id)
        recorded = self._rows[row_id]
        missing = min(set(range(n_rollouts)) - recorded.keys(), default=None)
        is_one = len(recorded) == 1
        if missing is None or (is_one and (n_rollouts == 1 or self.source.suffix == ".json")):
            return max(0, len(recorded) - n_rollouts)
        most = max(missing, int(is_one))
        fault = f"row {row_id}: {n_rollouts} rollouts asked for, recorded {_listed(recorded)}"
        remedy = f"Replay fewer: --n-rollouts {most}." if most else None
        raise BundleError(fault, place=str(self.source), remedy=remedy)

    def with_user(self, row_id: str) -> bool:
        """True if a user takes part in the row's recorded rollouts, beyond what the row begins with."""
        return any(recording.user != "none" for recording in self._rows.get(row_id, {}).values())

    def find(self, row_id: str, index: int) -> Trace:
        """A recorded rollout; if only one of its row is recorded, that one, whatever its index."""
        self.check(row_id)
        found = self.find_or_none(row_id, index)
        if found is None:
            fault = f"row {row_id}: rollout {index} asked for, recorded {_listed(self._rows[row_id])}"
            raise BundleError(fault, place=str(self.source))
        return found

    def find_or_none(self, row_id: str, index: int) -> Trace | None:
        """As ``find``, but None if there is no such recording."""
        recorded = self._rows.get(row_id, {})
        return next(iter(recorded.values())) if len(recorded) == 1 else recorded.get(index)


def _listed(indices: Iterable[int]) -> str:
    return f"only {cut(', '.join(map(str, sorted(indices))), 80)}"
