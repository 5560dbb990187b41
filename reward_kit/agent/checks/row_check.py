"""Check a row without a model: its gold actions earn the reward, and doing nothing does not."""

from __future__ import annotations

import math
import re
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from reward_kit.agent.base.places import shown_line
from reward_kit.agent.base.text import closest, did_you_mean, side_hint
from reward_kit.agent.bundles.imports import JUDGED_BY
from reward_kit.agent.bundles.rules import violation_text
from reward_kit.agent.checks.findings import Fault
from reward_kit.agent.checks.playing import PlayedGold, play_calls, play_gold, play_idle
from reward_kit.agent.database.changes import IGNORED
from reward_kit.agent.rewards.checks import calls_made
from reward_kit.agent.rollout.gold import FAULTY, replay_gold_calls
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from reward_kit.agent.base.types import ToolCall
    from reward_kit.agent.bundles.bundle import Task
    from reward_kit.agent.checks.findings import Grade
    from reward_kit.agent.checks.playing import GoldRollout
    from reward_kit.agent.database import Changes, Database
    from reward_kit.agent.rollout.gold import GoldCall

LATE = timedelta(hours=1, minutes=1, seconds=1)
"""Delay of a second replay: hour, minute and second are all different then."""

TRIED = 20
"""Calls of a tool that are played twice, the second time ``LATE``; with ``--deep`` all are."""
LARGE = 100_000
"""Characters of an answer, about 25 000 tokens, from which it is a finding."""
_IGNORES_OUTPUTS = "the reward does not look at 'outputs'"
_OWN_ERROR = re.compile(r"[\w.-]+:\d+: [A-Z]\w*(:|$)")
"""``tools.py:3: KeyError: 'seat'``; the errors of this package come without a type, and say what to do."""
_NO_SUCH = re.compile(r"no such (table|column): (\w+(?:\.\w+)?)")


@dataclass(slots=True)
class RowCheck:
    """The faults of a row; ``gold`` (None without gold actions) and ``idle`` say what earns the reward."""

    faults: list[Fault] = field(default_factory=list)
    gold: bool | None = None
    idle: bool = False


class Repeatable:
    """The tools that have proved to do the same a day later: ``TRIED`` calls were played twice, all equal.

    Those that need the rollout, or end it, are none: the state that a reward compares with is made without.
    """

    def __init__(self, *, deep: bool = False) -> None:
        self._equal: dict[tuple[int, bool], float] = {}
        self._deep = deep

    def covers(self, task: Task, rollout: GoldRollout) -> bool:
        """True if a second play of the rollout's calls would tell nothing new."""
        return (
            not self._deep
            and len(rollout.calls) == len(task.row.actions or ())
            and rollout.fault is None
            and rollout.episode.trace.tool_faults is None
            and all(
                call.status in ("ok", "refused") and self._equal.get(_key(task, call), 0) >= TRIED
                for call in rollout.calls.values()
            )
        )

    def note(self, task: Task, rollout: GoldRollout, replayed: Sequence[GoldCall]) -> None:
        """Count the calls of a rollout that were ``replayed`` a day later."""
        for number, call in rollout.calls.items():
            tool, again = task.registry_of(call.by).tools.get(call.name), replayed[number]
            is_equal = (call.status, call.content) == (again.status, again.content)
            if tool is None or tool.terminal or "rollout" in tool.injected:
                is_equal = False
            equal = self._equal.get(_key(task, call), 0) + 1
            self._equal[_key(task, call)] = equal if is_equal and call.changes == again.changes else -math.inf


def _key(task: Task, call: ToolCall) -> tuple[int, bool]:
    """The tool, and if the row uses the real clock: a frozen one shows no differences a day later."""
    return id(task.registry_of(call.by).tools.get(call.name)), task.row.clock() is None


