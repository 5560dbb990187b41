"""What is no longer as it was when an evaluation began, so that results of now do not belong with its own."""

from __future__ import annotations

import re
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.bundles.dataset import also_in_more_rows
from reward_kit.agent.bundles.seed import SeedSource
from reward_kit.agent.bundles.seed_script import SeedScript
from reward_kit.agent.evaluation_config import OPTIONS
from reward_kit.agent.reports.wording import count, from_here, one_line
from reward_kit.agent.runs.code_fingerprints import is_same_module
from reward_kit.agent.runs.comparison import LONGEST, apart
from reward_kit.agent.runs.resume import (
    PROMPTS,
    canonical,
    field_fingerprints,
    row_fields,
    row_fingerprint,
)
from reward_kit.agent.runs.rollout_record import load_rollout
from reward_kit.errors import StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reward_kit.agent.bundles.seed import Seed
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.runs.evaluation_log import LoggedEvaluation
    from reward_kit.agent.runs.resume import Header

    Fields = Mapping[str, Any]

SHOWN = 30
"""Differences that are told one by one."""
MOST_READ = 1000
"""Trajectories that are read for what their rows were then."""
_REWARD_CAME = "there was no reward.py, so that its end_goal_sql decided, and is one now"
_REWARD_GONE = "its reward.py is gone, so that its end_goal_sql would decide now"
_ANY_PROMPT = f"{PROMPTS}user*.txt"


def check_same(header: Header, logged: LoggedEvaluation, tasks: Sequence[Task], root: Path) -> None:
    """Raise ``UsageError`` that shows the differences if results of ``header``, which is that of ``tasks``,
    do not belong with those of the log. ``root`` is the runs folder.

    Rows may be added and left out, more rollouts asked for, the bundle's folder moved and renamed; every
    other difference would mix results.
    """
    found = _configuration_differences(header, logged.headers[0]["configuration"])
    found += _Rows(logged, root).differences(header, tasks)
    for earlier in logged.headers:
        found += _code_differences(header, earlier)
    differences = list(dict.fromkeys(found))
    if not differences:
        return
    remedy = "\nUndo the changes, or start a new evaluation (another --eval-id, no --resume)."
    if set(differences) <= {_changed_file(file) for file in _reward_files(tasks)}:
        remedy += (
            f" What is finished is judged by the reward of now with: reward-kit rescore {header.eval_id}"
        )
    lines = differences[:SHOWN]
    if len(differences) > SHOWN:
        lines.append(f"and {count(len(differences) - SHOWN, 'more difference')}")
    raise UsageError(
        "\n  ".join(["cannot be continued, because results would be mixed:", *lines]),
        place=f"evaluation {header.eval_id}",
        remedy=remedy,
    )


def _configuration_differences(header: Header, earlier: Mapping[str, Any]) -> list[str]:
    differences = []
    for name, option in OPTIONS.items():
        if not option.fixed or name not in earlier:
            continue
        before, now = (canonical(value.get(name)) for value in (earlier, header.configuration))
        if before != now:
            differences.append(f"{option.flag} was {before}, is {now}")
    return differences


class _Rows:
    """Tells rows from those of a log. It holds fingerprints; what was in them is in the trajectories."""

    def __init__(self, logged: LoggedEvaluation, root: Path) -> None:
        self._root = root
        self._headers = logged.headers
        self._files = {outcome.row_id: outcome.file for outcome in logged.outcomes if outcome.judged}
        self._read: dict[str, Fields | None] = {}
        self._toolsets = {
            fingerprint: tools
            for earlier in logged.headers
            for fingerprint, tools in earlier.get("toolsets", {}).items()
        }

    def differences(self, header: Header, tasks: Sequence[Task]) -> Iterator[str]:
        """A line for each difference, with the first row that has it."""
        rows: dict[str, dict[str, None]] = {}
        for earlier in self._headers:
            for task in tasks:
                row_id = task.row.id
                if row_id in earlier["rows"]:
                    for difference in self._of_row(task, header, earlier):
                        rows.setdefault(difference, {})[row_id] = None
        for difference, ids in rows.items():
            yield f"row {next(iter(ids))}: {difference}{also_in_more_rows(len(ids) - 1)}"

    def _of_row(self, task: Task, header: Header, earlier: Mapping[str, Any]) -> Iterator[str]:
        before, now = earlier["rows"][task.row.id], header.rows[task.row.id]
        if before["row"] != now["row"]:
            yield from self._field_differences(task, before, earlier["code"])
        if before["seed"] != now["seed"]:
            yield _seed_difference(task, before["seed"], earlier["created"], self._root / ".bases")
        if before["tools"] != now["tools"]:
            told = _tool_differences(self._toolsets.get(before["tools"], ()), header.toolsets[now["tools"]])
            what = "the names, descriptions or parameters of its tools have changed"
            yield f"{what}: {'; '.join(told)}" if told else what
        was_default = before.get("default_reward", now["default_reward"])  # logs once said nothing of it
        if was_default != now["default_reward"]:
            yield _REWARD_CAME if was_default else _REWARD_GONE

    def _field_differences(
        self, task: Task, before: Mapping[str, Any], code: Mapping[str, str]
    ) -> Iterator[str]:
        readings = _readings(task, code)
        if any(row_fingerprint(fields, task.user_prompts) == before["row"] for fields in readings):
            return
        fields, then = readings[0], self._fields_then(task.row.id)
        changed = _changed(task, fields, then, before)
        if not changed:
            yield "its fields have changed"
        for name in changed:  # each by itself: many rows may have the one in common
            if name.startswith(PROMPTS):
                yield _changed_file(f"{task.folder.name}/{name}")
            else:
                yield f"its fields have changed: {_told(task, name, fields, then)}"

    def _fields_then(self, row_id: str) -> Fields | None:
        """The row as one of its rollouts got it; None where no trajectory can be read."""
        if row_id not in self._read and row_id in self._files and len(self._read) < MOST_READ:
            try:
                self._read[row_id] = row_fields(load_rollout(self._root / self._files[row_id]).fields)
            except (StorageError, AttributeError):  # the latter: written by other hands
                self._read[row_id] = None
        return self._read.get(row_id)


