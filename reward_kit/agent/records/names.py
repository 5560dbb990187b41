"""Names of evaluations and rollouts, as people give them.

An evaluation is named by its name, ``latest``, or the path of its file. A rollout is named by ``EVAL ROW#N``
(N from 1, as reports count), its id or the beginning of it, ``runs/evals/EVAL.db/ID``, or the path of a
``roll_ID.json`` that an export wrote.
"""

from __future__ import annotations

import re
from contextlib import closing
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from reward_kit.agent.records.evaluation_file import (
    SUFFIX,
    checked_id,
    connect,
    is_address,
    rollout_id_of,
    sqlite_faults,
)
from reward_kit.errors import StorageError, UsageError

LATEST = "latest"
NAMED = 5
"""Evaluations or rollouts that an error message lists."""
_PLACE = re.compile(r"(?P<evaluation>.+?)\s+(?P<row>\S+?)\s*#(?P<number>[1-9][0-9]*)")
_ID = re.compile(r"(?:roll_)?(?P<id>[A-Za-z0-9_-]{4,80})")


class RolloutName(NamedTuple):
    """A rollout in the file of an evaluation."""

    file: Path
    id: str

    @property
    def address(self) -> Path:
        """``runs/evals/EVAL.db/ID``, which ``load_rollout`` reads."""
        return self.file / self.id


def stored_files(evals: Path) -> list[Path]:
    """The files of all evaluations in a folder ``evals``, by name."""
    return sorted(file for file in evals.glob(f"*{SUFFIX}") if file.is_file() and not file.is_symlink())


def find_file(evals: Path, name: str) -> Path:
    """The file of the evaluation ``name`` in a folder ``evals``; ``latest`` is the one written to last.

    Raises ``UsageError`` if there is none.
    """
    if name != LATEST:
        path = evals / f"{name}{SUFFIX}"
        if path.is_file():
            return path
        raise UsageError(f"there is no evaluation {name!r}", place=str(evals), remedy=_known(evals, name))
    files = sorted(stored_files(evals), key=written)
    if not files:
        raise UsageError("there is no evaluation yet", place=str(evals), remedy="Is --output-dir right?")
    return files[-1]


def written(file: Path) -> float:
    """Unix seconds at which an evaluation was last written to; 0 where it is gone."""
    paths = (file, file.with_name(f"{file.name}-wal"))
    try:
        return max(path.stat().st_mtime for path in paths if path.exists())
    except (OSError, ValueError):
        return 0.0


def _known(evals: Path, name: str) -> str:
    """The evaluation that may be meant, and the newest ones."""
    newest = [file.stem for file in sorted(stored_files(evals), key=written, reverse=True)]
    if not newest:
        return "There is none in this folder; is --output-dir right?"
    near = get_close_matches(name, newest, n=1)
    meant = f"Did you mean {near[0]!r}? " if near else ""
    if len(newest) <= NAMED:
        return f"{meant}There are: {', '.join(newest)}."
    return f"{meant}The newest of {len(newest)}: {', '.join(newest[:NAMED])}."


def find_rollout(name: str | Path, output_dir: str | Path = "runs") -> RolloutName | None:
    """The stored rollout that ``name`` means; None for what is no name of one, or the id of none.

    Raises ``UsageError`` for ``EVAL ROW#N`` of an evaluation or rollout that does not exist, and for the
    beginning of several ids.
    """
    path = Path(name)
    if is_address(path):
        return RolloutName(path.parent, checked_id(path.name, path.parent))
    if isinstance(name, Path):
        return None
    evals = Path(output_dir) / "evals"
    place = _PLACE.fullmatch(name.strip())
    if place is not None:
        return _at_place(evals, place["evaluation"], place["row"], int(place["number"]))
    rollout = _ID.fullmatch(name)
    return None if rollout is None else _by_id(evals, rollout["id"])


def _at_place(evals: Path, evaluation: str, row_id: str, number: int) -> RolloutName:
    given = Path(evaluation)
    file = given if given.suffix == SUFFIX and given.is_file() else find_file(evals, evaluation)
    with closing(connect(file)) as connection, sqlite_faults(file):
        found = rollout_id_of(connection, row_id, number - 1)
        if found is not None:
            return RolloutName(file, checked_id(found, file))
        rows = [row for (row,) in connection.execute("SELECT DISTINCT row_id FROM rollouts")]
    if row_id in rows:
        raise UsageError(f"row {row_id} has no rollout {number} that is over", place=str(file))
    near = get_close_matches(row_id, rows, n=1)
    raise UsageError(
        f"there is no rollout of a row {row_id!r}",
        place=str(file),
        remedy=f"Did you mean {near[0]!r}?" if near else None,
    )


def _by_id(evals: Path, start: str) -> RolloutName | None:
    found: list[RolloutName] = []
    for file in stored_files(evals):
        try:
            with closing(connect(file)) as connection, sqlite_faults(file):
                query = "SELECT id FROM rollouts WHERE id >= ? AND id < ? ORDER BY id"
                ids = connection.execute(query, (start, f"{start}\U0010ffff")).fetchall()
        except StorageError:  # a damaged evaluation hides no rollout of another
            continue
        found += [RolloutName(file, checked_id(one, file)) for (one,) in ids]
    exact = [one for one in found if one.id == start]
    if len(exact) == 1 or len(found) == 1:
        return (exact or found)[0]
    if found:
        names = ", ".join(one.id for one in found[:NAMED])
        more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
        raise UsageError(
            f"{len(found)} rollouts have such an id: {names}{more}",
            place=start,
            remedy="Give more of the id.",
        )
    return None
