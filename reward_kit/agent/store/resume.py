"""Resuming an evaluation: the options it was started with, and what identifies its rows and code."""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.option import check_eval_id, key_values
from reward_kit.agent.base.versions import versions
from reward_kit.agent.config import DEFAULTS, OPTIONS, EvaluationConfig
from reward_kit.agent.store.evaluation_file import find_named, reading
from reward_kit.agent.store.fingerprints import toolset_of
from reward_kit.errors import StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from reward_kit.agent.bundles.bundle import BundleRows
    from reward_kit.agent.bundles.seed import Seed
    from reward_kit.agent.rows.task_row import TaskRow
    from reward_kit.agent.store.fingerprints import CodeFacts


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row that is about to be evaluated.

    ``n_rollouts`` are planned, ``fields`` are those of the row; ``fingerprints`` identify them, and
    everything else that its results depend on.
    """

    row: TaskRow
    seed: Seed
    n_rollouts: int
    fields: Mapping[str, Any]
    fingerprints: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """The settings of one run of an evaluation: the first, or one that resumes it.

    ``code`` holds the fingerprint of each module, ``reward_files`` the rewards among these, ``toolsets``
    tools in the OpenAI format by the fingerprint that ``rows`` have of them. ``folder`` is the bundle's name.
    """

    eval_id: str
    configuration: Mapping[str, Any]
    versions: Mapping[str, str]
    code: Mapping[str, str]
    toolsets: Mapping[str, list[dict[str, Any]]]
    rows: Sequence[PlannedRow]
    folder: str = ""
    reward_files: Sequence[str] = ()


def make_run(config: EvaluationConfig, bundle: BundleRows, facts: CodeFacts) -> Run:
    """The settings of a run of the rows of ``bundle`` that ``facts`` name."""
    assert config.eval_id is not None, "the evaluation has its name by now"
    found = {row.id: (row, seed) for row, seed in zip(bundle.rows, bundle.seeds, strict=True)}
    tools = {name: fingerprint(toolset.schemas) for name, toolset in facts.toolsets.items()}
    texts = dict(bundle.prompts)
    prompts = {f"prompts/{name}.txt": fingerprint(text) for name, text in texts.items()}
    default_reward = set(facts.default_reward)
    rows = []
    for row_id, n_rollouts in facts.rows.items():
        row, seed = found[row_id]
        fields = row.reward_fields()
        deciding = result_fields(fields, bundle.folder.name)
        fingerprints = {
            "row": fingerprint([deciding, texts] if texts else deciding),
            "seed": seed.key[:16],
            "tools": tools[toolset_of(row)],
            "prompts": prompts,
            "parallel_tool_calls": facts.toolsets[toolset_of(row)].parallel_tool_calls,
            "default_reward": row_id in default_reward,
        }
        rows.append(PlannedRow(row, seed, n_rollouts, fields, fingerprints))
    configuration = config.to_json()
    for name, option in OPTIONS.items():
        if option.is_path and configuration[name] is not None and Path(configuration[name]).exists():
            configuration[name] = str(Path(configuration[name]).resolve())  # resuming works from any folder
    return Run(
        config.eval_id,
        configuration,
        versions(),
        dict(sorted(facts.modules.items())),
        {tools[name]: toolset.schemas for name, toolset in facts.toolsets.items()},
        rows,
        bundle.folder.name,
        facts.reward_files,
    )


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


def resumed_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``--resume``: those that the evaluation was started with, replaced by those given now.

    Raises ``UsageError`` if its dataset or bundle was moved and no option names the new place.
    """
    check_eval_id(given["resume"], "--resume")
    path = find_named(given["resume"], Path(given.get("output_dir") or DEFAULTS["output_dir"]) / "evals")
    with reading(path) as connection:
        query = "SELECT configuration FROM evaluation ORDER BY run DESC LIMIT 1"
        found = connection.execute(query).fetchone()
    if found is None:
        raise StorageError("holds no run, so nothing can be continued", place=str(path))
    stored = json.loads(found[0])
    _check_not_moved(path.stem, stored, given)
    kept = {
        name: value
        for name, value in stored.items()
        if name in OPTIONS and OPTIONS[name].scope == "evaluation"
    }
    kept["task_ids"] = stored.get("task_ids") or None  # stored as an empty list if none were given
    merged = {
        name: {**stored.get(name, {}), **key_values(given.get(name), option)}
        for name, option in OPTIONS.items()
        if option.secret
    }
    return {**kept, **given, **merged, "eval_id": path.stem}


def _check_not_moved(eval_id: str, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` if a path of the evaluation is gone and no option names its new place."""
    paths = {
        name: str(stored[name]) for name, option in OPTIONS.items() if option.is_path and stored.get(name)
    }
    # a path that is not absolute is an installed bundle, or lies within another path
    gone = [
        name
        for name, path in paths.items()
        if name not in given and Path(path).is_absolute() and not Path(path).exists()
    ]
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


def result_fields(fields: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """The fields of a row that the result of a rollout may depend on.

    Import paths do not begin with the name of the bundle's ``folder``: renaming it changes no result.
    """
    kept = {name: value for name, value in fields.items() if name != "n_rollouts"}
    for name in ("toolset", "reward"):
        if str(kept.get(name)).startswith((f"{folder}.", f"{folder}:")):
            kept[name] = kept[name].removeprefix(folder)
    return kept


canonical = json.JSONEncoder(sort_keys=True, default=str, ensure_ascii=False).encode
"""The same text for equal JSON values."""


def fingerprint(value: Any) -> str:
    """A short hash of a JSON value."""
    return hashlib.sha256(canonical(value).encode(errors="surrogatepass")).hexdigest()[:16]