async def check_row(
    task: Task, base: Database, repeatable: Repeatable, names: frozenset[str] = frozenset()
) -> RowCheck:
    """Play a row's gold actions, and nothing at all.

    ``names`` are those of the bundle's tables and columns, which the reward may leave out of a comparison.
    """
    if task.asks_judge:  # no model is asked here
        scored = task.row.score_by and [word for word in task.row.score_by if word != "criteria"]
        task = replace(task, row=replace(task.row, criteria=None, score_by=scored))
        unjudged = scored == [] or not task.row.given_fields().intersection(JUDGED_BY)
        if unjudged and task.has_default_reward:
            return RowCheck()
    with base.fork(seed=0, now=task.row.clock(), hidden=task.hidden) as untouched:
        checked = await _checked(task, base, untouched, repeatable, names)
    seed = task.seed
    if (
        not seed.sql
        and seed.script is None
        and any("no such table" in fault.text for fault in checked.faults)
    ):
        text = f"there is no seed.sql or seed.py in {task.folder.name}: the database is empty"
        checked.faults = [Fault("seed", text)]
    return checked


async def _checked(
    task: Task, base: Database, untouched: Database, repeatable: Repeatable, names: frozenset[str]
) -> RowCheck:
    if (fault := _goal_fault(task, untouched, names)) is not None:
        return RowCheck([Fault("goal", fault)])
    ignored: set[str] = set()
    IGNORED.set(ignored)
    if task.row.actions is None:
        idle = await play_idle(task, untouched, None)
        faults = [*_idle_faults(task, idle), *_ignored_faults(ignored, names, task.hidden)]
        return RowCheck(faults, None, idle.reached)
    late = None if task.row.clock() else datetime.now(UTC) + timedelta(days=1) + LATE
    rollout = await play_calls(task, base)
    with ExitStack() as opened:
        gold_database = opened.enter_context(rollout.episode).database
        replayed = None
        if not repeatable.covers(task, rollout):
            replay = await replay_gold_calls(task, base, seed=0, now=late)
            gold_database, replayed = opened.enter_context(replay.database), replay.calls
            repeatable.note(task, rollout, replayed)
        changed = bool(gold_database.changes())
        idle = await play_idle(task, untouched, gold_database)
        gold = await rollout.judged(gold_database)
        if replayed is None and not gold.is_sound:  # the second play may tell why
            return await _checked(task, base, untouched, Repeatable(deep=True), names)
        more: list[Fault] = []
        if late is not None and not gold.reached and not gold.error:
            gold, more = await _in_time(task, base, gold, gold_database)
        if task.row.scored_outputs and gold.is_sound and changed:
            silent = await play_gold(task, base, gold_database, reply="…")
            if silent.reached:
                text = f"saying nothing gives {silent.reward:g} too: {_IGNORES_OUTPUTS}"
                more.append(Fault("ignored-outputs", text))
        goal = task.row.end_goal_sql
        if gold.reached and goal and not rollout.episode.database.read_only().execute(goal).scalar():
            more.append(Fault("broken-row", "end_goal_sql is not true after the gold actions"))
        if ignored:
            names |= table_names(gold_database)
    faults = [
        *_call_faults(task, gold, replayed, names),
        *_gold_faults(task, gold, replayed),
        *more,
        *_ignored_faults(ignored, names, task.hidden),
        *_idle_faults(task, idle, gold, changed=changed),
    ]
    return RowCheck(faults, gold.is_sound, idle.reached)


def table_names(database: Database) -> frozenset[str]:
    """The names that ``ignore`` may have: ``table``, ``table.column`` and ``*.column``, casefolded."""
    sql = "SELECT m.name, c.name FROM sqlite_schema m, pragma_table_xinfo(m.name) c WHERE m.type = 'table'"
    names = set()
    for row in database.read_only().fetch_all(sql):
        table, column = (str(name).casefold() for name in row)
        names |= {table, f"{table}.{column}", f"*.{column}"}
    return frozenset(names)


def _ignored_faults(ignored: set[str], names: frozenset[str], hidden: Collection[str]) -> Iterator[Fault]:
    for name in sorted(ignored):
        if name.casefold() not in names:
            hint = did_you_mean(name.casefold(), names)
            who = "ToolRegistry(hidden=…)" if name in hidden else "the reward"
            text = f"{who} ignores {name!r}, which is no table or column{hint}"
            yield Fault("unknown-ignored", f'{text}; write "table", "table.column" or "*.column"')


