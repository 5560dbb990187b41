"""``validate``: a bundle's toolsets, its seeds, and its rows one by one; and what ``deep`` adds."""

from __future__ import annotations

import re
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.places import shown_line
from reward_kit.agent.base.worker_thread import run_sync
from reward_kit.agent.bundles.bundle import SKIPPED
from reward_kit.agent.bundles.solo import with_joined_tools
from reward_kit.agent.checks.code_check import idle_fields, noting_prints, untried_tools
from reward_kit.agent.checks.findings import KINDS, ValidationReport
from reward_kit.agent.checks.row_batches import RowBatches
from reward_kit.agent.checks.row_check import Repeatable, table_names
from reward_kit.agent.database import Database
from reward_kit.agent.rows.message_check import show
from reward_kit.errors import BundleError, DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reward_kit.agent.bundles.bundle import Task, TaskBundle
    from reward_kit.agent.checks.row_check import RowCheck
    from reward_kit.agent.store.stored_evaluation import Named

Seeded = tuple["Task", Database]
"""A task and the base of its seed."""

_DUMP = re.compile(r"\s*(PRAGMA\s+foreign_keys\s*=\s*(OFF|0)\s*;|BEGIN TRANSACTION;)", re.IGNORECASE)
"""The beginning of a dump that the program sqlite3 or Python's iterdump has written."""
_PLACED = re.compile(r"(?P<place>\S+:\d+): (row '(?P<row>[^']*)', )?(?P<text>.*)", re.DOTALL)


def validate(bundle: TaskBundle, **options: Any) -> ValidationReport:
    """As ``validate_async``, for code without an event loop."""
    return run_sync(validate_async(bundle, **options))


async def validate_async(
    bundle: TaskBundle,
    *,
    deep: bool = False,
    tasks: Sequence[Task] | None = None,
    strict: bool = False,
    against: Sequence[str | Path] | None = None,
    evaluations: Sequence[Named] = (),
    output_dir: str | Path = "runs",
    progress: Callable[[str, int, int], None] | None = None,
) -> ValidationReport:
    """Check an open bundle, whose rows and imports are in order already; of its ``tasks`` these, or all.

    Per toolset: its schemas. Per seed: that it loads. Per row: that ``end_goal_sql`` runs on the seeded
    state, that the gold actions can be called and lead to reward 1, and that doing nothing does not. If
    ``deep``, it also looks for rows that are sound in form and measure the wrong thing: it plays mutants of
    the gold calls, and calls reading tools. ``against`` are other datasets that should have no row in common
    with this one (default: all others of the folder), ``evaluations`` finished ones of the bundle, in
    ``output_dir``: both make it ``deep``. A row keeps findings back with
    ``"metadata": {"audit": {"accept": [KIND, …]}}``; no row keeps back an error of the first level.

    If ``strict``, warnings become errors. ``progress`` is called with the work, the number of rows that are
    done, and of all. Raises ``UsageError`` for an evaluation and ``BundleError`` for a dataset that does not
    exist.
    """
    deep = deep or bool(against) or bool(evaluations)
    tasks = bundle.tasks if tasks is None else tasks
    told = progress or (lambda _work, _done, _all: None)
    report = ValidationReport(bundle.folder.name, strict, deep, n_rows=len(tasks))
    report.accepted = {task.row.id: _accepted(task, deep=deep) for task in tasks if task.row.metadata}
    _check_fields(bundle, tasks, report)
    _check_toolsets(tasks, report)
    with (
        tempfile.TemporaryDirectory(prefix="validate-") as folder,
        ExitStack() as opened,
        noting_prints(bundle.folder) as printed,
    ):
        seeded = list(_seeded(tasks, Path(folder), report, opened))
        names = frozenset[str]().union(*map(table_names, {base: None for _, base in seeded}))
        number = 0
        async for checked in RowBatches(seeded, Repeatable(deep=deep), names, printed).checks():
            told("checking rows", number, report.n_rows)
            _add(report, seeded[number][0], checked)
            number += 1
        if len(tasks) == len(bundle.tasks) and all(one.kind != "seed" for one in report.errors):
            async for place, text in untried_tools(seeded):
                report.add("untried-tool", place, text)
        if deep:
            from reward_kit.agent.checks.deep_check import add_duplicates, add_run_findings, check_deeply

            add_duplicates(report, bundle.dataset, [task.row for task in tasks], against)
            add_run_findings(report, evaluations, {task.row.id: task.row for task in tasks}, output_dir)
            await check_deeply(report, seeded, told)
    for place, text in printed.items():
        report.add("prints", place, f"prints {shown_line(text)!r} to standard output")
    return report


