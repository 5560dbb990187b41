"""The SQLite file of an evaluation, ``runs/evals/NAME.db``: find it, open it, read from it.

It holds everything that is known of the evaluation (``docs/runs.md``). A rollout in it has an address that
looks like a path, ``runs/evals/NAME.db/ROLLOUT_ID``.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from contextlib import closing, contextmanager, suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.files import as_storage_error
from reward_kit.agent.store.schema import APPLICATION, KEY, VERSION, checked
from reward_kit.errors import StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SUFFIX = ".db"
LATEST = "latest"
NAMED = 5
"""Evaluations or rollouts that an error message lists."""
READ_AT_ONCE = 16
"""Traces that one statement reads."""
BUSY = 5.0
"""Seconds that reading waits for a commit; only in the rollback journal mode does it wait at all."""

_FAULTS = {
    "is full": ("the disk is full", "Make room, then continue with --resume: what is finished is kept."),
    "readonly": ("may not be written", "Choose another folder with --output-dir."),
    "not a database": ("is damaged, or not the file of an evaluation ({})", None),
    "malformed": ("is damaged, or not the file of an evaluation ({})", None),
    "no such table": ("is damaged, or not the file of an evaluation ({})", None),
    "": ("cannot be read or written: {}", None),
}
"""A fault and its remedy, by a part of SQLite's error."""


def stored_files(evals: Path) -> list[Path]:
    """The files of all evaluations in a folder ``evals``, by name."""
    return sorted(file for file in evals.glob(f"*{SUFFIX}") if file.is_file() and not file.is_symlink())


def find_evaluation(name: str | Path, output_dir: str | Path) -> Path:
    """The file of an evaluation: as ``find_named``, or by the path of it or of the results beside it.

    Raises ``UsageError`` if there is no such thing.
    """
    evals, path = Path(output_dir) / "evals", Path(name)
    try:
        for file in (evals / f"{name}{SUFFIX}", path, path.with_suffix(SUFFIX)):
            if file.suffix == SUFFIX and file.is_file():
                return file
        if not path.is_dir() and path.suffix not in (".json", SUFFIX):
            return find_named(str(name), evals)
        fault = "is a folder, not an evaluation" if path.is_dir() else "there is no such file"
        if path.is_file():
            fault = "is not the file of an evaluation, and has none beside it"
    except (OSError, ValueError) as error:  # a name that is too long, a folder that may not be read
        fault = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot be read: {fault}", place=str(name)[:60]) from error
    raise UsageError(fault, place=str(name), remedy="Name an evaluation, or its file runs/evals/NAME.db.")


def find_named(name: str, evals: Path) -> Path:
    """The file of the evaluation ``name`` in a folder ``evals``; ``latest`` is the one written to last.

    Raises ``UsageError`` if there is none.
    """
    path = evals / f"{name}{SUFFIX}"
    if path.is_file():
        return path
    check_log(path)
    newest = sorted(stored_files(evals), key=written, reverse=True)
    if name == LATEST and newest:
        return newest[0]
    if name == LATEST:
        raise UsageError("there is no evaluation yet", place=str(evals), remedy="Is --output-dir right?")
    known = [file.stem for file in newest]
    remedy = f"There are: {', '.join(known)}."
    if not known:
        remedy = "There is none in this folder; is --output-dir right?"
    elif len(known) > NAMED:
        remedy = f"The newest of {len(known)}: {', '.join(known[:NAMED])}."
    near = get_close_matches(name, known, n=1)
    remedy = f"Did you mean {near[0]!r}? {remedy}" if near else remedy
    raise UsageError(f"there is no evaluation {name!r}", place=str(evals), remedy=remedy)


def check_log(path: Path) -> None:
    """Raise ``StorageError`` if only SQLite's log is left of an evaluation."""
    log = path.with_name(f"{path.name}-wal")
    if not path.exists() and log.exists():
        fault = f"is missing, and only its log {log.name} is left"
        raise StorageError(fault, place=str(path), remedy=f"Restore {path.name}, or remove {log.name}.")