def _goal_fault(task: Task, database: Database, names: Collection[str]) -> str | None:
    if task.row.end_goal_sql is None:
        return None
    from sqlalchemy.exc import SQLAlchemyError

    try:
        database.read_only().execute(task.row.end_goal_sql).scalar()
    except (DatabaseError, SQLAlchemyError) as error:
        return f"end_goal_sql does not run: {_with_names(str(error).partition(chr(10))[0], names)}"
    return None


def _with_names(error: str, names: Collection[str]) -> str:
    """``no such table: patient (there is patients)``."""
    found = _NO_SUCH.search(error)
    if found is None:
        return error
    wanted = found[2].casefold().rpartition(".")[2]
    of_kind = [
        name.rpartition(".")[2]
        for name in names
        if ("." in name) == (found[1] == "column") and "*" not in name
    ]
    close = closest(wanted, of_kind)
    return f"{error[: found.end()]} (there is {close}){error[found.end() :]}" if close else error


async def _in_time(
    task: Task, base: Database, late: PlayedGold, late_database: Database
) -> tuple[PlayedGold, list[Fault]]:
    """The gold actions with the clock as it is, and the finding if only that makes them right.

    Agents do the same later than it is done here: mostly on the same day.
    """
    now = datetime.now(UTC)
    later = now + LATE if (now + LATE).date() == now.date() else now - LATE
    with (
        (await replay_gold_calls(task, base, seed=0)).database as gold_database,
        (await replay_gold_calls(task, base, seed=0, now=later)).database as later_database,
    ):
        gold = await play_gold(task, base, gold_database)
        if not gold.reached:
            return late, []
        done = gold_database.changes()
        hourly, daily = (_differing(done, other.changes()) for other in (later_database, late_database))
        grade: Grade = "error"
        text = f"write the time{_named(hourly)}, which is another when an agent does the same"
        if (await play_gold(task, base, later_database)).reached:
            grade, columns = "warning", _named(daily - hourly or daily)
            text = f"write the day{columns}: agents fail that do the same after midnight"
    return gold, [Fault("clock", f"the gold actions {text}", grade)]


def _named(columns: set[str]) -> str:
    return f" ({', '.join(sorted(columns))})" if columns else ""


def _differing(changes: Changes, others: Changes) -> set[str]:
    """The columns in which the same rows differ; the tables of rows that cannot be matched."""
    known = {change.row_identity(): change.after or {} for change in others}
    found: set[str] = set()
    for change in set(changes) - set(others):
        other, after = known.get(change.row_identity()), change.after
        if other is None or after is None:
            found.add(change.table)
        else:
            found |= {f"{change.table}.{name}" for name in after if other.get(name) != after[name]}
    return found


def _call_faults(
    task: Task, gold: PlayedGold, replayed: Sequence[GoldCall] | None, names: Collection[str]
) -> Iterator[Fault]:
    """The faults of the gold calls: those of the gold agent, and those ``replayed`` for gold_db."""
    for number, call in gold.calls.items():
        name = f"actions[{number}] ({call.name})"
        raised, status = (replayed[number].raised, replayed[number].status) if replayed else (None, "")
        if call.status == "failed" and raised:
            refusal = "; a tool that refuses a call raises ToolError" if _OWN_ERROR.match(raised) else ""
            yield Fault("gold-call", f"{name} raised {_with_names(shown_line(raised), names)}{refusal}")
        elif call.status == "ok" and status == "failed" and raised:
            why = f"is missing in gold_db, which is made without a `rollout`: {shown_line(raised)}"
            yield Fault("gold-call", f"{name} {why}")
        elif call.status == "unknown_tool":
            own, other = (task.registry, task.user_registry)[:: 1 if call.by == "agent" else -1]
            hint = side_hint(call.name, call.by, other.tools) or did_you_mean(call.name, own.tools)
            there = "the user has" if call.by == "user" else "there is"
            if call.by == "user" and task.row.user_tools is not None:
                hint = hint or f" (the row's user_tools: {', '.join(task.row.user_tools) or 'none'})"
            yield Fault("gold-call", f"actions[{number}]: {there} no tool {call.name!r}{hint}")
        elif call.status in FAULTY:
            yield Fault("gold-call", f"{name} answered {shown_line(repr(call.content))}")
        elif raised and status != "failed":
            yield Fault("slow-tool", f"{name} {raised}", None if "past its limit" in raised else "warning")
        is_meant = (task.row.actions or ())[number].refused
        if call.status == "refused" and not is_meant:
            text = f"{name} is refused by its tool, {shown_line(repr(call.content))}"
            yield Fault("refused-gold", text)
        elif call.status == "ok" and is_meant:
            yield Fault("refused-gold", f'{name} has "refused": true, but its tool carries it out')
        if len(call.content) > LARGE:
            cut_off = call.content.rpartition("\n[cut: ")[2] if call.content.endswith("characters]") else ""
            length = f"more than {LARGE:,} characters, about 25,000 tokens"
            if cut_off:
                length = f"{cut_off.removesuffix(' characters]').rpartition(' of ')[2]} characters"
                length += " (the model gets the first 1,000,000, about 250,000 tokens)"
            yield Fault("large-answer", f"{call.name} answers {length}")


