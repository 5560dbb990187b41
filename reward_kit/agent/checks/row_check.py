"""Check a row without a model: its gold actions earn the reward, and doing nothing does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple

from reward_kit.agent.base.places import shown_line
from reward_kit.agent.base.text import count, did_you_mean
from reward_kit.agent.bundles.rules import violation_text
from reward_kit.agent.bundles.toolset import JUDGED_BY
from reward_kit.agent.checks.playing import FAULTY, PlayedGold, play_gold, play_idle
from reward_kit.agent.database.changes import IGNORED
from reward_kit.agent.rollout.gold import replay_gold_calls
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reward_kit.agent.bundles.bundle import Task
    from reward_kit.agent.database import Changes, Database
    from reward_kit.agent.rollout.gold import GoldCall

Level = Literal["ok", "warning", "error"]


class Verdict(NamedTuple):
    """A finding about a row; ``kind`` is its name in an audit."""

    level: Level
    text: str
    kind: str = "invalid"


LATE = timedelta(hours=1, minutes=1, seconds=1)
"""Delay of a second replay: hour, minute and second are all different then."""

_IGNORES_OUTPUTS = "the reward does not look at 'outputs'"


async def row_verdicts(task: Task, base: Database, names: frozenset[str] = frozenset()) -> list[Verdict]:
    """The findings about a row.

    ``names`` are those of the bundle's tables and columns, which the reward may leave out of a comparison.
    """
    if task.has_default_reward and task.row.criteria:
        task = replace(task, row=replace(task.row, criteria=None))
        found: list[Verdict] = [Verdict("ok", "its criteria need a conversation: no model is asked here")]
        others = task.row.given_fields().intersection(JUDGED_BY)
        return [*found, *(await row_verdicts(task, base, names) if others else ())]
    with base.fork(seed=0, now=task.row.clock()) as untouched:
        return await _verdicts(task, base, untouched, names)


async def _verdicts(task: Task, base: Database, untouched: Database, names: frozenset[str]) -> list[Verdict]:
    fault = _goal_fault(task, untouched)
    if fault is not None:
        return [Verdict("error", fault)]
    ignored: set[str] = set()
    IGNORED.set(ignored)
    if task.row.actions is None:
        idle = _idle_verdict(task, await play_idle(task, untouched, None))
        return [Verdict("ok", "no gold actions to replay"), idle, *_ignored_verdicts(ignored, names)]
    late = None if task.row.clock() else datetime.now(UTC) + timedelta(days=1) + LATE
    replay = await replay_gold_calls(task, base, seed=0, now=late)
    with replay.database as gold_database:
        changed = bool(gold_database.changes())
        idle_play = await play_idle(task, untouched, gold_database)
        gold = await play_gold(task, base, gold_database)
        more: list[Verdict] = []
        if late is not None and not gold.reached and not gold.error:
            gold, more = await _in_time(task, base, gold, gold_database)
        if task.row.outputs and gold.is_sound and changed:
            silent = await play_gold(task, base, gold_database, is_silent=True)
            if silent.reached:
                text = f"saying nothing gives {silent.reward:g} too: {_IGNORES_OUTPUTS}"
                more.append(Verdict("warning", text, "ignored-outputs"))
        if ignored:
            names |= table_names(gold_database)
    return [
        *_call_verdicts(task, gold, replay.calls),
        *_gold_verdicts(gold, replay.calls),
        *more,
        *_ignored_verdicts(ignored, names),
        _idle_verdict(task, idle_play, gold, changed=changed),
    ]


def table_names(database: Database) -> frozenset[str]:
    """The names that ``ignore`` may have: ``table``, ``table.column`` and ``*.column``, casefolded."""
    sql = "SELECT m.name, c.name FROM sqlite_schema m, pragma_table_xinfo(m.name) c WHERE m.type = 'table'"
    names = set()
    for row in database.read_only().execute(sql):
        table, column = (str(name).casefold() for name in row)
        names |= {table, f"{table}.{column}", f"*.{column}"}
    return frozenset(names)


def _ignored_verdicts(ignored: set[str], names: frozenset[str]) -> Iterator[Verdict]:
    for name in sorted(ignored):
        if name.casefold() not in names:
            hint = did_you_mean(name.casefold(), names)
            text = f"the reward ignores {name!r}, which is no table or column{hint}"
            yield Verdict("error", f'{text}; write "table", "table.column" or "*.column"', "unknown-ignored")


def _goal_fault(task: Task, database: Database) -> str | None:
    from sqlalchemy.exc import SQLAlchemyError

    try:
        if task.row.end_goal_sql is not None:
            database.read_only().execute(task.row.end_goal_sql).scalar()
    except (DatabaseError, SQLAlchemyError) as error:
        return f"end_goal_sql does not run: {str(error).partition(chr(10))[0]}"
    return None


async def _in_time(
    task: Task, base: Database, late: PlayedGold, late_database: Database
) -> tuple[PlayedGold, list[Verdict]]:
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
        level: Level = "error"
        text = f"write the time{_named(hourly)}, which is another when an agent does the same"
        if (await play_gold(task, base, later_database)).reached:
            level, columns = "warning", _named(daily - hourly or daily)
            text = f"write the day{columns}: agents fail that do the same after midnight"
    remedy = "give the row a `now`, or leave it out of what the reward compares"
    return gold, [Verdict(level, f"the gold actions {text}: {remedy}", "clock")]


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


def _call_verdicts(task: Task, gold: PlayedGold, replayed: Sequence[GoldCall]) -> Iterator[Verdict]:
    """The findings about the gold calls: those of the gold agent, and those ``replayed`` for gold_db."""
    for number, call in gold.calls.items():
        text = f"gold action {number} ({call.name})"
        raised, status = replayed[number].raised, replayed[number].status
        level: Level = "error"
        fault, kind = "", "invalid"
        if call.status == "failed" and raised:
            fault = f"raised {shown_line(raised)}; a tool that refuses a call raises ToolError"
        elif call.status == "ok" and status == "failed" and raised:
            fault = f"is missing in gold_db, which is made without a `rollout`: {shown_line(raised)}"
        elif call.status in FAULTY:
            fault = f"answered {shown_line(repr(call.content))}"
        elif raised and status != "failed":
            level = "error" if "past its limit" in raised else "warning"
            fault, kind = raised, "slow-tool"
        if fault:
            yield Verdict(level, f"{text} {fault}", kind)
        is_meant = (task.row.actions or ())[number].refused
        if call.status == "refused" and not is_meant:
            fault = f"is refused by its tool, {shown_line(repr(call.content))}: correct it, or add"
            yield Verdict("error", f'{text} {fault} "refused": true if that is meant', "refused-gold")
        elif call.status == "ok" and is_meant:
            fault = 'has "refused": true, but its tool carries it out: drop the mark or correct the call'
            yield Verdict("error", f"{text} {fault}", "refused-gold")
    if refused := [call for call in gold.calls.values() if call.status == "refused"]:
        yield Verdict("ok", f"{len(refused)} of the gold actions refused by their tool")


def _gold_verdicts(gold: PlayedGold, replayed: Sequence[GoldCall]) -> Iterator[Verdict]:
    """The findings about the reward of the gold actions."""
    if gold.error:
        yield Verdict("error", f"the gold actions cannot be judged: {shown_line(gold.error)}")
    elif not gold.reached:
        why = f": {shown_line(gold.reason, 200)}" if gold.reason else ""
        yield Verdict("error", f"the gold actions give reward {gold.reward:g}, not 1{why}")
        for number, call in gold.calls.items():
            if call.changes and replayed[number].status == "skipped":
                tables = ", ".join(sorted({change["table"] for change in call.changes}))
                text = f"gold action {number} ({call.name}) changes {tables}, but gold_db is without it"
                remedy = "let another tool write, or leave it out of what the reward compares"
                yield Verdict("error", f"{text}: terminal tools are not run there; {remedy}")
    elif gold.is_sound:
        gives = "gives" if len(gold.calls) == 1 else "give"
        yield Verdict("ok", f"{count(len(gold.calls), 'gold action')} {gives} reward {gold.reward:g}")
    for rule, rows in (gold.violations or {}).items():
        if rows:
            broken = shown_line(violation_text(rows[0]), 200)
            yield Verdict("error", f"the gold actions break the rule {rule}: {broken}")
    if gold.reward is not None and round(gold.reward, 6) > 1:
        yield Verdict("warning", f"a reward of {gold.reward:g}: whatever is 1 or more counts as passed")


def _idle_verdict(
    task: Task, idle: PlayedGold, gold: PlayedGold | None = None, *, changed: bool = False
) -> Verdict:
    """The finding about doing nothing; ``changed``: the gold actions change data."""
    if idle.error:
        return Verdict("error", f"the reward fails when nothing was done: {shown_line(idle.error)}")
    gives = f"doing nothing gives {idle.reward:g}"
    if not idle.reached:
        return Verdict("ok", gives)
    if gold is None:
        text = f"{gives}, which is right only if the row asks for no change"
    elif changed:
        text = f"doing nothing gives reward {idle.reward:g}, though the gold actions change data"
        return Verdict("error", text, "no-op")
    elif not gold.is_sound:
        text = f"{gives}: whether that is right shows once the gold actions lead to reward 1"
    elif task.row.outputs:
        text = f"{gives} too: {_IGNORES_OUTPUTS}"
    else:
        return Verdict("ok", f"{gives} too, which is right if nothing is to be changed", "no-op")
    return Verdict("warning", text, "no-op")
