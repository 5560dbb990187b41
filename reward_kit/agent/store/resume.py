"""Resuming an evaluation: the options it was started with, and what identifies its rows and code."""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.option import check_eval_id, key_values
from reward_kit.agent.base.text import apart, count, from_here, one_line
from reward_kit.agent.base.versions import versions
from reward_kit.agent.bundles.rules import RULES
from reward_kit.agent.config import DEFAULTS, OPTIONS, EvaluationConfig
from reward_kit.agent.rows.task_row import also_in_more_rows
from reward_kit.agent.store.evaluation_file import find_named, reading
from reward_kit.agent.store.fingerprints import toolset_of
from reward_kit.errors import StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence

    from reward_kit.agent.bundles.bundle import BundleRows
    from reward_kit.agent.bundles.seed import Seed
    from reward_kit.agent.rows.task_row import TaskRow
    from reward_kit.agent.store.fingerprints import CodeFacts
    from reward_kit.agent.store.results import EvaluationResult


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
    ``others`` makes those rows of the dataset that have these ids and are not evaluated now.
    """

    eval_id: str
    configuration: Mapping[str, Any]
    versions: Mapping[str, str]
    code: Mapping[str, str]
    toolsets: Mapping[str, list[dict[str, Any]]]
    rows: Sequence[PlannedRow]
    folder: str = ""
    reward_files: Sequence[str] = ()
    others: Callable[[Container[str]], list[PlannedRow]] = lambda _: []


def make_run(config: EvaluationConfig, bundle: BundleRows, facts: CodeFacts) -> Run:
    """The settings of a run of the rows of ``bundle`` that ``facts`` name."""
    assert config.eval_id is not None, "the evaluation has its name by now"
    tools = {name: fingerprint(toolset.schemas) for name, toolset in facts.toolsets.items()}
    texts = dict(bundle.prompts)
    prompts = {f"prompts/{name}.txt": fingerprint(text) for name, text in texts.items()}
    default_reward = set(facts.default_reward)

    def planned(row: TaskRow, seed: Seed) -> PlannedRow:
        fields, toolset = row.reward_fields(), toolset_of(row)
        deciding = result_fields(fields, bundle.folder.name)
        fingerprints: dict[str, Any] = {
            "row": fingerprint([deciding, texts] if texts else deciding),
            "seed": seed.key[:16],
            "prompts": prompts,
        }
        if row.id in facts.rows:
            fingerprints |= {
                "tools": tools[toolset],
                "parallel_tool_calls": facts.toolsets[toolset].parallel_tool_calls,
                "default_reward": row.id in default_reward,
            }
        return PlannedRow(row, seed, facts.rows.get(row.id, 0), fields, fingerprints)

    seeds = {row.id: (row, seed) for row, seed in zip(bundle.rows, bundle.seeds, strict=True)}
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
        [planned(*seeds[row_id]) for row_id in facts.rows],
        bundle.folder.name,
        facts.reward_files,
        lambda ids: [planned(*seeds[one]) for one in seeds if one in ids and one not in facts.rows],
    )


def more_than_asked(
    rows: Collection[str], asked: Mapping[str, int], finished: Collection[tuple[str, int]]
) -> str:
    """A line for a person who asks for fewer rollouts of these ``rows`` than there are, which all count."""
    row_id = min(rows)
    there = sum(each == row_id for each, _ in finished)
    others = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    recorded = f"{count(there, 'rollout')} recorded already, {asked.get(row_id, 0)} asked for"
    return f"row {row_id}{others}: {recorded}; all that are recorded count"


def resumed_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The stored options, replaced by those ``given``; ``UsageError`` if the bundle or dataset has moved."""
    check_eval_id(given["resume"], "--resume")
    path = find_named(given["resume"], Path(given.get("output_dir") or DEFAULTS["output_dir"]) / "evals")
    with reading(path) as connection:
        query = "SELECT configuration FROM evaluation ORDER BY run DESC LIMIT 1"
        found = connection.execute(query).fetchone()
        if found is None:
            raise StorageError("holds no run, so nothing can be continued", place=str(path))
        stored = json.loads(found[0])
    _check_not_moved(path.stem, stored, given)
    lasting = [name for name, option in OPTIONS.items() if option.scope in ("evaluation", "whole")]
    kept = {name: stored[name] for name in stored if name in lasting}
    kept["task_ids"] = stored.get("task_ids") or None  # stored as an empty list if none were given
    if kept.get("workers") is None and kept.get("ray") is None:
        kept["worker_memory"] = None  # of no process; earlier versions took it
    merged = {
        name: {**stored.get(name, {}), **key_values(given.get(name), option)}
        for name, option in OPTIONS.items()
        if option.secret
    }
    return {**kept, **given, **merged, "eval_id": path.stem}