def written(file: Path) -> float:
    """Unix seconds at which an evaluation was last written to; 0 if it is gone."""
    paths = (file, file.with_name(f"{file.name}-wal"))
    try:
        return max(path.stat().st_mtime for path in paths if path.exists())
    except (OSError, ValueError):
        return 0.0


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open an evaluation's file to read it, also while another process writes it.

    Raises ``StorageError`` for a missing or damaged file, and for one that is no evaluation of this version.
    """
    if not path.is_file():
        raise StorageError("there is no such evaluation", place=str(path))
    with sqlite_faults(path), closing(_opened(path)) as connection:
        check_format(connection, path)
        yield connection


def _opened(path: Path) -> sqlite3.Connection:
    uri = path.absolute().as_uri()
    try:
        # A read-only connection would leave the files of WAL mode behind; this one removes them.
        return _connected(f"{uri}?mode=rw")
    except sqlite3.OperationalError:
        # In WAL mode SQLite makes files beside it, which a read-only or full disk does not allow.
        log = path.with_name(f"{path.name}-wal")
        if log.exists() and log.stat().st_size:
            raise
        return _connected(f"{uri}?immutable=1")


def _connected(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY, isolation_level=None, check_same_thread=False)
    try:
        for pragma in ("trusted_schema = OFF", "query_only = ON", "schema_version"):
            connection.execute(f"PRAGMA {pragma}").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def check_format(connection: sqlite3.Connection, path: Path) -> None:
    """Raise ``StorageError`` unless the file is an evaluation that this version reads."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        fault = "is not the file of an evaluation"
        remedy = "Name an evaluation, or its file runs/evals/NAME.db."
    elif version != VERSION:
        fault = f"was written by another version of reward-kit (format {version}, this one reads {VERSION})"
        remedy = "Use that version, or another --eval-id."
    else:
        return
    raise StorageError(fault, place=str(path), remedy=remedy)