def _gold_faults(task: Task, gold: PlayedGold, replayed: Sequence[GoldCall] | None) -> Iterator[Fault]:
    """The faults of the reward of the gold actions."""
    if not gold.is_played:
        yield Fault("gold-call", f"actions[{len(gold.calls)}] cannot be made: {shown_line(gold.error or '')}")
    elif gold.error:
        yield Fault("reward", f"the gold actions cannot be judged: {shown_line(gold.error)}")
    elif not gold.reached and any(call.status in FAULTY for call in gold.calls.values()):
        pass  # the calls are the fault
    elif not gold.reached:
        why = f": {shown_line(gold.reason, 200)}" if gold.reason else ""
        yield Fault("gold-reward", f"the gold actions give reward {gold.reward:g}, not 1{why}")
        for number, call in gold.calls.items():
            if call.changes and replayed and replayed[number].status == "skipped":
                tables = ", ".join(sorted({change["table"] for change in call.changes}))
                text = f"actions[{number}] ({call.name}) changes {tables}, but gold_db is without it"
                remedy = "let another tool write, or leave it out of what the reward compares"
                yield Fault("gold-reward", f"{text}: terminal tools are not run there; {remedy}")
    else:  # the row must hold too, whatever the reward looks at
        asked = {"required": task.row.required_calls or (), "forbidden": task.row.forbidden_calls or ()}
        if any(asked.values()) and (check := calls_made(gold.calls.values(), **asked)).score < 1:
            yield Fault("broken-row", f"the gold actions break the row's own fields: {check.reason}")
    for rule, rows in (gold.violations or {}).items():
        if rows:
            broken = shown_line(violation_text(rows[0]), 200)
            yield Fault("broken-row", f"the gold actions break the rule {rule}: {broken}")
    if gold.reward is not None and round(gold.reward, 6) > 1:
        text = f"a reward of {gold.reward:g}: whatever is 1 or more counts as passed"
        yield Fault("reward", text, "warning")


def _idle_faults(
    task: Task, idle: PlayedGold, gold: PlayedGold | None = None, *, changed: bool = False
) -> Iterator[Fault]:
    """The fault of doing nothing; ``changed``: the gold actions change data."""
    gives = f"doing nothing gives {idle.reward:g}" if idle.reward is not None else ""
    if idle.error:
        yield Fault("reward", f"the reward fails when nothing was done: {shown_line(idle.error)}")
    elif not idle.reached:
        return
    elif gold is None:
        yield Fault("no-op", f"{gives}, which is right only if the row asks for no change", "warning")
    elif changed:
        text = f"doing nothing gives reward {idle.reward:g}, though the gold actions change data"
        yield Fault("no-op", text)
    elif task.row.scored_outputs and gold.is_sound:
        yield Fault("no-op", f"{gives} too: {_IGNORES_OUTPUTS}", "warning")