def _check_not_moved(eval_id: str, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` if a path of the evaluation is gone and no option names its new place."""
    paths = {name: str(stored[name]) for name, one in OPTIONS.items() if one.is_path and stored.get(name)}
    # a path that is not absolute is an installed bundle, or lies within another path
    absolute = {name: Path(path) for name, path in paths.items() if Path(path).is_absolute()}
    gone = [name for name, path in absolute.items() if name not in given and not path.exists()]
    if not gone:
        return
    # all of them: rescore takes both from the command line, or none
    options = [
        f"{OPTIONS[name].flag} {'NEW_PATH' if name in gone else shlex.quote(str(given.get(name) or path))}"
        for name, path in paths.items()
    ]
    fault = f"there is no {paths[gone[0]]} any more, which it was begun with"
    remedy = f"If it was moved, name its new place: {' '.join(options)}."
    raise UsageError(fault, place=f"evaluation {eval_id}", remedy=remedy)


def result_fields(fields: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """The fields that a result may depend on; import paths are without the name of the ``folder``."""
    kept = {name: value for name, value in fields.items() if name != "n_rollouts"}
    for name in ("toolset", "reward"):
        if str(kept.get(name)).startswith((f"{folder}.", f"{folder}:")):
            kept[name] = kept[name].removeprefix(folder)
    return kept


canonical = json.JSONEncoder(ensure_ascii=False, default=str, sort_keys=True).encode
"""The same text for equal JSON values."""


def fingerprint(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode(errors="surrogatepass")).hexdigest()[:16]


SHOWN, LONGEST = 30, 80
"""Differences that an error lists, and characters of a value that one shows."""


def check_same(run: Run, before: EvaluationResult) -> None:
    """Raise ``UsageError`` with the differences between ``run`` and earlier runs.

    Rows may be added and left out, more rollouts asked for, the bundle's folder moved and renamed; any other
    difference would mix results.
    """
    differences = []
    for name, option in OPTIONS.items():
        if option.fixed and name in before.configuration:
            was, now = canonical(before.configuration[name]), canonical(run.configuration.get(name))
            differences += [f"{option.flag} was {was}, is {now}"] if was != now else []
    recorded = [*run.rows, *run.others(before.fingerprints)]  # all rollouts that are recorded count
    differences += bundle_differences(replace(run, rows=recorded), before)
    if not differences:
        return
    remedy = "\nUndo the changes, or start a new evaluation (another --eval-id, no --resume)."
    if set(differences) <= {_changed_file(file) for file in run.reward_files}:
        remedy += f" What is finished is judged by the reward of now with: reward-kit rescore {run.eval_id}"
    fault = listed("cannot be continued, because results would be mixed:", differences)
    raise UsageError(fault, place=f"evaluation {run.eval_id}", remedy=remedy)


def bundle_differences(run: Run, before: EvaluationResult) -> Iterator[str]:
    """Each difference of the rows and the code of ``run`` from those of earlier runs."""
    known = [row for row in run.rows if row.row.id in before.fingerprints]
    found: dict[str, list[str]] = {}
    for row in known:
        for difference in _row_differences(row, before, run):
            found.setdefault(difference, []).append(row.row.id)
    yield from (f"row {ids[0]}: {one}{also_in_more_rows(len(ids) - 1)}" for one, ids in found.items())
    yield from _code_differences(run.code, before.code, is_same_bundle=bool(known))


def listed(heading: str, differences: Sequence[str]) -> str:
    more = [f"and {count(len(differences) - SHOWN, 'more difference')}"] if len(differences) > SHOWN else []
    return "\n  ".join([heading, *differences[:SHOWN], *more])


def _row_differences(row: PlannedRow, stored: EvaluationResult, run: Run) -> Iterator[str]:
    before, now = stored.fingerprints[row.row.id], row.fingerprints
    if before["row"] != now["row"]:
        inside = (name.partition("/") for name in stored.code if not name.startswith("../"))
        former = next((folder for folder, slash, _ in inside if slash), "")
        was = result_fields(stored.fields_of(row.row.id) or {}, former)
        yield from _field_differences(row.row, was, result_fields(row.fields, run.folder))
        for name in _unequal(before["prompts"], now["prompts"]):
            yield _changed_file(f"{run.folder}/{name}")
    if before["seed"] != now["seed"]:
        yield _seed_difference(row, before["seed"], stored.folder / ".bases")
    if before["tools"] != now.get("tools", before["tools"]):
        yield _tool_difference(stored.tools_of(row.row.id) or [], run.toolsets[now["tools"]])
    if before["default_reward"] != now.get("default_reward", before["default_reward"]):
        yield (
            "there was no reward.py, so that its fields decided, and is one now"
            if before["default_reward"]
            else "its reward.py is gone, so that its fields would decide now"
        )


def _field_differences(row: TaskRow, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in _unequal(was, now):
        given = getattr(row, name, None)
        label = f"{name} ({given})" if isinstance(given, str) and given.startswith("file:") else name
        if name not in was:
            change = f"was not given, is {one_line(canonical(now[name]), LONGEST)}"
        elif name not in now:
            change = f"was {one_line(canonical(was[name]), LONGEST)}, is not given any more"
        else:
            change = "was {}, is {}".format(*apart(canonical(was[name]), canonical(now[name])))
        yield f"its fields have changed: {label} {change}"


def _unequal(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [name for name in {**now, **before} if canonical(before.get(name)) != canonical(now.get(name))]


def _seed_difference(row: PlannedRow, before: str, bases: Path) -> str:
    """``before`` is the start of the key that the seed had; its base shows what it was."""
    seed = row.seed
    calls = ", or the setup and first calls of the row" if row.row.setup or seed.opening else ""
    fault = f"its seed has changed ({seed.origin}{calls})"
    if seed.of_today:
        return f"{fault}: it reads the clock; a field `now` gives a row its time"
    now, then = bases / f"{seed.key}.db", list(bases.glob(f"{before}*.db"))
    if len(then) != 1 or not now.exists():
        return fault
    command = ["reward-kit", "db", "changes", str(from_here(now)), "--base", str(from_here(then[0]))]
    return f"{fault}; to see how: {shlex.join(command)}"


def _tool_difference(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> str:
    was, is_now = ({tool["function"]["name"]: tool["function"] for tool in tools} for tools in (before, now))
    changes = [
        f"{name} {'is new' if name not in was else 'is gone' if name not in is_now else 'is another'}"
        for name in _unequal(was, is_now)
    ]
    return f"the names, descriptions or parameters of its tools have changed: {', '.join(changes)}"


def _code_differences(
    now: Mapping[str, str], before: Mapping[str, str], *, is_same_bundle: bool
) -> Iterator[str]:
    """Files that have changed, or rules that are new or gone; modules not imported before are none."""
    key = _module if is_same_bundle else str
    known = {key(name): fingerprint for name, fingerprint in before.items()}
    for name, fingerprint in now.items():
        if known.get(key(name), fingerprint) != fingerprint:
            yield _changed_file(name)
    rules = {name for name in known.keys() ^ set(map(key, now)) if name.endswith(RULES)}
    yield from (f"{name} {'is gone' if name in known else 'is new'}" for name in sorted(rules))


def _module(name: str) -> str:
    """The import path of a file in the bundle; ``reward.py`` and ``reward/__init__.py`` have the same."""
    folder, _, path = name.partition("/")
    inner = name if folder == ".." or not path else path
    return inner.removesuffix("/__init__.py").partition(".py")[0]


def _changed_file(name: str) -> str:
    return f"{name} has changed"
