"""``validate``: a bundle's toolsets, its seeds, and its rows one by one; and what ``deep`` adds."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import re
import signal
import sys
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from reward_kit.agent.base.places import shown_line
from reward_kit.agent.base.worker_thread import sync_twin
from reward_kit.agent.bundles.bundle import SKIPPED, TaskBundle
from reward_kit.agent.bundles.task import with_joined_tools
from reward_kit.agent.checks.code_check import idle_fields, noting_prints, untried_tools
from reward_kit.agent.checks.findings import KINDS, ValidationReport
from reward_kit.agent.checks.row_check import Repeatable, check_row, table_names
from reward_kit.agent.database import Database
from reward_kit.agent.rows.field_checks import show
from reward_kit.errors import BundleError, DatabaseError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from typing import IO

    from reward_kit.agent.bundles.bundle import Task
    from reward_kit.agent.checks.row_check import RowCheck
    from reward_kit.agent.store.layout import Named

_DUMP = re.compile(r"\s*(PRAGMA\s+foreign_keys\s*=\s*(OFF|0)\s*;|BEGIN TRANSACTION;)", re.IGNORECASE)
"""The beginning of a dump that the program sqlite3 or Python's iterdump has written."""
_PLACED = re.compile(r"(?P<place>\S+:\d+): (row '(?P<row>[^']*)', )?(?P<text>.*)", re.DOTALL)


async def validate_async(
    bundle: TaskBundle | str | Path,
    *,
    deep: bool = False,
    tasks: Sequence[Task] | None = None,
    strict: bool = False,
    against: Sequence[str | Path] | None = None,
    evaluations: Sequence[Named] = (),
    output_dir: str | Path = "runs",
    progress: Callable[[str, int, int], None] | None = None,
) -> ValidationReport:
    """Check a bundle, which may be open; of its ``tasks`` these, or all.

    Per toolset: its schemas. Per seed: that it loads. Per row: that ``end_goal_sql`` runs on the seeded
    state, that the gold actions can be called and lead to reward 1, and that doing nothing does not. If
    ``deep``, it also looks for rows that are sound in form and measure the wrong thing: it plays mutants of
    the gold calls, and calls reading tools. ``against`` are other datasets that should have no row in common
    with this one (default: all others of the folder), ``evaluations`` finished ones of the bundle, in
    ``output_dir``: both make it ``deep``. A row keeps findings back with
    ``"metadata": {"audit": {"accept": [KIND, …]}}``; no row keeps back an error of the first level.

    If ``strict``, warnings become errors. ``progress`` is called with the work, the number of rows that are
    done, and of all. Raises ``UsageError`` for an evaluation and ``BundleError`` for a dataset that does not
    exist, and for a bundle that cannot be opened.
    """
    deep = deep or bool(against) or bool(evaluations)
    with ExitStack() as opened:
        if not isinstance(bundle, TaskBundle):
            bundle = opened.enter_context(TaskBundle.load(bundle))
        tasks = bundle.tasks if tasks is None else tasks
        told = progress or (lambda _work, _done, _all: None)
        report = ValidationReport(bundle.folder.name, strict, deep, n_rows=len(tasks))
        report.accepted = {task.row.id: _accepted(task, deep=deep) for task in tasks if task.row.metadata}
        _check_fields(bundle, tasks, report)
        _check_toolsets(tasks, report)
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="validate-")))
        printed = opened.enter_context(noting_prints(bundle.folder))
        seeded = list(_seeded(tasks, folder, report, opened))
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


validate = sync_twin(validate_async)


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
    for tool in {(tool.place, tool.name): tool for side in sides for tool in side.tools.values()}.values():
        path, _, line = tool.place.rpartition(":")
        for text in tool.undescribed:
            report.add("toolset", f"{Path(path).name}:{line} {tool.name}", text)