@contextmanager
def sqlite_faults(path: Path) -> Iterator[None]:
    """Turn an error of SQLite into a ``StorageError`` about ``path``."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error)
        fault, remedy = next(known for part, known in _FAULTS.items() if part in text)
        raise StorageError(fault.format(text), place=str(path), remedy=remedy) from error


class RolloutData(NamedTuple):
    """A rollout as it is stored: its trace, and its final and gold states.

    ``base`` is the key of its seed, ``database`` the complete final one relative to the runs folder,
    ``state`` and ``gold`` are deltas from the base; None if there is none.
    """

    trace: str
    base: str
    database: str | None
    state: bytes | None
    gold: bytes | None


def rollout_at(address: Path) -> RolloutData:
    """The rollout at ``NAME.db/ROLLOUT_ID``; raises ``StorageError`` if there is none."""
    with reading(address.parent) as connection:
        found = connection.execute(
            "SELECT t.json, r.base, r.database, s.delta, coalesce(g.delta, rows.gold_state),"
            " t.crc, s.crc, coalesce(g.crc, rows.gold_crc)"
            " FROM rollouts r JOIN traces t ON t.rollout = r.id"
            " LEFT JOIN rows USING (row_id)"
            " LEFT JOIN states s ON s.rollout = r.id AND s.kind = 'final'"
            " LEFT JOIN states g ON g.rollout = r.id AND g.kind = 'gold'"
            " WHERE r.id = ?",
            (address.name,),
        ).fetchone()
    if found is None:
        raise _no_rollout(address)
    kept = RolloutData(*found[:5])
    _check(address, (kept.trace, kept.state, kept.gold), found[5:])
    return kept


def read_traces(
    connection: sqlite3.Connection, path: Path, rollouts: Iterable[str]
) -> Iterator[tuple[str, tuple[str, str] | StorageError]]:
    """The id of each of ``rollouts`` in the file ``path``, its trace and its row's fields, as JSON texts.

    An error in their place if they cannot be read.
    """
    query = (
        "SELECT rollout, json, crc, fields FROM traces LEFT JOIN rollouts ON id = rollout"
        " LEFT JOIN rows USING (row_id) WHERE rollout IN (SELECT value FROM json_each(?))"
    )
    waiting = iter(rollouts)
    while ids := list(islice(waiting, READ_AT_ONCE)):
        found = {rollout: given for rollout, *given in connection.execute(query, (json.dumps(ids),))}
        for rollout in ids:
            text, crc, fields = found.get(rollout, (None, None, None))
            if text is None:
                yield rollout, _no_rollout(path / rollout)
            else:
                yield rollout, (text, fields or "{}") if checksum(text) == crc else _damaged(path / rollout)


def checksum(data: str | bytes | None) -> int | None:
    """CRC-32 of what is stored of a rollout; None of nothing."""
    return None if data is None else zlib.crc32(data.encode() if isinstance(data, str) else data)


def _check(address: Path, parts: Iterable[str | bytes | None], sums: Sequence[int | None]) -> None:
    if tuple(map(checksum, parts)) != tuple(sums):
        raise _damaged(address)


def _damaged(address: Path) -> StorageError:
    return StorageError("is damaged: its checksum is another one", place=str(address))


def _no_rollout(address: Path) -> StorageError:
    return StorageError(f"there is no rollout {address.name!r:.90}", place=str(address.parent))


def read_fields(path: Path, row_id: str | None = None) -> dict[str, dict[str, Any]]:
    """The fields of rows as they were evaluated, by row id; only those of ``row_id`` if it is given."""
    query = "SELECT row_id, fields FROM rows WHERE :id IS NULL OR row_id = :id"
    with reading(path) as connection:
        return {name: json.loads(fields) for name, fields in connection.execute(query, {"id": row_id})}


def read_gold_calls(path: Path, row_id: str) -> tuple[list[dict[str, Any]], bool]:
    """The gold actions of a row with the rows that each changed, as JSON values; empty if none are stored.

    True if their answers are the same in all rollouts.
    """
    query = "SELECT gold_calls, gold_state IS NOT NULL FROM rows WHERE row_id = ?"
    with reading(path) as connection:
        text, is_shared = connection.execute(query, (row_id,)).fetchone() or (None, 0)
    return json.loads(text or "[]"), bool(is_shared)


def base_path(runs: Path, key: str) -> Path:
    """The seeded base of a key; raises ``StorageError`` for what is no key."""
    return file_within(runs, f".bases/{checked(key, KEY, 'the key of a seed', runs)}.db")


def file_within(runs: Path, name: str) -> Path:
    """The file ``name`` of a runs folder; raises ``StorageError`` if it or its folder lies elsewhere."""
    path = runs / name
    if Path(name).is_absolute() or ".." in Path(name).parts or path.resolve() != runs.resolve() / name:
        raise StorageError(
            f"a stored file name leads out of the runs folder: {name!r:.90}",
            place=str(runs),
            remedy="The evaluation is damaged, or was made to read other files: do not trust it.",
        )
    return path


PATIENCE = 0.5
"""Seconds that the lock may be held by somebody who only looks whether it is free."""


@contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Hold the lock of the evaluation at ``path``; raises ``StorageError`` if somebody else has it."""
    place = _place(path)
    lock = None
    while lock is None:
        lock = _taken(place, path)
    try:
        yield
    finally:
        place.unlink(missing_ok=True)
        lock.close()


def _taken(place: Path, path: Path) -> sqlite3.Connection | None:
    """The locked file; None if its former holder has removed it since it was opened here."""
    with as_storage_error(place):
        place.touch()
        before = place.lstat()
    with sqlite_faults(place):
        lock = sqlite3.connect(place, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            lock.close()
            if "locked" not in str(error):
                raise
            holder = _last_writer(path)
            raise StorageError(
                f"another process{f' ({holder})' if holder else ''} is running this evaluation",
                place=path.stem,
                remedy="Wait for it to end, or choose another --eval-id.",
            ) from error
    with suppress(FileNotFoundError):
        if os.path.samestat(before, place.lstat()):
            return lock
    lock.close()
    return None


def writer_of(path: Path) -> str | None:
    """The process that writes the evaluation at ``path`` now; None if nobody does."""
    place = _place(path)
    if not place.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{place.absolute().as_uri()}?mode=rw", uri=True, timeout=0)) as probe:
            probe.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            return f"process {_last_writer(path)}"
    return None


def _place(path: Path) -> Path:
    return path.with_suffix(".lock")


def _last_writer(path: Path) -> str | None:
    """Number and host of the process that began the last run."""
    try:
        with reading(path) as connection:
            found = connection.execute("SELECT writer FROM evaluation ORDER BY run DESC LIMIT 1").fetchone()
    except StorageError:
        return None
    return None if found is None else str(found[0])
