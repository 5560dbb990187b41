"""Checking a whole bundle without a model: its toolsets, its seeds, its rows one by one."""

from __future__ import annotations

import tempfile
import warnings
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.agent.bundles.loop_guard import own_tasks_guarded
from reward_kit.agent.garbage import rare_collections
from reward_kit.agent.validation.gold_check import played_verdicts
from reward_kit.agent.validation.report import Finding, Level, ValidationReport
from reward_kit.errors import BundleError, DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reward_kit.agent.bundle import Task, TaskBundle
    from reward_kit.agent.database import Database


async def validate(
    bundle: TaskBundle,
    *,
    tasks: Sequence[Task] | None = None,
    output_dir: str | Path | None = None,
    tell: Callable[[Finding], None] | None = None,
) -> ValidationReport:
    """Check an open bundle, whose rows and imports are in order already; of its ``tasks`` these, or all.

    Per toolset: its schemas. Per seed: that it loads. Per row: that ``end_goal_sql`` runs on the seeded
    state, that the gold actions can be called and lead to reward 1, and that doing nothing does not. Bases
    are built in a temporary folder inside ``output_dir`` (default: the system's), which is removed again.
    ``tell`` is called with each finding as it is made.
    """
    tasks = bundle.tasks if tasks is None else tasks
    report = ValidationReport(tell=tell)
    for warning in bundle.warnings:
        report.add("warning", *_split_place(warning))
    for registry in {id(task.registry): task.registry for task in tasks}.values():
        names = list(registry.tools)
        if names:
            many = "1 tool" if len(names) == 1 else f"{len(names)} tools"
            report.add("ok", f"toolset {registry.name!r}", f"{many}: {', '.join(names)}")
        else:
            report.add("warning", f"toolset {registry.name!r}", "has no tools")
        for tool in registry.tools.values():
            if tool.untold:
                what = f"no model is told {'; '.join(tool.untold)}"
                report.add("warning", f"toolset {registry.name!r}", f"tool {tool.name}: {what}")
    if output_dir is not None:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
    with (
        rare_collections(),
        own_tasks_guarded(),
        tempfile.TemporaryDirectory(prefix="validate-", dir=output_dir) as folder,
        ExitStack() as opened,
    ):
        bases = _seed_all(tasks, Path(folder), report, opened)
        for task in tasks:
            base = bases[_base_key(task)]
            if base is not None:
                await _check_task(task, base, report)
    return report


def _split_place(warning: str) -> tuple[str, str]:
    place, _, text = warning.partition(": ")
    return place, text


def _base_key(task: Task) -> tuple[str, str]:
    return task.seed.key, task.registry.database


def _seed_all(
    tasks: Sequence[Task], folder: Path, report: ValidationReport, opened: ExitStack
) -> dict[tuple[str, str], Database | None]:
    """An open base for each distinct seed; None for one that does not load."""
    from reward_kit.agent.database import Database

    bases: dict[tuple[str, str], Database | None] = {}
    for task in tasks:
        key, seed = _base_key(task), task.seed
        if key in bases:
            continue
        path = folder / f"{len(bases)}.db"
        try:
            base = Database.seed(
                path,
                seed.sql,
                script=seed.script,
                origin=seed.origin,
                now=seed.now,
                mode=task.registry.database,
            )
        except (BundleError, DatabaseError) as error:
            bases[key] = None
            report.add("error", f"seed of row {task.row.id!r}", str(error))
            continue
        bases[key] = opened.enter_context(base)
        report.add("ok", f"seed {seed.origin}", f"loads, {path.stat().st_size // 1024} KiB")
        if seed.of_today:
            text = f"reads the clock, and row {task.row.id!r} has no `now`: it is built anew each day"
            report.add(
                "warning",
                f"seed {seed.origin}",
                f"{text}, so a run can be resumed or compared on that day alone",
            )
    return bases


async def _check_task(task: Task, base: Database, report: ValidationReport) -> None:
    """One line about the row if it is in order, else one for each thing that was found."""
    place = f"{task.row.place} {task.row.id}"
    fault = _goal_fault(task, base)
    if fault is not None:
        report.add("error", place, f"end_goal_sql does not run: {fault}")
        return
    with _never_awaited() as forgotten:
        said = await played_verdicts(task, base)
    said += [("error", f"{text}: an await is missing") for text in dict.fromkeys(forgotten)]
    if any(level == "error" for level, _ in said):
        for level, text in said:
            report.add(level, place, text)
    else:
        worst: Level = "warning" if any(level == "warning" for level, _ in said) else "ok"
        report.add(worst, place, "; ".join(text for _, text in said))


@contextmanager
def _never_awaited() -> Iterator[list[str]]:
    """What Python says meanwhile of coroutines that nobody awaited; its other warnings are shown."""
    forgotten: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        yield forgotten
    for warning in caught:
        text = str(warning.message)
        if "was never awaited" in text:
            forgotten.append(text)
        else:
            warnings.showwarning(text, warning.category, warning.filename, warning.lineno)


def _goal_fault(task: Task, base: Database) -> str | None:
    """What SQLite says against the row's ``end_goal_sql`` on the seeded state."""
    from sqlalchemy.exc import SQLAlchemyError

    if task.row.end_goal_sql is None:
        return None
    with base.fork(now=task.row.now) as fork:
        try:
            fork.read_only().execute(task.row.end_goal_sql).scalar()
        except (DatabaseError, SQLAlchemyError) as error:
            return str(error).partition("\n")[0]
    return None
