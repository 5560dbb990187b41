"""Continuing an evaluation: what it was begun with, and what is done already."""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.evaluation_config import DEFAULTS, OPTIONS, EvaluationConfig, check_eval_id, flag_of
from reward_kit.agent.option_values import key_values
from reward_kit.agent.outcome import REWARD_ERROR
from reward_kit.agent.runs.atomic_file import is_whole_json
from reward_kit.agent.runs.code_fingerprints import code_of, has_default_reward
from reward_kit.agent.runs.evaluation_log import FORMAT, LoggedEvaluation, read_log
from reward_kit.agent.runs.rollout_record import load_rollout
from reward_kit.agent.versions import versions
from reward_kit.errors import DatabaseError, StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.outcome import RolloutOutcome

LATEST = "latest"
EXPLANATIONS = ".explanations"
"""The end of the name, without the suffix, of what lies beside a log: judgements of ``--explain``."""
NAMED = 5
"""Evaluations that are named where another one was asked for."""
PROMPTS = "prompts/"
"""What tells the fingerprints of a bundle's prompts from those of fields."""


@dataclass(slots=True)
class Header:
    """What an evaluation is of: a line of its log.

    ``rows`` holds for each row id its number of rollouts and fingerprints of what its results depend on;
    ``code`` those of the files of ``code_of``. ``toolsets`` holds the tools in the OpenAI format, by the
    fingerprint that the rows have of them.
    """

    eval_id: str
    configuration: dict[str, Any]
    rows: dict[str, dict[str, Any]]
    code: dict[str, str]
    versions: dict[str, str]
    toolsets: dict[str, list[dict[str, Any]]]

    def to_json(self, kind: str) -> dict[str, Any]:
        return {
            "kind": kind,
            "format": FORMAT,
            "eval_id": self.eval_id,
            "created": time.time(),
            "versions": self.versions,
            "configuration": self.configuration,
            "rows": self.rows,
            "code": self.code,
            "toolsets": self.toolsets,
        }


def make_header(config: EvaluationConfig, tasks: Sequence[Task], n_rollouts: Mapping[str, int]) -> Header:
    """The header of an evaluation of ``tasks``."""
    assert config.eval_id is not None, "the evaluation has its name by now"
    tools: dict[int, str] = {}
    toolsets: dict[str, list[dict[str, Any]]] = {}
    rows = {}
    for task in tasks:
        registry = task.registry
        if id(registry) not in tools:
            schemas = registry.get_openai_tools()
            tools[id(registry)] = _fingerprint(schemas)
            toolsets[tools[id(registry)]] = schemas
        fields = row_fields(task.row.reward_fields())
        rows[task.row.id] = {
            "n_rollouts": n_rollouts[task.row.id],
            "row": row_fingerprint(fields, task.user_prompts),
            "fields": field_fingerprints(fields, task.user_prompts),
            "seed": task.seed.key[:16],
            "tools": tools[id(registry)],
            "parallel_tool_calls": registry.parallel_tool_calls,
            "default_reward": has_default_reward(task),
        }
    code: dict[str, str] = {}
    for folder in {task.folder for task in tasks}:
        code.update(code_of(folder, config))
    configuration = config.to_json()
    for name in ("dataset", "task_dir"):
        path = configuration[name]
        if path is not None and Path(path).exists():
            configuration[name] = str(Path(path).resolve())  # resuming works from any folder
    return Header(config.eval_id, configuration, rows, dict(sorted(code.items())), versions(), toolsets)


def finished_outcomes(logged: LoggedEvaluation, root: Path) -> dict[tuple[str, int], RolloutOutcome]:
    """The rollouts that need not be run again, by row id and index.

    Those that could not be judged are run again (or judged again: ``outcomes_to_judge``), and so is one whose
    trajectory is gone or torn.
    """
    finished = {}
    for outcome in logged.outcomes:
        if outcome.judged and outcome.final and is_whole_json(root / outcome.file):
            finished[outcome.row_id, outcome.index] = outcome
    return finished


def outcomes_to_judge(
    logged: LoggedEvaluation, root: Path, finished: Collection[tuple[str, int]]
) -> dict[tuple[str, int], RolloutOutcome]:
    """The rollouts that are over but for their reward, which failed, and whose final state was kept."""
    last = {(outcome.row_id, outcome.index): outcome for outcome in logged.outcomes if outcome.final}
    return {
        place: outcome
        for place, outcome in last.items()
        if place not in finished and outcome.unjudged_reason == REWARD_ERROR and _is_kept(root / outcome.file)
    }


def _is_kept(trajectory: Path) -> bool:
    """Whether a trajectory and the final state beside it can be read."""
    from reward_kit.agent.database import Database

    try:
        database = load_rollout(trajectory).database
        if database is not None:
            Database.open(trajectory.with_name(database)).close()
    except (StorageError, DatabaseError):
        return False
    return database is not None


def more_than_asked(asked: Mapping[str, int], finished: Collection[tuple[str, int]]) -> str | None:
    """A line for a person who asks for fewer rollouts of a row than there are, which all count."""
    rows = {row_id for row_id, index in finished if row_id in asked and index >= asked[row_id]}
    if not rows:
        return None
    row_id = min(rows)
    there = sum(each == row_id for each, _ in finished)
    others = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return (
        f"row {row_id}{others}: {there} rollouts are recorded already, {asked[row_id]} asked for; "
        "all that are recorded count"
    )


