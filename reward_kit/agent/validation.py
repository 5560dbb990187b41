"""Checking a whole bundle without a model: it works, and its reward tells right from wrong."""

from __future__ import annotations

import tempfile
import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from reward_kit.agent.agents.gold import GoldAgent, leaves_out
from reward_kit.agent.bundles.loop_guard import own_tasks_guarded
from reward_kit.agent.garbage import rare_collections
from reward_kit.agent.gold import NOT_DONE, replay_gold, replay_gold_calls
from reward_kit.agent.metrics import is_success
from reward_kit.agent.orchestrator import run_rollout
from reward_kit.agent.reports.wording import one_line
from reward_kit.errors import BundleError, DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reward_kit.agent.agents import Agent
    from reward_kit.agent.bundle import Task, TaskBundle
    from reward_kit.agent.database import Changes, Database
    from reward_kit.agent.rollout import Rollout, ToolCall

Level = Literal["ok", "warning", "error"]

_FAULTY = NOT_DONE | {"unknown_tool"}
LATE = timedelta(hours=1, minutes=1, seconds=1)
"""An agent may take that much longer than the gold actions; each part of the time of day is another then."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: what was checked (``place``) and what came out."""

    level: Level
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.level}: {self.place}: {self.text}"


@dataclass(slots=True)
class ValidationReport:
    """What was found, in the order of checking; ``ok`` is False as soon as there is an error.

    ``tell`` is called with each finding as it is made.
    """

    findings: list[Finding] = field(default_factory=list)
    tell: Callable[[Finding], None] | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings do not count."""
        return not self.errors

    @property
    def errors(self) -> list[Finding]:
        """What has to be mended."""
        return [finding for finding in self.findings if finding.level == "error"]

    @property
    def warnings(self) -> list[Finding]:
        """What may be meant so."""
        return [finding for finding in self.findings if finding.level == "warning"]

    def lines(self) -> list[str]:
        """One readable line for each check."""
        return [str(finding) for finding in self.findings]

    def to_json(self) -> dict[str, Any]:
        """``{"ok", "findings": [{"level", "place", "text"}]}``."""
        return {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}

    def add(self, level: Level, place: str, text: str) -> None:
        """Note what came of one check."""
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
        said = await _played_verdicts(task, base)
    said += [("error", f"{text}: an await is missing") for text in dict.fromkeys(forgotten)]
    if any(level == "error" for level, _ in said):
        for level, text in said:
            report.add(level, place, text)
    else:
        worst: Level = "warning" if any(level == "warning" for level, _ in said) else "ok"
        report.add(worst, place, "; ".join(text for _, text in said))


async def _played_verdicts(task: Task, base: Database) -> list[tuple[Level, str]]:
    if task.row.actions is None:
        idle = await _play(task, base, _IdleAgent())
        return [("ok", "no gold actions to replay"), _idle_verdict(idle, gold=None, told=False)]
    late = None if task.row.clock() else datetime.now(timezone.utc) + timedelta(days=1) + LATE
    replay = await replay_gold_calls(task, base, seed=0, now=late)
    with replay.database as gold_database:
        idle = await _play(task, base, _IdleAgent(), gold_database)
        gold = await _play(task, base, GoldAgent(), gold_database)
        times: list[tuple[Level, str]] = []
        if late is not None and not gold.reached and not gold.error:
            gold, times = await _in_time(task, base, gold, gold_database)
        if task.row.outputs and gold.is_sound and gold.changed:
            mute = await _play(task, base, _MuteAgent(), gold_database)
            if mute.reached:
                times.append(("warning", f"saying nothing gives {mute.reward:g} too: {_DEAF}"))
    raised = [call.raised for call in replay.calls]
    idle_verdict = _idle_verdict(idle, gold=gold, told=bool(task.row.outputs))
    return [*_gold_verdicts(task, gold, raised), *times, idle_verdict]


async def _in_time(
    task: Task, base: Database, late: _Played, late_database: Database
) -> tuple[_Played, list[tuple[Level, str]]]:
    """The gold actions with the clock as it is, and what is to be said if only that makes them right.

    Agents do the same later than they are done here: mostly on the same day.
    """
    now = datetime.now(timezone.utc)
    with (
        await replay_gold(task, base, seed=0) as gold_database,
        await replay_gold(task, base, seed=0, now=_other_time_of_day(now)) as later_database,
    ):
        gold = await _play(task, base, GoldAgent(), gold_database)
        if not gold.reached:
            return late, []
        done = gold_database.changes()
        hourly, daily = (_differing(done, other.changes()) for other in (later_database, late_database))
        if (await _play(task, base, GoldAgent(), later_database)).reached:
            level: Level = "warning"
            days = _named(daily - hourly or daily)
            text = f"write the day{days}: agents fail that do the same after midnight"
        else:
            level = "error"
            text = f"write the time{_named(hourly)}, which is another when an agent does the same"
    remedy = "give the row a `now`, or leave it out of what the reward compares"
    return gold, [(level, f"the gold actions {text}: {remedy}")]


def _named(columns: set[str]) -> str:
    return f" ({', '.join(sorted(columns))})" if columns else ""


def _other_time_of_day(moment: datetime) -> datetime:
    """``LATE`` after ``moment``, or before it where that would be another day."""
    later = moment + LATE
    return later if later.date() == moment.date() else moment - LATE


def _differing(changes: Changes, others: Changes) -> set[str]:
    """The columns in which the same rows have changed in another way; tables where rows have no key."""
    known = {change.row_identity(): change.after or {} for change in others}
    found: set[str] = set()
    for change in set(changes) - set(others):
        other = known.get(change.row_identity())
        if other is None or change.after is None:
            found.add(change.table)
            continue
        for column, value in change.after.items():
            if other.get(column) != value:
                found.add(f"{change.table}.{column}")
    return found


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


_DEAF = "the reward does not look at 'outputs'"


class _MuteAgent(GoldAgent):
    """Makes the gold calls, and says nothing that a row could ask for."""

    async def respond(self, rollout: Rollout) -> str:
        return "…" if await super().respond(rollout) else ""


class _IdleAgent:
    """Does nothing and says nothing that a row could ask for: no reward may take that for success."""

    async def respond(self, rollout: Rollout) -> str:  # noqa: ARG002 - the protocol of agents
        return "…"


@dataclass(frozen=True, slots=True)
class _Played:
    """What the checks need of a rollout whose database is closed again. ``changed``: the gold actions change
    data; ``reason`` is what the reward says.
    """

    reward: float | None
    error: str | None
    calls: list[ToolCall]
    changed: bool
    reason: str | None

    @property
    def reached(self) -> bool:
        return self.reward is not None and is_success(self.reward)

    @property
    def is_sound(self) -> bool:
        """Whether all calls could be made as they are written, and led to success."""
        return self.reached and not self.error and not any(call.status in _FAULTY for call in self.calls)


async def _play(task: Task, base: Database, agent: Agent, gold_database: Database | None = None) -> _Played:
    finished = await run_rollout(task, 0, base=base, agent=agent, gold_database=gold_database)
    with finished.database:
        rollout = finished.rollout
        error = finished.error
        if finished.reward is None or rollout.stop_reason == "agent_error":
            error = error or rollout.stop_detail or rollout.stop_reason
        reason = finished.result.reason if finished.result is not None else None
        return _Played(finished.reward, error, rollout.tool_calls, bool(finished.gold), reason)


def _gold_verdicts(task: Task, gold: _Played, raised: Sequence[str | None]) -> list[tuple[Level, str]]:
    """What the gold actions came to; ``raised`` is what their tools raised, action by action."""
    said: list[tuple[Level, str]] = []
    numbers = _played_actions(task)
    for call in gold.calls:
        number = numbers[call.index]
        what = f"gold action {number} ({call.name})"
        if call.status == "failed" and raised[number]:
            what += f" raised {one_line(raised[number] or '')}; a tool that refuses a call raises ToolError"
        elif call.status in _FAULTY:
            what += f" answered {one_line(repr(call.content))}"
        else:
            continue
        said.append(("error", what))
    refused = [call for call in gold.calls if call.status == "refused"]
    if refused:
        first = refused[0]
        answer = f", gold action {numbers[first.index]} ({first.name}) with {one_line(repr(first.content))}"
        said.append(("ok", f"{len(refused)} of the gold actions refused by their tool{answer}"))
    if gold.error:
        said.append(("error", f"the gold actions cannot be judged: {one_line(gold.error)}"))
    elif not gold.reached:
        why = f": {one_line(gold.reason, 200)}" if gold.reason else ""
        said.append(("error", f"the gold actions give reward {gold.reward:g}, not 1{why}"))
        said += [("error", text) for text in _writing_terminals(task, gold.calls)]
    elif gold.is_sound:
        plural = "action gives" if len(gold.calls) == 1 else "actions give"
        said.append(("ok", f"{len(gold.calls)} gold {plural} reward {gold.reward:g}"))
    if gold.reward is not None and round(gold.reward, 6) > 1:
        said.append(("warning", f"a reward of {gold.reward:g}: whatever is 1 or more counts as passed"))
    return said


def _played_actions(task: Task) -> list[int]:
    """The number of the action that each call of the gold agent is: it may leave out terminal tools."""
    return [number for number, action in enumerate(task.row.actions or ()) if not leaves_out(task, action)]


def _writing_terminals(task: Task, calls: list[ToolCall]) -> Iterator[str]:
    """Terminal tools that change data: nobody who compares with the gold state would think of them."""
    tools = task.registry.tools
    for call in calls:
        if call.changes and call.name in tools and tools[call.name].terminal:
            tables = ", ".join(sorted({change["table"] for change in call.changes}))
            yield (
                f"gold action {call.index} ({call.name}) changes {tables}, but gold_db is without it: "
                "terminal tools are not run there; let another tool write, or leave it out of what the "
                "reward compares"
            )


def _idle_verdict(idle: _Played, *, gold: _Played | None, told: bool) -> tuple[Level, str]:
    """Whether doing nothing is taken for success; ``told``: the row has outputs that the user has to hear."""
    if idle.error:
        return "error", f"the reward fails when nothing was done: {one_line(idle.error)}"
    if not idle.reached:
        return "ok", f"doing nothing gives {idle.reward:g}"
    gives = f"doing nothing gives {idle.reward:g}"
    if gold is None:
        return "warning", f"{gives}, which is right only if the row asks for no change"
    if gold.changed:
        return "error", f"doing nothing gives reward {idle.reward:g}, though the gold actions change data"
    if not gold.is_sound:
        return "warning", f"{gives}: whether that is right shows once the gold actions lead to reward 1"
    if told:
        return "warning", f"{gives} too: {_DEAF}"
    return "ok", f"{gives} too, which is right: the gold actions change no data"
