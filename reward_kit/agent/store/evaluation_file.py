"""The SQLite file of an evaluation, ``runs/evals/NAME.db``: find it, open it, read from it.

It holds everything that is known of the evaluation (``docs/runs.md``). A rollout in it has an address that
looks like a path, ``runs/evals/NAME.db/ROLLOUT_ID``.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import zlib
from collections import Counter
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.encoding import DAMAGED
from reward_kit.agent.base.text import closest, count, one_line
from reward_kit.agent.store.schema import APPLICATION, FINAL, KEY, VERSION, checked
from reward_kit.errors import StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reward_kit.agent.rollout.outcome import Outcome

SUFFIX = ".db"
NAMED = 5
"""Evaluations or rollouts that an error message lists."""
BUSY = 5.0
"""Seconds that reading waits for a commit; only in the rollback journal mode does it wait at all."""

ANSWER_FAULTS = f"""
SELECT json_extract(call.value, '$.fault') AS fault, count(DISTINCT rollout)
FROM traces AS t CROSS JOIN rollouts ON rollouts.id = rollout, json_each(t.json, '$.model_calls') AS call
WHERE t.json GLOB '*fault":"*' AND {FINAL} AND json_valid(t.json) AND fault IS NOT NULL
GROUP BY fault"""  # noqa: S608
"""SQL of ``count_answer_faults``: its order of tables begins with the index that reads no other trace."""

_FAULTS = {
    "is full": ("the disk is full", "Make room, then continue with --resume: what is finished is kept."),
    "readonly": ("may not be written", "Choose another folder with --output-dir."),
    "not a database|malformed|no such table": ("is damaged, or not the file of an evaluation ({})", None),
    "": ("cannot be read or written: {}", None),
}
"""A fault and its remedy, by a part of SQLite's error (a regular expression)."""


def stored_files(evals: Path) -> list[Path]:
    """The evaluations in a folder; raises ``UsageError`` if it may not be read."""
    if evals.is_dir() and not os.access(evals, os.R_OK | os.X_OK):
        raise UsageError("may not be read", place=str(evals))
    return sorted(file for file in evals.glob(f"*{SUFFIX}") if file.is_file() and not file.is_symlink())


def find_evaluation(name: str | Path, output_dir: str | Path) -> Path:
    """The file of an evaluation: as ``find_named``, or by the path of it or of the results beside it.

    Raises ``UsageError`` if there is no such thing.
    """
    evals, path = Path(output_dir) / "evals", Path(name)
    try:
        beside = path.with_name(f"{path.stem if path.suffix == '.json' else path.name}{SUFFIX}")
        for file in (evals / f"{name}{SUFFIX}", path, beside):
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
    path, files = evals / f"{name}{SUFFIX}", stored_files(evals)
    if path in files:
        return path
    if name != "latest":
        check_file(path)
    newest = sorted(files, key=written, reverse=True)
    if name == "latest":
        if newest:
            return next(filter(_is_ours, newest), newest[0])
        raise UsageError("there is no evaluation yet", place=str(evals), remedy="Is --output-dir right?")
    known = [file.stem for file in newest]
    remedy = f"There are: {', '.join(known)}."
    if not known:
        remedy = "There is none in this folder; is --output-dir right?"
    elif len(known) > NAMED:
        remedy = f"The newest of {len(known)}: {', '.join(known[:NAMED])}."
    if near := closest(name, known):
        remedy = f"Did you mean {near!r}? {remedy}"
    raise UsageError(f"there is no evaluation {name!r}", place=str(evals), remedy=remedy)


def _is_ours(file: Path) -> bool:
    """True unless another program has made this database; one that is just being made has a log."""
    with suppress(OSError), file.open("rb") as opened:
        return opened.read(72)[68:] == APPLICATION.to_bytes(4) or file.with_name(f"{file.name}-wal").exists()
    return False


