"""Refuse to resume an evaluation when its data, settings or code have changed."""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import apart, count, from_here, one_line
from reward_kit.agent.bundles.seed import SeedScript, SeedSource
from reward_kit.agent.bundles.task_row import also_in_more_rows
from reward_kit.agent.config import OPTIONS
from reward_kit.agent.storage.fingerprints import is_same_module
from reward_kit.agent.storage.resume import canonical, result_fields
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.bundles.seed import Seed
    from reward_kit.agent.bundles.task import PlannedTask
    from reward_kit.agent.storage.store import Run, StoredRow

    Fields = Mapping[str, Any]

SHOWN = 30
"""Differences that are told one by one."""
LONGEST = 80
"""Characters of a value that a difference shows."""
_REWARD_CAME = "there was no reward.py, so that its end_goal_sql decided, and is one now"
_REWARD_GONE = "its reward.py is gone, so that its end_goal_sql would decide now"


def check_same(
    run: Run,
    connection: sqlite3.Connection,
    tasks: Sequence[PlannedTask],
    root: Path,
    reward_files: Collection[str],
) -> None:
    """Raise ``UsageError`` with the differences between ``run``, which is of ``tasks``, and earlier runs.

    ``connection`` reads the evaluation's file, ``root`` is the runs folder, ``reward_files`` name the modules
    of rewards. Rows may be added and left out,
    more rollouts asked for, the bundle's folder moved and renamed; any other difference would mix results.
    """
    earlier = [
        (float(created), json.loads(configuration), json.loads(code), json.loads(toolsets))
        for created, configuration, code, toolsets in connection.execute(
            "SELECT created, configuration, code, toolsets FROM evaluation ORDER BY run"
        )
    ]
    code = {name: value for _, _, modules, _ in reversed(earlier) for name, value in modules.items()}
    toolsets = {name: tools for *_, known in earlier for name, tools in known.items()}
    rows = {row.row_id: row for row in run.rows}
    stored = connection.execute("SELECT row_id, fields, fingerprints FROM rows")
    before = {
        row_id: (json.loads(fields), json.loads(prints))
        for row_id, fields, prints in stored
        if row_id in rows
    }
    found = _configuration_differences(run, earlier[0][1])
    created = earlier[0][0]
    known = _Rows(created, code, toolsets, root)
    found += known.differences(run, [task for task in tasks if task.row.id in before], before)
    found += _code_differences(run, code, is_same_bundle=bool(before))
    differences = list(dict.fromkeys(found))
    if not differences:
        return
    remedy = "\nUndo the changes, or start a new evaluation (another --eval-id, no --resume)."
    if set(differences) <= {_changed_file(file) for file in reward_files}:
        remedy += f" What is finished is judged by the reward of now with: reward-kit rescore {run.eval_id}"
    lines = differences[:SHOWN]
    if len(differences) > SHOWN:
        lines.append(f"and {count(len(differences) - SHOWN, 'more difference')}")
    raise UsageError(
        "\n  ".join(["cannot be continued, because results would be mixed:", *lines]),
        place=f"evaluation {run.eval_id}",
        remedy=remedy,
    )


def _configuration_differences(run: Run, earlier: Mapping[str, Any]) -> list[str]:
    differences = []
    for name, option in OPTIONS.items():
        if not option.fixed or name not in earlier:
            continue
        before, now = (canonical(value.get(name)) for value in (earlier, run.configuration))
        if before != now:
            differences.append(f"{option.flag} was {before}, is {now}")
    return differences


class _Rows:
    """Compares rows with those of earlier runs."""

    def __init__(
        self,
        created: float,
        code: Mapping[str, str],
        toolsets: Mapping[str, list[dict[str, Any]]],
        root: Path,
    ) -> None:
        self._created = created
        self._code = code
        self._toolsets = toolsets
        self._bases = root / ".bases"

    def differences(
        self, run: Run, tasks: Sequence[PlannedTask], before: Mapping[str, tuple[Fields, Mapping[str, Any]]]
    ) -> Iterator[str]:
        """A line for each difference, with the first row that has it."""
        rows = {row.row_id: row for row in run.rows}
        found: dict[str, dict[str, None]] = {}
        for task in tasks:
            row_id = task.row.id
            for difference in self._of_row(task, rows[row_id], run, *before[row_id]):
                found.setdefault(difference, {})[row_id] = None
        for difference, ids in found.items():
            yield f"row {next(iter(ids))}: {difference}{also_in_more_rows(len(ids) - 1)}"

    def _of_row(
        self, task: PlannedTask, row: StoredRow, run: Run, fields: Fields, before: Mapping[str, Any]
    ) -> Iterator[str]:
        now = row.fingerprints
        if before["row"] != now["row"]:
            yield from self._field_differences(task, row, fields)
            for name in _unequal(before["prompts"], now["prompts"]):
                yield _changed_file(f"{task.folder.name}/{name}")
        if before["seed"] != now["seed"]:
            yield _seed_difference(task, before["seed"], self._created, self._bases)
        if before["tools"] != now["tools"]:
            told = _tool_differences(self._toolsets.get(before["tools"], ()), run.toolsets[now["tools"]])
            what = "the names, descriptions or parameters of its tools have changed"
            yield f"{what}: {'; '.join(told)}" if told else what
        if before["default_reward"] != now["default_reward"]:
            yield _REWARD_CAME if before["default_reward"] else _REWARD_GONE

    def _field_differences(self, task: PlannedTask, row: StoredRow, then: Fields) -> Iterator[str]:
        then = result_fields(then)
        readings = _readings(task, result_fields(row.fields), self._code)
        if any(canonical(fields) == canonical(then) for fields in readings):
            return
        fields = readings[0]
        for name in _unequal(then, fields):  # each by itself: many rows may have the one in common
            yield f"its fields have changed: {_difference(task, name, fields, then)}"


