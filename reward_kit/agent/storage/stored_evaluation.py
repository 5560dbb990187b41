"""An evaluation as it is stored, running or over: found by its name or a path, and read back."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import cut
from reward_kit.agent.base.types import Usage
from reward_kit.agent.records.broken_off import BrokenOff
from reward_kit.agent.records.evaluation_file import SUFFIX, connect, read_fields, sqlite_faults
from reward_kit.agent.records.names import find_file
from reward_kit.agent.scoring.results import FORMAT, EvaluationResult, StoredStatus
from reward_kit.agent.scoring.rows import RowResult, row_results
from reward_kit.agent.storage.outcome_rows import FINAL, read_outcomes, usage_from
from reward_kit.agent.storage.store import writer_of
from reward_kit.errors import StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reward_kit.agent.records.outcome import RolloutOutcome

Named = str | Path | EvaluationResult
"""An evaluation: its name or ``latest``, the path of its file or results, or its result."""
LONGEST_SHOWN = 80
"""Characters of a wrong value that an error shows."""


@dataclass(frozen=True)
class StoredEvaluation:
    """The evaluation that the file ``path`` holds.

    ``created`` is in Unix seconds. ``usage`` counts all finished attempts, ``broken_off`` those that came to
    no end; ``seconds`` is the time of all its runs. ``fingerprints`` identify each row (``row``, ``seed``,
    ``tools``), ``code`` each module. ``toolsets`` holds tools in the OpenAI format by their fingerprint.
    """

    path: Path
    eval_id: str
    folder: Path
    created: float
    status: StoredStatus
    reason: str | None
    configuration: Mapping[str, Any]
    versions: Mapping[str, str]
    rows: tuple[RowResult, ...]
    usage: Mapping[str, Usage]
    seconds: float
    broken_off: BrokenOff = field(default_factory=BrokenOff)
    fingerprints: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    toolsets: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def outcomes(self) -> list[RolloutOutcome]:
        """The rollouts that are over, row by row."""
        return [outcome for row in self.rows for outcome in row.outcomes]

    @property
    def planned(self) -> int:
        """The number of rollouts that there will be."""
        return sum(row.planned for row in self.rows)

    @cached_property
    def results(self) -> Mapping[str, Any]:
        """The content of the results file; empty where it is missing or of an earlier state."""
        try:
            results = read_results(self.path.with_suffix(".json"))
        except StorageError:
            return {}
        now = (self.planned, sum(len(row.outcomes) for row in self.rows))
        return results if (results.get("planned"), results.get("finished")) == now else {}

    def tools_of(self, row_id: str) -> list[dict[str, Any]] | None:
        """The tools of a row in the OpenAI format, as they were offered; None for an unknown row."""
        return self.toolsets.get(self.fingerprints.get(row_id, {}).get("tools", ""))

    def parallel_tool_calls(self, row_id: str) -> bool | None:
        """True if several tool calls in an answer were wanted; None for an unknown row."""
        wanted = self.fingerprints.get(row_id, {}).get("parallel_tool_calls")
        return (
            None if wanted is None else bool(wanted and self.configuration.get("parallel_tool_calls", True))
        )

    def fields_of(self, row_id: str) -> dict[str, Any] | None:
        """The fields of a row as it was evaluated; None for an unknown row."""
        return read_fields(self.path, row_id).get(row_id)


def load_evaluation(name: Named, output_dir: str | Path = "runs") -> StoredEvaluation:
    """Read the evaluation that ``name`` means; see ``find_stored``.

    Raises ``UsageError`` where there is none, ``StorageError`` for one that is damaged.
    """
    path = find_stored(name, output_dir)
    with closing(connect(path)) as connection, sqlite_faults(path):
        try:
            connection.execute("BEGIN")  # one snapshot, though others write
            return read_evaluation(connection, path)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise StorageError(f"is damaged: {error!r}", place=str(path)) from error


def find_stored(name: Named, output_dir: str | Path) -> Path:
    """The file of an evaluation.

    ``name`` is an evaluation's name in ``output_dir`` (``latest``: begun or continued last), the path of its
    file or of the results beside it, or the result of the evaluation, which knows its own folder. Raises
    ``UsageError`` where there is no such thing.
    """
    if isinstance(name, EvaluationResult):
        name = name.log_path
    if not isinstance(name, str | os.PathLike):
        raise UsageError(
            f"no evaluation is named by {cut(repr(name), LONGEST_SHOWN)}",
            remedy="Give its name, the path of its file or results, or the result of evaluate().",
        )
    evals, path = Path(output_dir) / "evals", Path(name)
    try:
        for file in (evals / f"{name}{SUFFIX}", path, path.with_suffix(SUFFIX)):
            if file.suffix == SUFFIX and file.is_file():
                return file
        if path.is_dir() or path.suffix in (".json", SUFFIX):
            raise UsageError(
                "is a folder and is not the file of an evaluation"
                if path.is_dir()
                else "is not the file of an evaluation, and has none beside it"
                if path.is_file()
                else "there is no such file",
                place=str(name),
                remedy="Name an evaluation, or its file runs/evals/NAME.db.",
            )
        return find_file(evals, str(name))
    except (OSError, ValueError) as error:  # a name that is too long, a folder that may not be read
        fault = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot be read: {fault}", place=str(name)[:60]) from error


def read_results(path: Path) -> dict[str, Any]:
    """The content of a results file; ``StorageError`` if it is none."""
    try:
        plain = json.loads(path.read_bytes())
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(path)) from error
    except ValueError:
        plain = None
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise StorageError(f"is not the results of an evaluation (format {FORMAT})", place=str(path))
    return plain


def read_evaluation(connection: sqlite3.Connection, path: Path, *, running: bool = False) -> StoredEvaluation:
    """The evaluation that ``connection`` reads; with ``running`` this process is the one that runs it."""
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    runs = cursor.execute("SELECT * FROM evaluation ORDER BY run").fetchall()
    if not runs:
        raise StorageError("holds no run of an evaluation", place=str(path))
    last = runs[-1]
    configuration = json.loads(last["configuration"])
    planned: dict[str, int] = {}
    fingerprints = {}
    query = "SELECT row_id, n_rollouts, fingerprints FROM rows ORDER BY n_rollouts = 0, position"
    for row_id, n_rollouts, prints in connection.execute(query):
        fingerprints[row_id] = json.loads(prints)
        if n_rollouts:
            planned[row_id] = n_rollouts
    rows = row_results(
        planned,
        read_outcomes(connection, path, FINAL),
        errors_as_failures=bool(configuration.get("errors_as_failures")),
    )
    status, reason = ("running", None) if running else _status(path, last, rows)
    toolsets: dict[str, list[dict[str, Any]]] = {}
    code: dict[str, str] = {}
    for run in runs:
        toolsets |= json.loads(run["toolsets"])
        code |= json.loads(run["code"])
    return StoredEvaluation(
        path=path,
        eval_id=path.stem,
        folder=path.absolute().parent.parent,
        created=float(runs[0]["created"]),
        status=status,
        reason=reason,
        configuration=configuration,
        versions=json.loads(last["versions"]),
        rows=rows,
        usage=_usage(connection, rows),
        seconds=read_seconds(connection),
        broken_off=read_broken_off(connection),
        fingerprints=fingerprints,
        code=code,
        toolsets=toolsets,
    )


def _status(path: Path, last: sqlite3.Row, rows: tuple[RowResult, ...]) -> tuple[StoredStatus, str | None]:
    if last["status"] != "running":
        return last["status"], last["reason"]
    writer = writer_of(path)
    if writer is not None:
        return "running", f"by {writer}"
    if all(len(row.outcomes) >= row.planned for row in rows):
        return "complete", None
    return "interrupted", "it ended without writing its results"


def _usage(connection: sqlite3.Connection, rows: tuple[RowResult, ...]) -> dict[str, Usage]:
    """Usage of all finished attempts: of agent and user, and of rewards that counted theirs (``judge``)."""
    total = {"agent": Usage(), "user": Usage()}
    superseded = connection.execute(f"SELECT usage FROM rollouts WHERE NOT {FINAL} AND usage != '{{}}'")  # noqa: S608
    used = [outcome.usage for row in rows for outcome in row.outcomes]
    for by_role in (*used, *(usage_from(text) for (text,) in superseded)):
        for role, usage in by_role.items():
            total.setdefault(role, Usage()).add(usage)
    return total


def read_notes(path: Path, kind: str) -> list[dict[str, Any]]:
    """The notes of a kind, in the order in which they were made."""
    with closing(connect(path)) as connection, sqlite_faults(path):
        query = "SELECT json FROM notes WHERE kind = ? ORDER BY id"
        return [json.loads(text) for (text,) in connection.execute(query, (kind,))]


def read_broken_off(connection: sqlite3.Connection) -> BrokenOff:
    """The usage of attempts that came to no end, in all runs."""
    total = BrokenOff()
    query = "SELECT rollouts, usage FROM usage WHERE kind = 'broken_off'"
    for rollouts, text in connection.execute(query):
        total.add(BrokenOff(rollouts, usage_from(text)))
    return total


def read_seconds(connection: sqlite3.Connection) -> float:
    """The length of all runs; of one that was killed, up to the end of its last rollout."""
    (seconds,) = connection.execute(
        "SELECT total(coalesce(seconds, max(0, (SELECT max(max(started + seconds), ifnull(max(judged), 0))"
        " FROM rollouts WHERE rollouts.run = evaluation.run) - created), 0)) FROM evaluation"
    ).fetchone()
    return float(seconds)