def _readings(task: Task, code: Mapping[str, str]) -> list[Fields]:
    """The row's fields, the likeliest first: as they are, and as under other names of the bundle's folder."""
    fields, name = row_fields(task.row.reward_fields()), task.folder.name
    folders = dict.fromkeys(module.partition("/")[0] for module in code if "/" in module)
    renamed = [_renamed(fields, name, folder) for folder in folders if folder != name]
    return [fields, *renamed] if name in folders else [*renamed, fields]


def _renamed(fields: Fields, name: str, folder: str) -> Fields:
    """The fields if the bundle's folder ``name`` were called ``folder``: imports begin with it."""
    start = re.compile(rf"{re.escape(name)}(?=[.:]|$)")
    imports = {field: fields[field] for field in ("toolset", "reward") if field in fields}
    others = {field: folder + value[len(name) :] for field, value in imports.items() if start.match(value)}
    return {**fields, **others}


def _changed(task: Task, fields: Fields, then: Fields | None, before: Mapping[str, Any]) -> list[str]:
    """The names of the fields and prompts that are not the same; none where nothing tells them."""
    if "fields" in before:
        return _unequal(before["fields"], field_fingerprints(fields, task.user_prompts))
    if then is None:  # logs once had no fingerprint of each field
        return []
    is_same_otherwise = row_fingerprint(then, task.user_prompts) == before["row"]
    names = _unequal(field_fingerprints(then, {}), field_fingerprints(fields, {}))
    return names if is_same_otherwise else [*names, _ANY_PROMPT]


def _unequal(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [name for name in {**now, **before} if before.get(name) != now.get(name)]


def _told(task: Task, name: str, fields: Fields, then: Fields | None) -> str:
    """``max_steps was 30, is 20``; a file's name beside the field that it is the text of."""
    written = getattr(task.row, name, None)
    is_file = isinstance(written, str) and written.startswith("file:")
    label = f"{name} ({written})" if is_file else name
    if then is None:
        return label
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


def _seed_difference(task: Task, before: str, created: float, bases: Path) -> str:
    """``before`` is the start of the key that the seed had; its base shows what it was."""
    seed = task.seed
    what = f"its seed has changed ({seed.origin})"
    day = datetime.fromtimestamp(created, timezone.utc).date().isoformat()
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


def _code_differences(header: Header, earlier: Mapping[str, Any]) -> Iterator[str]:
    is_same_bundle = not header.rows.keys().isdisjoint(earlier["rows"])
    for module, fingerprint in header.code.items():
        if fingerprint not in (_known(module, earlier["code"], is_same_bundle) or {fingerprint}):
            yield _changed_file(module)
        elif module not in earlier["code"]:
            hidden = [name for name in earlier["code"] if is_same_module(name, module)]
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


def _reward_files(tasks: Sequence[Task]) -> set[str]:
    """The modules of rewards, as the log names them."""
    found = set()
    for task in tasks:
        module = sys.modules.get(str(getattr(task.reward, "__module__", None)))
        file = Path(getattr(module, "__file__", None) or "")
        if task.folder in file.parents:
            found.add(f"{task.folder.name}/{file.relative_to(task.folder).as_posix()}")
    return found