def _seeded(
    tasks: Sequence[Task], folder: Path, report: ValidationReport, opened: ExitStack
) -> Iterator[tuple[Task, Database]]:
    """Each task with the base of its seed, unless that does not load; a base is built once."""
    bases: dict[tuple[str, str], Database | None] = {}
    for task in tasks:
        key = task.seed.key, task.registry.database
        if key not in bases:
            bases[key] = _base(task, folder / f"{len(bases)}.db", report, opened)
        if (base := bases[key]) is not None:
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


# -- the checks of the rows, in their order: a forked process for each processor reports batches of thousands;
# a batch whose process has ended is checked here, where its fault shows

AT_ONCE = 20
"""Rows that a process plays at the same time."""
BATCH = 200
"""Rows between two reports of a process."""
MANY = 2_000
"""Rows from which other processes check them."""


@dataclass(slots=True)
class RowBatches:
    """Rows, with the arguments of ``check_row``; ``printed`` is what the bundle's code prints."""

    rows: Sequence[tuple[Task, Database]]
    repeatable: Repeatable
    names: frozenset[str]
    printed: dict[str, str]

    async def checks(self) -> AsyncIterator[RowCheck]:
        """The check of each row."""
        with self._forked() as pipes:
            for number, start in enumerate(range(0, len(self.rows), BATCH)):
                received = None
                with suppress(EOFError, pickle.UnpicklingError, IndexError):
                    received, printed = pickle.load(pipes[number % (len(pipes) or 1)])  # noqa: S301 - our own
                    self.printed.update({**printed, **self.printed})
                if received is not None:
                    for checked in received:
                        yield checked
                    continue
                async for checked in self._check(self.rows[start : start + BATCH]):
                    yield checked

    async def _check(self, rows: Sequence[tuple[Task, Database]]) -> AsyncIterator[RowCheck]:
        for start in range(0, len(rows), AT_ONCE):
            some = rows[start : start + AT_ONCE]
            checks = [check_row(task, base, self.repeatable, self.names) for task, base in some]
            for checked in await asyncio.gather(*checks):
                yield checked

    @contextmanager
    def _forked(self) -> Iterator[list[IO[bytes]]]:
        """The pipes from processes that check the rows; none for few, or if this process has threads."""
        pipes: list[IO[bytes]] = []
        children: list[int] = []
        number = 0
        if (
            len(self.rows) >= MANY
            and sys.platform == "linux"
            and not [*Path("/proc/self/task").iterdir()][1:]
        ):
            number = len(os.sched_getaffinity(0))
        try:
            for first in range(number if number > 1 else 0):
                reading, writing = os.pipe()
                sys.stdout.flush()
                child = os.fork()
                if not child:
                    for pipe in pipes:
                        pipe.close()
                    os.close(reading)
                    self._report(range(first * BATCH, len(self.rows), number * BATCH), writing)
                os.close(writing)
                pipes.append(os.fdopen(reading, "rb"))
                children.append(child)
            yield pipes
        finally:
            for pipe, child in zip(pipes, children, strict=True):
                pipe.close()
                os.kill(child, signal.SIGKILL)  # if the checks end early; else it has ended by itself
                os.waitpid(child, 0)

    def _report(self, starts: range, pipe: int) -> NoReturn:
        """Check the batches that begin there, write their checks to ``pipe``, and end this process."""

        async def check() -> None:
            bases = dict[Path, Database]()
            for start in starts:
                own = []
                for task, base in self.rows[start : start + BATCH]:
                    if base.base_path not in bases:
                        bases[base.base_path] = Database.open(base.base_path, mode=base.mode)
                    own.append((task, bases[base.base_path]))
                found = [checked async for checked in self._check(own)]
                sys.stdout.flush()
                with os.fdopen(os.dup(pipe), "wb") as file:
                    pickle.dump((found, self.printed), file)
                gc.collect()

        try:
            gc.freeze()  # a collection would copy the pages of all rows
            gc.disable()
            asyncio.new_event_loop().run_until_complete(check())
        finally:
            os._exit(0)  # what stands below on the stack belongs to the process that forked this one
