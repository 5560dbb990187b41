"""An evaluation as it lies on disk, running or over: found by its name or a path, and read back."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from reward_kit.agent.completion import Usage
from reward_kit.agent.cut_text import cut
from reward_kit.agent.outcome import RolloutOutcome
from reward_kit.agent.results import (
    FORMAT,
    EvaluationResult,
    RowResult,
    Status,
    StoredStatus,
    row_results,
    usage_of,
)
from reward_kit.agent.runs.broken_off import BrokenOff
from reward_kit.agent.runs.evaluation_lock import writer_of
from reward_kit.agent.runs.evaluation_log import LoggedEvaluation, read_log
from reward_kit.agent.runs.resume import find_evaluation
from reward_kit.errors import StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Named = str | Path | EvaluationResult
"""What an evaluation is named by: its name or ``latest``, the path of its log or results, or its result."""
LONGEST_SHOWN = 80
"""Characters of a wrong value that an error shows."""


@dataclass(frozen=True, slots=True)
class StoredEvaluation:
    """What is known of an evaluation from its files.

    ``path`` is what was read: the log, or the results where no log is beside them. ``created`` is in Unix
    seconds. ``usage`` counts all attempts that came to their end, ``broken_off`` those that did not;
    ``seconds`` is the time of all its runs. ``fingerprints`` hold of each row what it is recognised by
    (``row``, ``seed``, ``tools``), ``code`` the same of each module; both are empty without a log.
    ``toolsets`` holds tools in the OpenAI format by their fingerprint, as far as the log has them.
    ``results`` is the content of the results file, empty where it is missing or of an earlier state.
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
    results: Mapping[str, Any] = field(default_factory=dict)

    @property
    def outcomes(self) -> list[RolloutOutcome]:
        """The rollouts that are over, row by row."""
        return [outcome for row in self.rows for outcome in row.outcomes]

    @property
    def planned(self) -> int:
        return sum(row.planned for row in self.rows)

    def tools_of(self, row_id: str) -> list[dict[str, Any]] | None:
        """The tools of a row in the OpenAI format, as they were offered; None where the log has none."""
        return self.toolsets.get(self.fingerprints.get(row_id, {}).get("tools", ""))

    def parallel_tool_calls(self, row_id: str) -> bool | None:
        """Whether several tool calls in an answer were wanted; None where the log does not tell."""
        wanted = self.fingerprints.get(row_id, {}).get("parallel_tool_calls")
        return (
            None if wanted is None else bool(wanted and self.configuration.get("parallel_tool_calls", True))
        )


def load_evaluation(name: Named, output_dir: str | Path = "runs") -> StoredEvaluation:
    """Read the evaluation that ``name`` means; see ``find_stored``.

    Raises ``UsageError`` where there is none, ``StorageError`` for one that is damaged.
    """
    path = find_stored(name, output_dir)
    if path.suffix == ".jsonl":
        return _from_log(path)
    results = read_results(path)
    log = path.with_name(f"{results.get('eval_id')}.jsonl")
    return _from_log(log) if log.is_file() else _from_results(path, results)


def find_stored(name: Named, output_dir: str | Path) -> Path:
    """The log or results file of an evaluation.

    ``name`` is an evaluation's name in ``output_dir`` (``latest``: begun or continued last), the path of one
    of the two files, or the result of the evaluation, which knows its own folder. Raises ``UsageError`` where
    there is no such thing.
    """
    if isinstance(name, EvaluationResult):
        name = name.log_path if name.log_path.is_file() else name.results_path
    if not isinstance(name, str | os.PathLike):
        raise UsageError(
            f"no evaluation is named by {cut(repr(name), LONGEST_SHOWN)}",
            remedy="Give its name, the path of its log or results, or what agent_eval() returned.",
        )
    evals, path = Path(output_dir) / "evals", Path(name)
    try:
        for file in (evals / f"{name}.jsonl", path, evals / f"{name}.json"):
            if file.is_file():
                return file
        if path.is_dir() or path.suffix in (".json", ".jsonl"):
            raise UsageError(
                "is a folder and is not the log of an evaluation"
                if path.is_dir()
                else "there is no such file",
                place=str(name),
                remedy="Name an evaluation, or its log runs/evals/ID.jsonl.",
            )
        return find_evaluation(evals, str(name))
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise UsageError(f"cannot be read: {error.strerror}", place=str(name)[:60]) from error