def _readings(task: PlannedTask, fields: Fields, code: Mapping[str, str]) -> list[Fields]:
    """The row's fields, the likeliest first: as they are, and as under other names of the bundle's folder."""
    name = task.folder.name
    folders = dict.fromkeys(module.partition("/")[0] for module in code if "/" in module)
    renamed = [_renamed(fields, name, folder) for folder in folders if folder != name]
    return [fields, *renamed] if name in folders else [*renamed, fields]


def _renamed(fields: Fields, name: str, folder: str) -> Fields:
    """The fields if the bundle's folder ``name`` were called ``folder``: imports begin with it."""
    start = re.compile(rf"{re.escape(name)}(?=[.:]|$)")
    imports = {field: fields[field] for field in ("toolset", "reward") if field in fields}
    others = {field: folder + value[len(name) :] for field, value in imports.items() if start.match(value)}
    return {**fields, **others}


def _unequal(before: Fields, now: Fields) -> list[str]:
    """The names whose values differ."""
    return [
        name
        for name in {**now, **before}
        if (name in before) != (name in now) or canonical(before[name]) != canonical(now[name])
    ]


def _difference(task: PlannedTask, name: str, fields: Fields, then: Fields) -> str:
    """``max_steps was 30, is 20``; a file's name beside the field that it is the text of."""
    written = getattr(task.row, name, None)
    is_file = isinstance(written, str) and written.startswith("file:")
    label = f"{name} ({written})" if is_file else name
    if name not in then:
        return f"{label} was not given, is {_cut(fields[name])}"
    if name not in fields:
        return f"{label} was {_cut(then[name])}, is not given any more"
    return f"{label} {_was_is(then[name], fields[name])}"


def _cut(value: Any) -> str:
    return one_line(canonical(value), LONGEST)


def _was_is(before: Any, now: Any) -> str:
    are_texts = isinstance(before, str) and isinstance(now, str)
    texts = (before, now) if are_texts else (canonical(before), canonical(now))
    was, is_now = apart(*texts)
    if was == is_now:
        return "has other white space"
    return f"was {was!r}, is {is_now!r}" if are_texts else f"was {was}, is {is_now}"


def _seed_difference(task: PlannedTask, before: str, created: float, bases: Path) -> str:
    """``before`` is the start of the key that the seed had; its base shows what it was."""
    seed = task.seed
    what = f"its seed has changed ({seed.origin})"
    day = datetime.fromtimestamp(created, UTC).date().isoformat()
    if _key(seed, task.row.now, day).startswith(before):
        return f"{what}: it reads the clock, which gave {day}; a field `now` gives a row its time"
    now = bases / f"{seed.key}.db"
    then = sorted(bases.glob(f"{before}*.db")) if re.fullmatch("[0-9a-f]{16}", before) else []
    if len(then) != 1 or not now.exists():
        return what
    command = ["reward-kit", "db", "changes", str(from_here(now)), "--base", str(from_here(then[0]))]
    return f"{what}; to see how: {shlex.join(command)}"


def _key(seed: Seed, now: str | None, day: str) -> str:
    """The key that ``seed`` had on a day, if the row does not say what the time is; else an empty text."""
    script = seed.script if isinstance(seed.script, SeedScript) else None
    source = SeedSource.of(seed.sql, script)
    return source.at(day).key if source.reads_clock and now is None else ""


def _tool_differences(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[str]:
    """What differs tool by tool; nothing where those of then are not known."""
    if not before:
        return []
    old, new = ({tool["function"]["name"]: tool["function"] for tool in tools} for tools in (before, now))
    told = [f"{name} is gone" for name in old if name not in new]
    told += [f"{name} is new" for name in new if name not in old]
    told += [
        f"{part} of {name} {_was_is(old[name].get(part), new[name].get(part))}"
        for name in new
        for part in new[name]
        if name in old and old[name].get(part) != new[name].get(part)
    ]
    return told


def _code_differences(run: Run, before: Mapping[str, str], *, is_same_bundle: bool) -> Iterator[str]:
    for module, print_now in run.code.items():
        if print_now not in (_known(module, before, is_same_bundle) or {print_now}):
            yield _changed_file(module)
        elif module not in before:
            hidden = [name for name in before if is_same_module(name, module)]
            yield from (f"{name} is {module} now" for name in hidden)


def _known(module: str, code: Mapping[str, str], is_same_bundle: bool) -> set[str]:
    """The fingerprints that a module had; in the same bundle its folder may have had another name."""
    folder, _, path = module.partition("/")
    if module in code:
        return {code[module]}
    if not path or not is_same_bundle or any(name.startswith(f"{folder}/") for name in code):
        return set()
    return {fingerprint for name, fingerprint in code.items() if name.partition("/")[2] == path}


def _changed_file(name: str) -> str:
    return f"{name} has changed"
