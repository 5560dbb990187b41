"""The runs folder (docs/runs.md): bases, evaluations, and complete final databases.

An evaluation in it, running or over, is found by its name or a path, and read back.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import sys
import time
from contextlib import suppress
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from reward_kit.agent.base.files import as_storage_error, draft_beside, link_or_copy, sync_folder
from reward_kit.agent.base.option import NAME
from reward_kit.agent.base.text import cut
from reward_kit.agent.base.types import Usage
from reward_kit.agent.bundles.source import DATASET
from reward_kit.agent.rollout.outcome import SUCCESS_THRESHOLD, BrokenOff, usage_from_json
from reward_kit.agent.scoring.metrics import averages_of, row_results
from reward_kit.agent.store.evaluation_file import SUFFIX, file_within, find_evaluation, reading, stored_files
from reward_kit.agent.store.results import EvaluationResult, StoredStatus
from reward_kit.agent.store.schema import FINAL, among, checked, read_outcomes
from reward_kit.agent.store.writer import writer_of
from reward_kit.errors import DatabaseError, StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from reward_kit.agent.bundles.seed import Seed
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.database import Database
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.scoring.metrics import RowResult

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
        self._made: dict[str, Path] = {}
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
            return self._made[row_id]
        if folder.is_symlink():
            fault = "is a link, so that files elsewhere would be written"
            raise StorageError(fault, place=str(folder), remedy="Remove it.")
        base, link = self.base(seed), folder / "base.db"
        if link.exists() and not link.samefile(base):  # the databases there count from another seed
            folder = folder / seed.key
            link = folder / "base.db"
        with as_storage_error(folder):
            folder.mkdir(exist_ok=True, parents=True)
            if not (link.exists() and link.samefile(base)):
                link_or_copy(base, link)
            sync_folder(self.root)
        self._made[row_id] = folder
        return folder

    def save_final(self, database: Database, task: Task, rollout: str) -> str:
        """Write a final state as a complete file that is on the disk; returns its name in this folder."""
        folder = self.row_folder(task.row.id, task.seed)
        path = folder / f"roll_{rollout}.db"
        with as_storage_error(path):
            database.export(path)
            sync_folder(folder)
        return path.relative_to(self.root).as_posix()

    def sweep(self, rows: Container[str]) -> None:
        """Remove the temporary files of killed processes from the folders of ``rows``."""
        before = time.time() - ABANDONED_AFTER
        for folder in self.root.iterdir():
            for path in folder.rglob(".*.tmp") if folder.name in rows else ():
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
    marker = _marker(path, path) if path.exists() else None
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


# -- evaluations

Named = str | Path | EvaluationResult
"""An evaluation: its name or ``latest``, the path of its file or results, or its result."""
_USAGE = (
    f"SELECT role.key, {', '.join(f'ifnull(sum(role.value ->> {one.name!r}), 0)' for one in fields(Usage))}"  # noqa: S608
    " FROM rollouts, json_each(usage) AS role WHERE usage != '{}'"
    " GROUP BY role.key ORDER BY min(seq), min(role.id)"
)
AT_ONCE = 100
"""Rows whose outcomes are read at once."""
_SECONDS = (
    "SELECT total(coalesce(seconds, max(0, (SELECT max(started + seconds)"
    " FROM rollouts WHERE rollouts.run = evaluation.run) - created), 0)) FROM evaluation"
)


def stored_usage(connection: sqlite3.Connection, kind: str) -> BrokenOff:
    """The usage of a kind (``broken_off``, ``explanation``) that was counted apart from the rollouts."""
    found = BrokenOff()
    for rollouts, used in connection.execute("SELECT rollouts, usage FROM usage WHERE kind = ?", (kind,)):
        found.add(BrokenOff(rollouts, usage_from_json(json.loads(used))))
    return found


def paid_for_explanations(path: Path) -> float:
    """US dollars that judgements have cost, which ``--max-cost`` counts and ``--max-tokens`` does not."""
    with reading(path) as connection:
        return stored_usage(connection, "explanation").total.paid


def load_evaluation(name: Named, output_dir: str | Path = "runs") -> EvaluationResult:
    """Read the evaluation that ``name`` means; see ``find_stored``.

    Raises ``UsageError`` if there is none, ``StorageError`` for one that is damaged.
    """
    return read_evaluation(find_stored(name, output_dir))


def find_stored(name: Named, output_dir: str | Path) -> Path:
    """The file of an evaluation: as ``find_evaluation``, or of a result, which knows its own folder."""
    if isinstance(name, EvaluationResult):
        name = name.log_path
    if not isinstance(name, str | os.PathLike):
        remedy = "Give its name, the path of its file or results, or the result of evaluate()."
        raise UsageError(f"no evaluation is named by {cut(repr(name), 80)}", remedy=remedy)
    return find_evaluation(name, output_dir)


def read_evaluation(
    path: Path, *, running: bool = False, unjudged: bool = False, brief: bool = False
) -> EvaluationResult:
    """Read the evaluation at ``path``; with ``running`` this process is the one that runs it.

    ``unjudged``: its rows have only the rollouts without a reward. ``brief``: without fingerprints, and
    rollouts that are alike to reports are the same outcome, the first of them, unless each was explained;
    their number takes no memory. Raises ``StorageError`` if it is damaged.
    """
    chosen = f"reward IS NULL AND {FINAL}" if unjudged else FINAL
    with reading(path) as connection:
        connection.execute("BEGIN")  # one snapshot, though others write
        return _evaluation(connection, path, chosen, running=running, brief=brief)


def judged_places(path: Path) -> dict[tuple[str, int], bool]:
    """The row id and index of each rollout that has a reward, with True if it passed."""
    query = f"SELECT row_id, idx, reward >= {SUCCESS_THRESHOLD} FROM rollouts"  # noqa: S608
    with reading(path) as connection:
        found = connection.execute(f"{query} WHERE reward IS NOT NULL AND {FINAL} ORDER BY seq")
        return {(row_id, index): bool(passed) for row_id, index, passed in found}


def _evaluation(
    connection: sqlite3.Connection, path: Path, chosen: str, *, running: bool, brief: bool
) -> EvaluationResult:
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    runs = cursor.execute("SELECT * FROM evaluation ORDER BY run").fetchall()
    if not runs:
        raise StorageError("holds no run of an evaluation", place=str(path))
    last = runs[-1]
    stored = json.loads(last["configuration"], parse_constant=lambda _: sys.float_info.max)  # of infinity
    configuration = {"errors_as_failures": False, "model": None, **stored}
    notes = [{}, *_notes(connection, "results", last["run"])]
    explained = [one["explanations"] for one in _notes(connection, "results") if "explanations" in one]
    notes[-1] = ({"explanations": explained[-1]} if explained else {}) | notes[-1]
    kept: list[RowResult] | None = [] if brief and not explained else None
    found = _row_results(connection, path, chosen, kept, strict=configuration["errors_as_failures"])
    averages = None if kept is None else averages_of(found)
    results = tuple(kept or found)
    status, reason = ("running", None) if running else _status(path, last, results)
    code, toolsets = dict[str, str](), dict[str, list[dict[str, Any]]]()
    for run in runs:
        toolsets |= json.loads(run["toolsets"])
        code |= json.loads(run["code"])
    wanted = "SELECT row_id, fingerprints FROM rows WHERE ? ORDER BY n_rollouts = 0, position"
    # of all finished attempts: of agent and user, and of rewards that counted theirs (``judge``)
    usage = {role: Usage(*sums) for role, *sums in connection.execute(_USAGE)}
    result = EvaluationResult(
        eval_id=path.stem,
        log_path=path.absolute(),
        created=float(runs[0]["created"]),
        status=status,
        reason=reason,
        configuration=configuration,
        versions=json.loads(last["versions"]),
        rows=results,
        usage={"agent": Usage(), "user": Usage()} | usage,
        seconds=float(connection.execute(_SECONDS).fetchone()[0]),
        broken_off=stored_usage(connection, "broken_off"),
        fingerprints={row_id: json.loads(text) for row_id, text in connection.execute(wanted, [not brief])},
        code=code,
        toolsets=toolsets,
        results={name: dict(part) for name, part in notes[-1].items()},
    )
    vars(result).update({} if averages is None else {"averages": averages})
    return result


def _row_results(
    connection: sqlite3.Connection, path: Path, chosen: str, kept: list[RowResult] | None, *, strict: bool
) -> Iterator[RowResult]:
    """The rows, some of which are read at a time; the ``kept`` ones share the first of all alike outcomes."""
    rows = connection.execute("SELECT row_id, n_rollouts FROM rows ORDER BY n_rollouts = 0, position")
    first: dict[tuple[Any, ...], Outcome] = {}
    while some := dict(rows.fetchmany(AT_ONCE)):
        outcomes = read_outcomes(connection, path, f"{chosen} AND {among('row_id')}", [json.dumps([*some])])
        wanted = {row_id: number for row_id, number in some.items() if number}
        for row in row_results(wanted, outcomes, errors_as_failures=strict):
            if kept is not None:
                shared = [first.setdefault(one.likeness, one) for one in row.outcomes]
                kept.append(replace(row, outcomes=tuple(shared)))
            yield row


def _status(path: Path, last: sqlite3.Row, rows: tuple[RowResult, ...]) -> tuple[StoredStatus, str | None]:
    if last["status"] != "running":
        return last["status"], last["reason"]
    if (writer := writer_of(path)) is not None:
        return "running", f"by {writer}"
    if all(len(row.outcomes) >= row.planned for row in rows):
        return "complete", None
    return "interrupted", "it ended without writing its results"


def read_notes(path: Path, kind: str) -> list[dict[str, Any]]:
    """The notes of a kind, in the order in which they were made; ``StorageError`` if one is damaged."""
    with reading(path) as connection:
        return _notes(connection, kind)


def _notes(connection: sqlite3.Connection, kind: str, run: int | None = None) -> list[dict[str, Any]]:
    query = "SELECT json FROM notes WHERE kind = :kind AND (:run IS NULL OR run = :run) ORDER BY id"
    return [json.loads(text) for (text,) in connection.execute(query, {"kind": kind, "run": run})]


class Origin(NamedTuple):
    """The rollout (its evaluation and its id) and the step that branches continue from.

    ``tool_result`` is what their agent sees in place of the result of that step's tool call.
    """

    evaluation: str
    rollout: str
    step: int
    tool_result: str | None = None

    def file(self, evals: Path) -> Path:
        """The file of its evaluation; raises ``StorageError`` for a name that leads elsewhere."""
        name = checked(self.evaluation, NAME, "the name of an evaluation", evals)
        return file_within(evals.parent, f"{evals.name}/{name}{SUFFIX}")

    def outcome(self, evals: Path) -> Outcome | None:
        """The rollout; None if it or its evaluation is gone, or cannot be read."""
        with suppress(StorageError):
            file = self.file(evals)
            with reading(file) as connection:
                return next(read_outcomes(connection, file, "id = ?", [self.rollout]), None)
        return None


def origin_of(branch_of: Mapping[str, Any] | None) -> Origin | None:
    """The origin that a configuration names, None for none; ``StorageError`` if it is damaged."""
    if not branch_of:
        return None
    try:
        found = Origin(**branch_of)
        return found._replace(rollout=str(found.rollout), step=int(found.step))
    except (TypeError, ValueError) as error:
        fault = f"branch_of={json.dumps(branch_of)} is not the origin of branches: the evaluation is damaged"
        raise StorageError(fault) from error


def branches_in(evals: Path) -> Iterator[tuple[Origin, Path]]:
    """The origin and the file of each evaluation in the folder ``evals`` whose rollouts are branches."""
    for file in stored_files(evals):
        with suppress(StorageError, OSError, ValueError):
            if (origin := _origin_in(file, file.stat().st_mtime_ns)) is not None:
                yield origin, file


@lru_cache(maxsize=4096)
def _origin_in(file: Path, _changed: int) -> Origin | None:
    """The origin of the evaluation in ``file``; the time stands for the content."""
    query = "SELECT configuration FROM evaluation ORDER BY run LIMIT 1"
    with reading(file) as connection:
        for (found,) in connection.execute(query):
            return origin_of(json.loads(found).get("branch_of"))
    return None