def check_file(path: Path) -> None:
    """Raise ``StorageError`` if an evaluation is a link, or if only SQLite's log is left of it."""
    if path.is_symlink():
        fault = "is a link, so that another file would be written to"
        remedy = "Put the file itself in its place, or remove it."
        raise StorageError(fault, place=str(path), remedy=remedy)
    log = path.with_name(f"{path.name}-wal")
    if not path.exists() and log.exists():
        fault = f"is missing, and only its log {log.name} is left"
        raise StorageError(fault, place=str(path), remedy=f"Restore {path.name}, or remove {log.name}.")


def written(file: Path) -> float:
    """Unix seconds at which an evaluation was last written to; 0 if it is gone."""
    paths = (file, file.with_name(f"{file.name}-wal"))
    try:
        found = [path.stat() for path in paths if path.exists()]
        return max(one.st_mtime for one in found if one.st_size)  # who only reads makes an empty log
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
        try:
            yield connection
        except DAMAGED as error:
            raise StorageError(f"is damaged: {error!r}", place=str(path)) from error


def _opened(path: Path) -> sqlite3.Connection:
    uri, log = path.absolute().as_uri(), path.with_name(f"{path.name}-wal")
    has_log = log.exists() and log.stat().st_size > 0
    try:
        # a read-only connection leaves the files of WAL mode behind; another would empty the log of a killed
        # run, which then were the one that was written to last
        return _connected(f"{uri}?mode={'ro' if has_log else 'rw'}")
    except sqlite3.OperationalError:  # a read-only or full disk allows no such files
        if has_log:
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
        remedy = "Name an evaluation, or its file runs/evals/NAME.db."
        raise StorageError("is not the file of an evaluation", place=str(path), remedy=remedy)
    if version != VERSION:
        fault = f"was written by another version of reward-kit (format {version}, this one reads {VERSION})"
        raise StorageError(fault, place=str(path), remedy="Use that version, or another --eval-id.")


