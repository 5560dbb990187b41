"""Refuse to resume an evaluation if its data, settings or code have changed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import apart, count, from_here, one_line
from reward_kit.agent.bundles.seed import SeedScript, SeedSource
from reward_kit.agent.config import OPTIONS
from reward_kit.agent.rows.task_row import also_in_more_rows
from reward_kit.agent.store.resume import canonical, result_fields
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.rows.task_row import TaskRow
    from reward_kit.agent.store.resume import PlannedRow, Run
    from reward_kit.agent.store.stored_evaluation import StoredEvaluation

SHOWN = 30
"""Differences that an error lists."""
LONGEST = 80
"""Characters of a value that a difference shows."""


def check_same(run: Run, before: StoredEvaluation) -> None:
    """Raise ``UsageError`` with the differences between ``run`` and earlier runs.

    Rows may be added and left out, more rollouts asked for, the
    bundle's folder moved and renamed; any other difference would mix results.
    """
    options = _option_differences(run.configuration, before.configuration)
    differences = [*options, *bundle_differences(run, before)]
    if not differences:
        return
    remedy = "\nUndo the changes, or start a new evaluation (another --eval-id, no --resume)."
    if set(differences) <= {_changed_file(file) for file in run.reward_files}:
        remedy += f" What is finished is judged by the reward of now with: reward-kit rescore {run.eval_id}"
    raise UsageError(
        listed("cannot be continued, because results would be mixed:", differences),
        place=f"evaluation {run.eval_id}",
        remedy=remedy,
    )


def bundle_differences(run: Run, before: StoredEvaluation) -> Iterator[str]:
    """Each difference of the rows and the code of ``run`` from those of earlier runs."""
    known = [row for row in run.rows if row.row.id in before.fingerprints]
    found: dict[str, list[str]] = {}
    for row in known:
        for difference in _row_differences(row, before, run):
            found.setdefault(difference, []).append(row.row.id)
    yield from (f"row {ids[0]}: {one}{also_in_more_rows(len(ids) - 1)}" for one, ids in found.items())
    yield from _code_differences(run.code, before.code, is_same_bundle=bool(known))


def listed(heading: str, differences: Sequence[str]) -> str:
    """The differences below a heading."""
    lines = [heading, *differences[:SHOWN]]
    if len(differences) > SHOWN:
        lines.append(f"and {count(len(differences) - SHOWN, 'more difference')}")
    return "\n  ".join(lines)


def _option_differences(now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    for name, option in OPTIONS.items():
        if option.fixed and name in before:
            was, is_now = canonical(before[name]), canonical(now.get(name))
            if was != is_now:
                yield f"{option.flag} was {was}, is {is_now}"


def _row_differences(row: PlannedRow, stored: StoredEvaluation, run: Run) -> Iterator[str]:
    """Each difference of a row from what is ``stored`` of it."""
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
    if before["tools"] != now["tools"]:
        yield _tool_difference(stored.tools_of(row.row.id) or [], run.toolsets[now["tools"]])
    if before["default_reward"] != now["default_reward"]:
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
            before, after = apart(canonical(was[name]), canonical(now[name]))
            change = f"was {before}, is {after}"
        yield f"its fields have changed: {label} {change}"


def _unequal(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The names whose values differ."""
    return [name for name in {**now, **before} if canonical(before.get(name)) != canonical(now.get(name))]


def _seed_difference(row: PlannedRow, before: str, bases: Path) -> str:
    """``before`` is the start of the key that the seed had; its base shows what it was."""
    seed = row.seed
    calls = ", or the setup and first calls of the row" if row.row.setup or seed.opening else ""
    fault = f"its seed has changed ({seed.origin}{calls})"
    script = seed.script if isinstance(seed.script, SeedScript) else None
    if row.row.now is None and SeedSource(seed.sql, script).reads_clock:
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
    """Modules that have changed; those that no earlier run imported are none."""
    key = _module if is_same_bundle else str
    known = {key(name): fingerprint for name, fingerprint in before.items()}
    for name, fingerprint in now.items():
        if known.get(key(name), fingerprint) != fingerprint:
            yield _changed_file(name)


def _module(name: str) -> str:
    """The import path of a file below the bundle's folder, which may have another name by now.

    ``t/reward.py`` and ``t/reward/__init__.py`` are imported by the same name.
    """
    folder, _, path = name.partition("/")
    inner = name if folder == ".." or not path else path
    return inner.removesuffix("/__init__.py").partition(".py")[0]


def _changed_file(name: str) -> str:
    return f"{name} has changed"