def read_results(path: Path) -> dict[str, Any]:
    """The content of a results file; ``StorageError`` if it is none."""
    try:
        plain = json.loads(path.read_bytes())
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(path)) from error
    except ValueError:
        plain = None
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise StorageError(
            f"is not the results of an evaluation (format {FORMAT})",
            place=str(path),
            remedy="Name an evaluation, or its log runs/evals/ID.jsonl.",
        )
    return plain


def _from_log(path: Path) -> StoredEvaluation:
    logged = read_log(path)
    if not logged.headers:
        raise StorageError("holds no evaluation: not one whole line", place=str(path))
    try:
        return _logged_evaluation(path, logged)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StorageError(f"is no complete log of an evaluation: {error!r}", place=str(path)) from error


def _logged_evaluation(path: Path, logged: LoggedEvaluation) -> StoredEvaluation:
    last = logged.headers[-1]
    configuration = last["configuration"]
    rows = row_results(
        {row_id: row["n_rollouts"] for row_id, row in last["rows"].items()},
        logged.outcomes,
        errors_as_failures=bool(configuration.get("errors_as_failures")),
    )
    results = _results_of(path, rows)
    status, reason = _status(path, rows, results)
    return StoredEvaluation(
        path=path,
        eval_id=path.stem,
        folder=path.absolute().parent.parent,
        created=float(logged.headers[0]["created"]),
        status=status,
        reason=reason,
        configuration=configuration,
        versions=last["versions"],
        rows=rows,
        usage=usage_of(logged.outcomes),
        seconds=float(results["seconds"]) if results else logged.seconds,
        broken_off=logged.broken_off,
        fingerprints={row_id: row for header in logged.headers for row_id, row in header["rows"].items()},
        code={name: value for header in logged.headers for name, value in header["code"].items()},
        toolsets={
            name: tools for header in logged.headers for name, tools in header.get("toolsets", {}).items()
        },
        results=results,
    )


def _results_of(log: Path, rows: Sequence[RowResult]) -> dict[str, Any]:
    """The results beside a log, unless they are those of an earlier state."""
    try:
        results = read_results(log.with_suffix(".json"))
    except StorageError:
        return {}
    now = (sum(row.planned for row in rows), sum(len(row.outcomes) for row in rows))
    of_now = (results.get("planned"), results.get("finished")) == now
    return results if of_now and results.get("status") in get_args(Status) else {}


def _status(
    log: Path, rows: Sequence[RowResult], results: Mapping[str, Any]
) -> tuple[StoredStatus, str | None]:
    writer = writer_of(log.with_suffix(".lock"))
    if writer is not None:
        return "running", f"by {writer}"
    if results:
        return results["status"], results.get("reason")
    if all(len(row.outcomes) >= row.planned for row in rows):
        return "complete", None
    return "interrupted", "it ended without writing its results"


def _from_results(path: Path, results: Mapping[str, Any]) -> StoredEvaluation:
    try:
        configuration = results["configuration"]
        outcomes = [RolloutOutcome.from_json(one) for row in results["rows"] for one in row["rollouts"]]
        here = path.absolute().parent
        return StoredEvaluation(
            path=path,
            eval_id=results["eval_id"],
            folder=here.parent if here.name == "evals" else Path(configuration.get("output_dir") or "."),
            created=min((outcome.started for outcome in outcomes), default=path.stat().st_mtime),
            status=results["status"],
            reason=results.get("reason"),
            configuration=configuration,
            versions=results["versions"],
            rows=row_results(
                {row["id"]: row["planned"] for row in results["rows"]},
                outcomes,
                errors_as_failures=bool(configuration.get("errors_as_failures")),
            ),
            usage={role: Usage(**usage) for role, usage in results["usage"].items()},
            seconds=float(results["seconds"]),
            broken_off=BrokenOff.from_json(results["broken_off"]) if "broken_off" in results else BrokenOff(),
            results=results,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StorageError(f"is incomplete: {error!r}", place=str(path)) from error