@contextmanager
def sqlite_faults(path: Path) -> Iterator[None]:
    """Turn an error of SQLite into a ``StorageError`` about ``path``."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error)
        fault, remedy = next(known for part, known in _FAULTS.items() if re.search(part, text))
        raise StorageError(fault.format(text), place=str(path), remedy=remedy) from error


class RolloutData(NamedTuple):
    """A rollout as it is stored: its trace, the fields of its row, and its final and gold states.

    ``base`` is the key of its seed, ``database`` the complete final one relative to the runs folder,
    ``state`` and ``gold`` are deltas from the base; None if there is none. ``gold_fault`` is that of the
    first gold action that cannot be made.
    """

    trace: str
    fields: str
    base: str
    database: str | None
    state: bytes | None
    gold: bytes | None
    gold_fault: str | None


def rollout_at(address: Path, connection: sqlite3.Connection | None = None) -> RolloutData:
    """The rollout at ``NAME.db/ROLLOUT_ID``; raises ``StorageError`` if there is none.

    ``connection`` is one to that file: to open one takes longer than to read.
    """
    query = (
        "SELECT t.json, ifnull(fields, '{}'), r.base, r.database, s.delta, ifnull(g.delta, rows.gold_state),"
        " (SELECT value ->> 'fault' FROM json_each(gold_calls) WHERE value ->> 'fault' IS NOT NULL LIMIT 1),"
        " t.crc, s.crc, ifnull(g.crc, rows.gold_crc)"
        " FROM rollouts r JOIN traces t ON t.rollout = r.id LEFT JOIN rows USING (row_id)"
        " LEFT JOIN states s ON s.rollout = r.id AND s.kind = 'final'"
        " LEFT JOIN states g ON g.rollout = r.id AND g.kind = 'gold' WHERE r.id = ?"
    )
    file = address.parent
    with sqlite_faults(file), reading(file) if connection is None else nullcontext(connection) as reader:
        found = reader.execute(query, (address.name,)).fetchone()
    if found is None:
        raise no_rollout(address)
    kept = RolloutData(*found[:7])
    if (*map(checksum, (kept.trace, kept.state, kept.gold)),) != found[7:]:
        raise damaged_at(address)
    return kept


def checksum(data: str | bytes | None) -> int | None:
    """CRC-32 of stored data; None without data."""
    return None if data is None else zlib.crc32(data.encode() if isinstance(data, str) else data)


def damaged_at(address: Path) -> StorageError:
    with reading(address.parent) as connection:
        query = "SELECT row_id || '#' || (idx + 1) FROM rollouts WHERE id = ?"
        (name,) = connection.execute(query, (address.name,)).fetchone()
    remedy = "Restore the file from a copy, or evaluate again under another name."
    return StorageError(f"rollout {name} is damaged: its checksum differs", place=str(address), remedy=remedy)


def no_rollout(address: Path) -> StorageError:
    return StorageError(f"there is no rollout {address.name!r:.90}", place=str(address.parent))


def read_fields(path: Path, row_id: str | None = None, name: str | None = None) -> dict[str, dict[str, Any]]:
    """The fields of rows as evaluated, by row id; only those of ``row_id``, or the one of this ``name``."""
    query, chosen = "SELECT row_id, fields FROM rows", () if row_id is None else (row_id,)
    with reading(path) as connection:
        found = connection.execute(f"{query} WHERE row_id = ?" if chosen else query, chosen)
        every = ((row, json.loads(fields)) for row, fields in found)
        return {row: fields if name is None else {name: fields.get(name)} for row, fields in every}


def read_gold_calls(path: Path, row_id: str) -> tuple[list[dict[str, Any]], bool]:
    """The gold actions of a row with the rows that each changed, as JSON values; empty if none are stored.

    True if their answers are the same in all rollouts.
    """
    query = "SELECT gold_calls, gold_state IS NOT NULL FROM rows WHERE row_id = ?"
    with reading(path) as connection:
        text, is_shared = connection.execute(query, (row_id,)).fetchone() or (None, 0)
        return json.loads(text or "[]"), bool(is_shared)


@lru_cache(maxsize=1024)
def base_path(runs: Path, key: str) -> Path:
    """The seeded base of a key; raises ``StorageError`` for any other text."""
    return file_within(runs, f".bases/{checked(key, KEY, 'the key of a seed', runs)}.db")


def file_within(runs: Path, name: str) -> Path:
    """The file ``name`` of a runs folder; raises ``StorageError`` if it or its folder is elsewhere."""
    path = runs / name
    if Path(name).is_absolute() or ".." in Path(name).parts or path.resolve() != runs.resolve() / name:
        fault = f"a stored file name leads out of the runs folder: {name!r:.90}"
        remedy = "The evaluation is damaged, or was made to read other files: do not trust it."
        raise StorageError(fault, place=str(runs), remedy=remedy)
    return path


def count_answer_faults(path: Path) -> dict[str, int]:
    """The number of rollouts with an answer that shows a fault of the model's server, by fault."""
    with reading(path) as connection:
        return dict(connection.execute(ANSWER_FAULTS).fetchall())


def count_cut_answers(path: Path) -> dict[str, int]:
    """The number of answers that were cut at the token limit, by role; raises as ``count_answer_faults``."""
    query = f"""
SELECT json_extract(call.value, '$.role') AS role, count(*)
FROM rollouts JOIN traces AS t ON rollouts.id = rollout, json_each(t.json, '$.model_calls') AS call
WHERE {FINAL} AND t.json GLOB '*finish_reason":"length"*' AND json_valid(t.json)
AND json_extract(call.value, '$.finish_reason') = 'length' GROUP BY role"""  # noqa: S608
    with reading(path) as connection:
        return dict(connection.execute(query).fetchall())