async def audit(bundle: TaskBundle, **options: Any) -> ValidationReport:
    """An older name of ``validate_async(bundle, deep=True)``."""
    return await validate_async(bundle, deep=True, **options)


def _accepted(task: Task, *, deep: bool) -> set[str]:
    """The kinds that the row's metadata accept; if ``deep``, ``BundleError`` for anything but such a list."""
    given = task.row.metadata.get("audit", {})
    accepted = given.get("accept", []) if isinstance(given, dict) else None
    if isinstance(accepted, list) and set(map(str, accepted)) <= KINDS.keys():
        return set(accepted)
    if not deep:
        return set()
    raise BundleError(
        f'field "metadata": "audit" is {show(given)}, expected {{"accept": [KIND, …]}}',
        place=f"{task.row.place} {task.row.id}",
        remedy=f"The kinds are {', '.join(KINDS)}.",
    )


def _check_fields(bundle: TaskBundle, tasks: Sequence[Task], report: ValidationReport) -> None:
    for warning in bundle.warnings:
        found = _PLACED.fullmatch(warning)
        place, text = (found["place"], found["text"]) if found else ("", warning)
        if text.endswith(SKIPPED) and len(tasks) == len(bundle.tasks):
            continue  # the play of the gold actions says more
        report.add("field", f"{place} {(found and found['row']) or ''}".rstrip(), text)
    for task in tasks:
        for name, why in idle_fields(task):
            text = f"field {name!r} has no effect: {why}"
            report.add("no-effect", f"{task.row.place} {task.row.id}", text, [task.row.id])


def _add(report: ValidationReport, task: Task, checked: RowCheck) -> None:
    report.with_gold += checked.gold is not None
    report.rewarded += checked.gold is True
    if checked.idle:
        report.idle.append(task.row.id)
    for kind, text, grade in checked.faults:
        is_error = (grade or KINDS[kind].grade) == "error"
        place, rows = f"{task.row.place} {task.row.id}", [task.row.id]
        report.add(kind, place, text, rows, grade=grade, is_accepted=not is_error)


def _check_toolsets(tasks: Sequence[Task], report: ValidationReport) -> None:
    for registry in {id(task.registry): task.registry for task in tasks}.values():
        report.n_tools += len(registry.tools)
        if not registry.tools:
            report.add("toolset", f"toolset {registry.name!r}", "has no tools")
    with_ticket = {(id(task.registry), id(task.user_registry)): task for task in tasks if task.row.ticket}
    for task in with_ticket.values():
        try:
            with_joined_tools(task)
        except BundleError as error:
            report.add("solo", f"{task.row.place} {task.row.id}", str(error), [task.row.id])
    sides = (side for task in tasks for side in (task.registry, task.user_registry))
    for tool in {tool.place: tool for side in sides for tool in side.tools.values()}.values():
        path, _, line = tool.place.rpartition(":")
        for text in tool.undescribed:
            report.add("toolset", f"{Path(path).name}:{line} {tool.name}", text)


def _seeded(
    tasks: Sequence[Task], folder: Path, report: ValidationReport, opened: ExitStack
) -> Iterator[Seeded]:
    """Each task with the base of its seed, unless that does not load; a base is built once."""
    bases: dict[tuple[str, str], Database | None] = {}
    for task in tasks:
        key = task.seed.key, task.registry.database
        if key not in bases:
            bases[key] = _base(task, folder / f"{len(bases)}.db", report, opened)
        base = bases[key]
        if base is not None:
            yield task, base


def _base(task: Task, path: Path, report: ValidationReport, opened: ExitStack) -> Database | None:
    seed, mode = task.seed, task.registry.database
    try:
        faults = seed.write(path)
        base = Database.open(path, mode=mode)
    except (BundleError, DatabaseError) as error:
        report.add("seed", f"seed of row {task.row.id!r}", str(error))
        return None
    if seed.of_today:
        text = f"uses the clock, and row {task.row.id!r} has no `now`: it is built anew each day"
        report.add("daily-seed", f"seed {seed.origin}", text)
    for text in faults:
        report.add("opening", f"row {task.row.id!r}", text)
    opened.enter_context(base)
    declared = "SELECT count(*) FROM sqlite_schema m, pragma_foreign_key_list(m.name) WHERE m.type = 'table'"
    told = [base.read_only().fetch_val(sql) for sql in (declared, "PRAGMA foreign_keys")]
    if _DUMP.match(seed.sql) and told[0] and not told[1]:
        text = "the tables declare foreign keys that are not enforced"
        report.add("foreign-keys", f"seed {seed.origin}", text)
    return base
