"""``validate``: a bundle's toolsets, its seeds, and its rows one by one."""

from __future__ import annotations

import asyncio
import tempfile
import warnings
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.database import Database
from reward_kit.agent.validation.gold_check import Level, Verdict, played_verdicts
from reward_kit.errors import BundleError, DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reward_kit.agent.bundles.bundle import Task, TaskBundle


AT_ONCE = 10
"""Rows that are played at the same time."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: the result of checking ``place``."""

    level: Level
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.level}: {self.place}: {self.text}"


@dataclass(slots=True)
class ValidationReport:
    """The findings, in the order of checking. ``tell`` is called with each as it is made."""

    findings: list[Finding] = field(default_factory=list)
    tell: Callable[[Finding], None] | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """True if there is no error; warnings do not count."""
        return not self.errors

    @property
    def errors(self) -> list[Finding]:
        """The findings that have to be fixed."""
        return [finding for finding in self.findings if finding.level == "error"]

    @property
    def warnings(self) -> list[Finding]:
        """The findings that may be intended."""
        return [finding for finding in self.findings if finding.level == "warning"]

    def lines(self) -> list[str]:
        """One readable line for each check."""
        return [str(finding) for finding in self.findings]

    def to_json(self) -> dict[str, Any]:
        """``{"ok", "findings": [{"level", "place", "text"}]}``."""
        return {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}

    def add(self, level: Level, place: str, text: str) -> None:
        """Note the result of one check."""
        finding = Finding(level, place, text)
        self.findings.append(finding)
        if self.tell is not None:
            self.tell(finding)


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
        place, _, text = warning.partition(": ")
        report.add("warning", place, text)
    _check_toolsets(tasks, report)
    if output_dir is not None:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="validate-", dir=output_dir) as folder,
        ExitStack() as opened,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always", RuntimeWarning)
        bases = _seed_all(tasks, Path(folder), report, opened)
        await _check_tasks(tasks, bases, report)
    for other in caught:
        text = str(other.message)
        if "was never awaited" in text:
            place = f"{Path(other.filename).name}:{other.lineno}"
            report.add("error", place, f"{text.partition(chr(10))[0]}: an await is missing")
        else:
            warnings.showwarning(other.message, other.category, other.filename, other.lineno)
    return report


def _check_toolsets(tasks: Sequence[Task], report: ValidationReport) -> None:
    for registry in {id(task.registry): task.registry for task in tasks}.values():
        place, names = f"toolset {registry.name!r}", list(registry.tools)
        if names:
            many = "1 tool" if len(names) == 1 else f"{len(names)} tools"
            report.add("ok", place, f"{many}: {', '.join(names)}")
        else:
            report.add("warning", place, "has no tools")
        for tool in registry.tools.values():
            if tool.undescribed:
                report.add(
                    "warning", place, f"tool {tool.name}: no model is told {'; '.join(tool.undescribed)}"
                )


def _seed_all(
    tasks: Sequence[Task], folder: Path, report: ValidationReport, opened: ExitStack
) -> dict[tuple[str, str], Database | None]:
    """An open base for each distinct seed; None for one that does not load."""
    bases: dict[tuple[str, str], Database | None] = {}
    for task in tasks:
        key, seed = (task.seed.key, task.registry.database), task.seed
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
            consequence = "so a run can be resumed or compared on that day alone"
            report.add("warning", f"seed {seed.origin}", f"{text}, {consequence}")
    return bases


async def _check_tasks(
    tasks: Sequence[Task], bases: dict[tuple[str, str], Database | None], report: ValidationReport
) -> None:
    """Add the findings about the rows in their order; ``AT_ONCE`` of them are played at a time.

    A row that is in order has one line, any other a line for each finding.
    """
    seeded = [
        (task, base) for task in tasks if (base := bases[(task.seed.key, task.registry.database)]) is not None
    ]
    for start in range(0, len(seeded), AT_ONCE):
        batch = seeded[start : start + AT_ONCE]
        for (task, _), verdicts in zip(batch, await asyncio.gather(*starmap(_verdicts, batch)), strict=True):
            levels = [level for level, _ in verdicts]
            if "error" not in levels:
                worst: Level = "warning" if "warning" in levels else "ok"
                verdicts = [(worst, "; ".join(text for _, text in verdicts))]
            for level, text in verdicts:
                report.add(level, f"{task.row.place} {task.row.id}", text)


async def _verdicts(task: Task, base: Database) -> list[Verdict]:
    from sqlalchemy.exc import SQLAlchemyError

    if task.row.end_goal_sql is not None:
        with base.fork(now=task.row.now) as fork:
            try:
                fork.read_only().execute(task.row.end_goal_sql).scalar()
            except (DatabaseError, SQLAlchemyError) as error:
                return [("error", f"end_goal_sql does not run: {str(error).partition(chr(10))[0]}")]
    return await played_verdicts(task, base)