def count_failed_calls(path: Path, repeated: int) -> list[tuple[str, int, int, str]]:
    """Each kind of faulty call of the agent: its name, calls, failed rollouts, and the most frequent one.

    A ``repeated_call`` is one that a rollout made ``repeated`` times or more before it ran out of steps or
    time; its calls are the most of one rollout. Raises ``StorageError`` for a missing or damaged file.
    """
    query = f"""
WITH failed AS (
    SELECT rollout, stop_reason, t.json AS trace FROM rollouts JOIN traces AS t ON rollouts.id = rollout
    WHERE {FINAL} AND failure IS NOT NULL AND json_valid(t.json)),
calls AS (
    SELECT rollout, stop_reason, json_extract(value, '$.name') AS name,
    json_extract(value, '$.status') AS status, json_extract(value, '$.arguments') AS arguments,
    json_type(value, '$.arguments') AS type
    FROM failed, json_each(trace, '$.tool_calls') WHERE (stop_reason IN ('max_steps', 'timeout', 'budget')
    OR trace GLOB '*status":"unknown_tool"*' OR trace GLOB '*status":"invalid_arguments"*')
    AND coalesce(json_extract(value, '$.by'), 'agent') = 'agent'),
faulty AS (
    SELECT rollout, CASE WHEN status = 'unknown_tool' THEN status
        WHEN type = 'text' THEN 'invalid_json' ELSE status END AS kind,
    CASE status WHEN 'unknown_tool' THEN name ELSE name || '(' || arguments || ')' END AS said
    FROM calls WHERE status IN ('unknown_tool', 'invalid_arguments')),
loops AS (
    SELECT rollout, name || '(' || arguments || ')' AS said, count(*) AS number FROM calls
    WHERE stop_reason IN ('max_steps', 'timeout', 'budget') GROUP BY 1, 2 HAVING count(*) >= :repeated)
SELECT kind, count(*), count(DISTINCT rollout), (
    SELECT said FROM faulty AS one WHERE one.kind = faulty.kind GROUP BY said ORDER BY count(*) DESC LIMIT 1)
FROM faulty GROUP BY kind
UNION ALL
SELECT 'repeated_call', max(number), count(DISTINCT rollout), said FROM loops GROUP BY NULL"""  # noqa: S608
    with reading(path) as connection:
        return connection.execute(query, {"repeated": repeated}).fetchall()


REPEATED = 5
"""Equal calls in one rollout that make a loop."""
LONGEST = 160
_CALLS = {
    "invalid_json": "were not valid JSON",
    "invalid_arguments": "had arguments that the tool does not take",
    "unknown_tool": "named a tool that does not exist",
}


class SharedFault(NamedTuple):
    """A fault that ``rollouts`` of the ``of`` finished ones have, in words."""

    kind: str
    rollouts: int
    of: int
    text: str


def shared_faults(outcomes: Sequence[Outcome], path: Path) -> list[SharedFault]:
    """The faults that at least half of the finished ``outcomes`` share, read from the evaluation's file."""
    of, every = len(outcomes), count(len(outcomes), "rollout")
    found = list(_ends(outcomes, every))
    if any(one.failure for one in outcomes):
        with suppress(StorageError):  # shared without its trajectories
            for kind, calls, number, example in count_failed_calls(path, REPEATED):
                text = f"{count(calls, 'call')} in {number} of {every} {_CALLS.get(kind)}"
                if kind == "repeated_call":
                    text = f"{number} of {every} made one call again and again, up to {calls} times"
                found.append((kind, number, f"{text}: {one_line(example, LONGEST)}"))
    return [SharedFault(kind, number, of, text) for kind, number, text in found if 2 * number >= of]


def _ends(outcomes: Sequence[Outcome], every: str) -> Iterator[tuple[str, int, str]]:
    failed = (one for one in outcomes if one.error or one.stop_reason.endswith("_error"))
    for text, number in Counter(one.error or one.stop_detail or "" for one in failed).most_common(1):
        if text and number > 1:
            yield "same_error", number, f"{number} of {every} ended with {one_line(text, LONGEST)}"
    # out of steps or time, and the simulated user was answered in at least every third step
    late = [one for one in outcomes if one.stop_reason in ("max_steps", "timeout")]
    talking = [one for one in late if one.user_faults is not None and one.turns > 1]
    if number := sum(3 * one.turns >= one.steps for one in talking):
        text = f"{number} of {every} reached a limit because the user never ended the conversation"
        yield "endless_user", number, text
