"""``audit``: the findings of validation, of each row, of other splits, and of finished evaluations."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.agent.checks.after_runs import add_run_findings
from reward_kit.agent.checks.bundle_check import ValidationReport, seeded_tasks, validate
from reward_kit.agent.checks.duplicates import add_duplicates
from reward_kit.agent.checks.findings import KINDS, AuditReport, RowAudit
from reward_kit.agent.checks.literals import reach_of, unknown_literals, unknown_outputs, unstated_facts
from reward_kit.agent.checks.mutants import Trials, added, alternatives, changed, dropped, moved, pool_of
from reward_kit.agent.checks.playing import play_gold, play_idle
from reward_kit.agent.checks.reach import Reader
from reward_kit.agent.database.changes import IGNORED
from reward_kit.agent.rollout.gold import replay_gold_calls
from reward_kit.agent.rows.message_check import show
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.bundles.bundle import Task, TaskBundle
    from reward_kit.agent.checks.findings import AuditFinding, Grade
    from reward_kit.agent.checks.mutants import Pool
    from reward_kit.agent.database import Database
    from reward_kit.agent.rows.task_row import Action
    from reward_kit.agent.store.stored_evaluation import Named

MOST_OTHERS = 40
"""Calls of other rows that are tried as additions."""


async def audit(
    bundle: TaskBundle,
    *,
    tasks: Sequence[Task] | None = None,
    against: Sequence[str | Path] | None = None,
    evaluations: Sequence[Named] = (),
    output_dir: str | Path = "runs",
) -> AuditReport:
    """Look for rows that are sound in form and measure the wrong thing; of ``tasks`` these, or all.

    ``against`` are other datasets that should have no row in common with this one (default: all others of
    the folder), ``evaluations`` finished ones of the bundle, looked for in ``output_dir``. Raises
    ``UsageError`` if one of them does not exist. A row keeps findings back with
    ``"metadata": {"audit": {"accept": [KIND, …]}}``.
    """
    tasks = bundle.tasks if tasks is None else tasks
    report = AuditReport()
    validated = await validate(bundle, tasks=tasks)
    for finding in validated.findings:
        if finding.level != "ok":
            report.add(finding.kind, finding.place, finding.rows, finding.text, grade=finding.level)
    faulty = {row for finding in validated.errors for row in finding.rows if finding.kind == "invalid"}
    with tempfile.TemporaryDirectory(prefix="audit-") as folder, ExitStack() as opened:
        seeded = list(seeded_tasks(tasks, Path(folder), ValidationReport(), opened))
        auditor = _Auditor(report, seeded)
        for task, base in seeded:
            if task.row.actions is not None and task.row.id not in faulty:
                await auditor.play(task, base)
        for task, base in auditor.played:
            await auditor.audit(task, base)
    add_duplicates(report, bundle.dataset, [task.row for task in tasks], against)
    add_run_findings(report, evaluations, {task.row.id: task.row for task in tasks}, output_dir)
    return _merged(report, tasks)


class _Auditor:
    """The state that rows share: tools known to write, answers of reading tools, values of gold arguments."""

    def __init__(self, report: AuditReport, seeded: Sequence[tuple[Task, Database]]) -> None:
        self.report = report
        self.writing: set[str] = set()
        self.readers: dict[int, Reader] = {}
        self.pool: Pool = pool_of([task.row.actions or () for task, _ in seeded])
        self.played: list[tuple[Task, Database]] = []
        self.more: dict[str, tuple[str, Action]] = {}

    async def play(self, task: Task, base: Database) -> None:
        """Replay the gold calls once, for the tools that write and calls to add to other rows."""
        task = _at_fixed_time(task)
        replay = await replay_gold_calls(task, base, seed=0)
        replay.database.close()
        for action, call in zip(task.row.actions or (), replay.calls, strict=True):
            if call.changes:
                self.writing.add(action.name)
                self.more.setdefault(repr(action), (task.row.id, action))
        self.played.append((task, base))

    async def audit(self, task: Task, base: Database) -> None:
        """Add the findings of one row."""
        row = RowAudit(task.row.id)
        self.report.rows.append(row)
        IGNORED.set(set())
        replay = await replay_gold_calls(task, base, seed=0)
        with replay.database as gold_database, base.fork(seed=0, now=task.row.clock()) as untouched:
            gold = await play_gold(task, base, gold_database)
            if not gold.is_sound:
                return
            idle = await play_idle(task, untouched, gold_database)
            writes = [action.name for action in task.row.actions or () if action.name in self.writing]
            if idle.reached and not gold.changes and writes:
                text = f"doing nothing gives {idle.reward:g}: the gold call {writes[0]} changes nothing"
                self._add(task, "no-op", text)
            elif idle.reached and not gold.changes and task.row.actions and not task.row.outputs:
                text = f"doing nothing gives {idle.reward:g}: gold only reads, and nothing is to be said"
                self._add(task, "no-op", text, grade="note")
            reader = self.readers.setdefault(id(base), Reader(base, self.writing))
            reach = await reach_of(task, gold, reader)
            trials = Trials(task, base, gold_database, gold, self.writing, reach, row)
            others = [action for owner, action in self.more.values() if owner != task.row.id]
            for kind, texts in (
                ("unknown-literal", unknown_literals(task, gold, reach)),
                ("unknown-output", unknown_outputs(task, gold, reach)),
                ("unstated-fact", unstated_facts(reach)),
            ):
                for text in texts:
                    self._add(task, kind, text)
            for mutants in (
                dropped(trials),
                moved(trials),
                changed(trials, self.pool),
                added(trials, others[:MOST_OTHERS]),
                alternatives(trials),
            ):
                async for kind, text in mutants:
                    self._add(task, kind, text)

    def _add(self, task: Task, kind: str, text: str, grade: Grade | None = None) -> None:
        self.report.add(kind, f"{task.row.place} {task.row.id}", [task.row.id], text, grade=grade)


def _at_fixed_time(task: Task) -> Task:
    """The task with a ``now``, so that all plays write the same times."""
    now = task.row.now or datetime.now(UTC).isoformat(timespec="seconds")
    return replace(task, row=replace(task.row, now=now))


def _merged(report: AuditReport, tasks: Sequence[Task]) -> AuditReport:
    """The report without what rows accept, in the order of the rows, a fault of several rows once."""
    accepted = {task.row.id: _accepted(task) for task in tasks}
    merged: dict[tuple[str, str, str], AuditFinding] = {}
    for finding in report.findings:
        rows = [row for row in finding.rows if finding.kind not in accepted.get(row, ())]
        if rows or not finding.rows:
            key = finding.kind, finding.grade, finding.text
            first = merged.get(key, replace(finding, rows=()))
            merged[key] = replace(first, rows=tuple(dict.fromkeys([*first.rows, *rows])))
    places = {task.row.id: place for place, task in enumerate(tasks)}
    findings = sorted(merged.values(), key=lambda one: places.get(one.rows[0], 0) if one.rows else -1)
    return AuditReport(findings, report.rows)


def _accepted(task: Task) -> set[str]:
    """The kinds that the row's metadata accept; raises ``BundleError`` for anything but a list of kinds."""
    given = task.row.metadata.get("audit", {})
    accepted = given.get("accept", []) if isinstance(given, dict) else None
    if not isinstance(accepted, list) or not set(map(str, accepted)) <= KINDS.keys():
        raise BundleError(
            f'field "metadata": "audit" is {show(given)}, expected {{"accept": [KIND, …]}}',
            place=f"{task.row.place} {task.row.id}",
            remedy=f"The kinds are {', '.join(KINDS)}.",
        )
    return set(accepted)
