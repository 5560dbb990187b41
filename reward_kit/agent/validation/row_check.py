"""Check a row without a model: its gold actions earn the reward, and doing nothing does not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from reward_kit.agent.agents.gold import GoldAgent
from reward_kit.agent.base.text import count, one_line
from reward_kit.agent.bundles.rules import violation_text
from reward_kit.agent.records.outcome import is_success
from reward_kit.agent.rollout.episode import Episode
from reward_kit.agent.rollout.gold import NOT_DONE, replay_gold_calls
from reward_kit.agent.rollout.rollout import RolloutStopped
from reward_kit.errors import BundleError, DatabaseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reward_kit.agent.base.types import ToolCall, Violations
    from reward_kit.agent.bundles.bundle import Task
    from reward_kit.agent.database import Changes, Database
    from reward_kit.agent.rollout.gold import GoldCall

Level = Literal["ok", "warning", "error"]
Verdict = tuple[Level, str]

LATE = timedelta(hours=1, minutes=1, seconds=1)
"""Delay of a second replay: hour, minute and second are all different then."""

_FAULTY = NOT_DONE | {"unknown_tool"}
_IGNORES_OUTPUTS = "the reward does not look at 'outputs'"


async def row_verdicts(task: Task, base: Database, untouched: Database) -> list[Verdict]:
    """The findings about a row. ``untouched`` is a fork of ``base`` that rewards only read."""
    fault = _goal_fault(task, untouched)
    if fault is not None:
        return [("error", fault)]
    if task.row.actions is None:
        return [("ok", "no gold actions to replay"), _idle_verdict(task, await _idle(task, untouched, None))]
    late = None if task.row.clock() else datetime.now(UTC) + timedelta(days=1) + LATE
    replay = await replay_gold_calls(task, base, seed=0, now=late)
    with replay.database as gold_database:
        changed = bool(gold_database.changes())
        idle = await _idle(task, untouched, gold_database)
        gold = await _gold(task, base, gold_database)
        more: list[Verdict] = []
        if late is not None and not gold.reached and not gold.error:
            gold, more = await _in_time(task, base, gold, gold_database)
        if task.row.outputs and gold.is_sound and changed:
            silent = await _gold(task, base, gold_database, is_silent=True)
            if silent.reached:
                more.append(("warning", f"saying nothing gives {silent.reward:g} too: {_IGNORES_OUTPUTS}"))
    return [
        *_call_verdicts(task, gold, replay.calls),
        *_gold_verdicts(gold, replay.calls),
        *more,
        _idle_verdict(task, idle, gold, changed=changed),
    ]


def _goal_fault(task: Task, database: Database) -> str | None:
    from sqlalchemy.exc import SQLAlchemyError

    try:
        if task.row.end_goal_sql is not None:
            database.read_only().execute(task.row.end_goal_sql).scalar()
    except (DatabaseError, SQLAlchemyError) as error:
        return f"end_goal_sql does not run: {str(error).partition(chr(10))[0]}"
    return None


@dataclass(frozen=True, slots=True)
class _Played:
    """The result of a rollout; ``calls`` are those of the gold agent, by the number of their action."""

    reward: float | None
    reason: str | None
    error: str | None
    calls: dict[int, ToolCall] = field(default_factory=dict)
    violations: Violations | None = None

    @property
    def reached(self) -> bool:
        return self.reward is not None and is_success(self.reward)

    @property
    def is_sound(self) -> bool:
        """True if all calls could be made as they are written, and led to success."""
        statuses = {call.status for call in self.calls.values()}
        return self.reached and not self.error and not statuses & _FAULTY


async def _idle(task: Task, untouched: Database, gold_database: Database | None) -> _Played:
    """Judge a rollout in which nothing is done."""
    episode = Episode(task, database=untouched)
    episode.reply("…")
    return await _judged(episode, gold_database)


async def _gold(task: Task, base: Database, gold_database: Database, *, is_silent: bool = False) -> _Played:
    """Judge a rollout of the gold agent, whose outputs are not said if it ``is_silent``."""
    agent = GoldAgent()
    fault: str | None = None
    with Episode(task, base=base) as episode:
        agent.episode = episode
        try:
            outputs = await agent.respond(episode.rollout)
            episode.reply("…" if is_silent else outputs)
        except RolloutStopped:
            fault = episode.stop_detail if episode.stop_reason == "agent_error" else None
        except BundleError as error:  # a reference to a result that is not there
            episode.stop("agent_error")
            fault = str(error)
        await episode.settle()
        played = await _judged(episode, gold_database)
    return replace(played, error=fault or played.error, calls=agent.made, violations=episode.violations)


async def _judged(episode: Episode, gold_database: Database | None) -> _Played:
    episode.stop("agent_done")
    result, error = await episode.judged(gold_database)
    return (
        _Played(None, None, error) if result is None else _Played(float(result.score), result.reason, error)
    )


async def _in_time(
    task: Task, base: Database, late: _Played, late_database: Database
) -> tuple[_Played, list[Verdict]]:
    """The gold actions with the clock as it is, and the finding if only that makes them right.

    Agents do the same later than it is done here: mostly on the same day.
    """
    now = datetime.now(UTC)
    later = now + LATE if (now + LATE).date() == now.date() else now - LATE
    with (
        (await replay_gold_calls(task, base, seed=0)).database as gold_database,
        (await replay_gold_calls(task, base, seed=0, now=later)).database as later_database,
    ):
        gold = await _gold(task, base, gold_database)
        if not gold.reached:
            return late, []
        done = gold_database.changes()
        hourly, daily = (_differing(done, other.changes()) for other in (later_database, late_database))
        level: Level = "error"
        text = f"write the time{_named(hourly)}, which is another when an agent does the same"
        if (await _gold(task, base, later_database)).reached:
            level, columns = "warning", _named(daily - hourly or daily)
            text = f"write the day{columns}: agents fail that do the same after midnight"
    remedy = "give the row a `now`, or leave it out of what the reward compares"
    return gold, [(level, f"the gold actions {text}: {remedy}")]


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


def _call_verdicts(task: Task, gold: _Played, replayed: Sequence[GoldCall]) -> Iterator[Verdict]:
    """The findings about the gold calls: those of the gold agent, and those ``replayed`` for gold_db."""
    refused = []
    for number, call in gold.calls.items():
        raised = replayed[number].raised
        text = f"gold action {number} ({call.name})"
        if call.status == "failed" and raised:
            yield "error", f"{text} raised {one_line(raised)}; a tool that refuses a call raises ToolError"
        elif call.status == "ok" and raised and "rollout" in task.registry.tools[call.name].injected:
            fault = f"is missing in gold_db, which is made without a `rollout`: {one_line(raised)}"
            yield "error", f"{text} {fault}"
        elif call.status in _FAULTY:
            yield "error", f"{text} answered {one_line(repr(call.content))}"
        elif call.status == "refused":
            refused.append(f"{text} with {one_line(repr(call.content))}")
    if refused:
        yield "ok", f"{len(refused)} of the gold actions refused by their tool, {refused[0]}"


def _gold_verdicts(gold: _Played, replayed: Sequence[GoldCall]) -> Iterator[Verdict]:
    """The findings about the reward of the gold actions."""
    if gold.error:
        yield "error", f"the gold actions cannot be judged: {one_line(gold.error)}"
    elif not gold.reached:
        why = f": {one_line(gold.reason, 200)}" if gold.reason else ""
        yield "error", f"the gold actions give reward {gold.reward:g}, not 1{why}"
        for number, call in gold.calls.items():
            if call.changes and replayed[number].status == "skipped":
                tables = ", ".join(sorted({change["table"] for change in call.changes}))
                text = f"gold action {number} ({call.name}) changes {tables}, but gold_db is without it: "
                text += "terminal tools are not run there; let another tool write, or leave it out of what "
                yield "error", f"{text}the reward compares"
    elif gold.is_sound:
        gives = "gives" if len(gold.calls) == 1 else "give"
        yield "ok", f"{count(len(gold.calls), 'gold action')} {gives} reward {gold.reward:g}"
    for rule, rows in (gold.violations or {}).items():
        for row in rows[:1]:
            yield "error", f"the gold actions break the rule {rule}: {one_line(violation_text(row), 200)}"
    if gold.reward is not None and round(gold.reward, 6) > 1:
        yield "warning", f"a reward of {gold.reward:g}: whatever is 1 or more counts as passed"


def _idle_verdict(
    task: Task, idle: _Played, gold: _Played | None = None, *, changed: bool = False
) -> Verdict:
    """The finding about doing nothing; ``changed``: the gold actions change data."""
    if idle.error:
        return "error", f"the reward fails when nothing was done: {one_line(idle.error)}"
    gives = f"doing nothing gives {idle.reward:g}"
    if not idle.reached:
        return "ok", gives
    if gold is None:
        return "warning", f"{gives}, which is right only if the row asks for no change"
    if changed:
        return "error", f"doing nothing gives reward {idle.reward:g}, though the gold actions change data"
    if not gold.is_sound:
        return "warning", f"{gives}: whether that is right shows once the gold actions lead to reward 1"
    if task.row.outputs:
        return "warning", f"{gives} too: {_IGNORES_OUTPUTS}"
    return "ok", f"{gives} too, which is right: the gold actions change no data"