def find_evaluation(evals: Path, name: str) -> Path:
    """The log that ``--resume name`` means (``latest``: written to last); ``UsageError`` if there is none."""
    if name != LATEST:
        path = evals / f"{name}.jsonl"
        if path.is_file():
            return path
        raise UsageError(f"there is no evaluation {name!r}", place=str(evals), remedy=_known(evals, name))
    logs = sorted(stored_logs(evals), key=_written)
    if not logs:
        raise UsageError("there is no evaluation yet", place=str(evals), remedy="Is --output-dir right?")
    return logs[-1]


def stored_logs(evals: Path) -> list[Path]:
    """The logs of all evaluations in a folder ``evals``, by name."""
    logs = sorted(log for log in evals.glob("*.jsonl") if log.is_file())
    names = {log.stem for log in logs}
    return [
        log
        for log in logs
        if not (log.stem.endswith(EXPLANATIONS) and log.stem.removesuffix(EXPLANATIONS) in names)
    ]


def resumed_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``--resume``: those the evaluation was started with, and over them what is given now.

    Raises ``UsageError`` where its dataset or bundle was moved and nothing given says to where.
    """
    evals = Path(given.get("output_dir") or DEFAULTS["output_dir"]) / "evals"
    check_eval_id(given["resume"], "--resume")
    path = find_evaluation(evals, given["resume"])
    headers = read_log(path).headers
    if not headers:
        raise UsageError("has no whole line, so nothing can be continued", place=str(path))
    stored = headers[-1]["configuration"]
    _check_not_moved(path.stem, stored, given)
    kept = {name: value for name, value in stored.items() if name in OPTIONS and name not in _OF_ONE_RUN}
    kept["task_ids"] = stored.get("task_ids") or None  # stored as an empty list where none were given
    merged = {
        name: {**stored.get(name, {}), **key_values(given.get(name), flag_of(name))}
        for name in ("model_args", "user_model_args")
    }
    return {**kept, **given, **merged, "eval_id": path.stem}


_OF_ONE_RUN = frozenset(
    {
        "resume",
        "eval_id",
        "output_dir",
        "clear_cache",
        "json",
        "format",
        "from_tau_bench",
        "fail_under",
        "validate_only",
        "quiet",
        "debug",
    }
)


def _check_not_moved(eval_id: str, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` if a path of the bundle is gone: the options that go on with it elsewhere."""
    paths = {name: stored[name] for name in ("dataset", "task_dir") if stored.get(name)}
    gone = [name for name, path in paths.items() if name not in given and _is_gone(path)]
    if not gone:
        return
    # all of them: rescore takes both from the command line, or none
    options = [
        f"{OPTIONS[name].flag} {'NEW_PATH' if name in gone else shlex.quote(str(given.get(name) or path))}"
        for name, path in paths.items()
    ]
    raise UsageError(
        f"there is no {paths[gone[0]]} any more, which it was begun with",
        place=f"evaluation {eval_id}",
        remedy=f"If it was moved, name its new place: {' '.join(options)}.",
    )


def _is_gone(path: str) -> bool:
    """Whether there was a file or folder; what is relative is an installed bundle, or within another path."""
    return Path(path).is_absolute() and not Path(path).exists()


def _known(evals: Path, name: str) -> str:
    """The evaluation that may be meant, and the newest ones."""
    newest = [log.stem for log in sorted(stored_logs(evals), key=_written, reverse=True)]
    if not newest:
        return "There is none in this folder; is --output-dir right?"
    near = get_close_matches(name, newest, n=1)
    meant = f"Did you mean {near[0]!r}? " if near else ""
    if len(newest) <= NAMED:
        return f"{meant}There are: {', '.join(newest)}."
    return f"{meant}The newest of {len(newest)}: {', '.join(newest[:NAMED])}."


def _written(log: Path) -> float:
    """When a log was last written to, in Unix seconds; long ago where it is gone by now."""
    try:
        return log.stat().st_mtime
    except OSError:
        return 0.0


def row_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a row's fields that the result of a rollout may depend on."""
    return {name: value for name, value in fields.items() if name != "n_rollouts"}


def row_fingerprint(fields: Mapping[str, Any], user_prompts: Mapping[str, str]) -> str:
    """What a row is recognised by; ``user_prompts`` are those of its bundle."""
    return _fingerprint([fields, dict(user_prompts)] if user_prompts else fields)


def field_fingerprints(fields: Mapping[str, Any], user_prompts: Mapping[str, str]) -> dict[str, str]:
    """The same of each field, to tell which has changed, and of each prompt: ``prompts/user.txt``."""
    files = {f"{PROMPTS}{name}.txt": text for name, text in user_prompts.items()}
    return {name: _fingerprint(value)[:8] for name, value in {**fields, **files}.items()}


def _fingerprint(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


def canonical(value: Any) -> str:
    """The same text for the same JSON value."""
    return _encode(value)


_encode = json.JSONEncoder(sort_keys=True, default=str).encode  # ``json.dumps`` would make one each time
