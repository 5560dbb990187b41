"""``validate``: a bundle's toolsets, its seeds, and its rows one by one."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import count
from reward_kit.agent.checks.row_check import Level, Verdict, row_verdicts, table_names
from reward_kit.agent.database import Database
from reward_kit.errors import BundleError, DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reward_kit.agent.bundles.bundle import Task, TaskBundle

AT_ONCE = 10
"""Rows that are played at the same time."""
DUMP_BEGINS = "PRAGMA foreign_keys=OFF;\nBEGIN TRANSACTION;"
"""The first lines of a dump that the program sqlite3 has written."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: the result of checking ``place``.

    ``rows`` are the ids of all rows that have it, ``kind`` is its name in an audit.
    """

    level: Level
    place: str
    text: str
    rows: tuple[str, ...] = ()
    kind: str = "invalid"

    def __str__(self) -> str:
        more = f" (also in {', '.join(self.rows[1:])})" if len(self.rows) > 1 else ""
        return f"{self.level}: {self.place}: {self.text}{more}"


@dataclass(slots=True)
class ValidationReport:
    """The findings, in the order of checking. ``tell`` is called with each as it is made.

    If ``strict``, warnings become errors.
    """

    strict: bool = False
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
        """``{"ok", "findings": [{"level", "place", "text", "rows", "kind"}]}``."""
        return {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}

    def add(
        self, level: Level, place: str, text: str, rows: tuple[str, ...] = (), kind: str = "invalid"
    ) -> None:
        """Note the result of one check."""
        level = "error" if self.strict and level == "warning" else level
        finding = Finding(level, place, text, rows, kind)
        self.findings.append(finding)
        if self.tell is not None:
            self.tell(finding)


async def validate(
    bundle: TaskBundle,
    *,
    tasks: Sequence[Task] | None = None,
    strict: bool = False,
    output_dir: str | Path | None = None,
    tell: Callable[[Finding], None] | None = None,
) -> ValidationReport:
    """Check an open bundle, whose rows and imports are in order already; of its ``tasks`` these, or all.

    Per toolset: its schemas. Per seed: that it loads. Per row: that ``end_goal_sql`` runs on the seeded
    state, that the gold actions can be called and lead to reward 1, and that doing nothing does not. A fault
    that rows share is one finding, after the rows that are in order. Bases are built in a temporary folder
    inside ``output_dir`` (default: the system's), which is removed again. If ``strict``, warnings become
    errors. ``tell`` is called with each finding as it is made.
    """
    tasks = bundle.tasks if tasks is None else tasks
    report = ValidationReport(strict, tell=tell)
    for warning in bundle.warnings:
        place, _, text = warning.partition(": ")
        report.add("warning", place, text)
    _check_toolsets(tasks, report)
    if output_dir is not None:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="validate-", dir=output_dir) as folder, ExitStack() as opened:
        seeded = list(seeded_tasks(tasks, Path(folder), report, opened))
        names = frozenset[str]().union(*map(table_names, {base: None for _, base in seeded}))
        shared: dict[Verdict, list[Task]] = {}
        texts: dict[str, str] = {}  # many rows have the same
        for start in range(0, len(seeded), AT_ONCE):
            batch = seeded[start : start + AT_ONCE]
            checks = [row_verdicts(task, base, names) for task, base in batch]
            for (task, _), verdicts in zip(batch, await asyncio.gather(*checks), strict=True):
                faults = [verdict for verdict in verdicts if verdict.level != "ok"]
                for fault in faults:
                    shared.setdefault(fault, []).append(task)
                if not faults:
                    text = "; ".join(verdict.text for verdict in verdicts)
                    text = texts.setdefault(text, text)
                    report.add("ok", f"{task.row.place} {task.row.id}", text, (task.row.id,))
        for verdict, having in shared.items():
            first, rows = having[0].row, tuple(task.row.id for task in having)
            report.add(verdict.level, f"{first.place} {first.id}", verdict.text, rows, verdict.kind)
    return report


def _check_toolsets(tasks: Sequence[Task], report: ValidationReport) -> None:
    for registry in {id(task.registry): task.registry for task in tasks}.values():
        place, names = f"toolset {registry.name!r}", list(registry.tools)
        if names:
            report.add("ok", place, f"{count(len(names), 'tool')}: {', '.join(names)}")
        else:
            report.add("warning", place, "has no tools")
        for tool in registry.tools.values():
            if tool.undescribed:
                text = f"tool {tool.name}: no model is told {'; '.join(tool.undescribed)}"
                report.add("warning", place, text)


def seeded_tasks(
    tasks: Sequence[Task], folder: Path, report: ValidationReport, opened: ExitStack
) -> Iterator[tuple[Task, Database]]:
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
        base = Database.seed(path, seed.sql, script=seed.script, origin=seed.origin, now=seed.now, mode=mode)
    except (BundleError, DatabaseError) as error:
        report.add("error", f"seed of row {task.row.id!r}", str(error))
        return None
    report.add("ok", f"seed {seed.origin}", f"loads, {path.stat().st_size // 1024} KiB")
    if seed.of_today:
        text = f"reads the clock, and row {task.row.id!r} has no `now`: it is built anew each day, "
        text += "so a run can be resumed or compared on that day alone"
        report.add("warning", f"seed {seed.origin}", text)
    opened.enter_context(base)
    declared = "SELECT count(*) FROM sqlite_schema m, pragma_foreign_key_list(m.name) WHERE m.type = 'table'"
    told = [base.read_only().execute(sql).scalar() for sql in (declared, "PRAGMA foreign_keys")]
    if DUMP_BEGINS in seed.sql and told[0] and not told[1]:
        text = "the tables declare foreign keys that are not enforced: "
        text += "add PRAGMA foreign_keys = ON; as the last line"
        report.add("warning", f"seed {seed.origin}", text)
    return base
