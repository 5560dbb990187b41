"""``validate --deep``: rows that are sound in form and may measure the wrong thing; rows that are alike."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from reward_kit.agent.base.text import count, cut, text_of
from reward_kit.agent.bundles.bundle import read_bundle
from reward_kit.agent.bundles.source import LINES
from reward_kit.agent.bundles.task import solo_row
from reward_kit.agent.checks.findings import Fault, RowAudit
from reward_kit.agent.checks.literals import reach_of, unknown_literals, unknown_outputs, unstated_facts
from reward_kit.agent.checks.mutants import (
    Trials,
    added,
    alternatives,
    changed,
    dropped,
    free_texts,
    loose_outputs,
    moved,
    pool_of,
)
from reward_kit.agent.checks.playing import play_gold, play_idle
from reward_kit.agent.checks.reach import Reader, words
from reward_kit.agent.database.changes import IGNORED, Changes, net
from reward_kit.agent.rollout.gold import replay_gold_calls
from reward_kit.agent.rollout.outcome import is_success
from reward_kit.agent.store.evaluation_file import reading
from reward_kit.agent.store.layout import find_stored
from reward_kit.agent.store.schema import FINAL
from reward_kit.errors import BundleError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.bundles.bundle import Task
    from reward_kit.agent.checks.findings import ValidationReport
    from reward_kit.agent.checks.mutants import Pool
    from reward_kit.agent.checks.playing import PlayedGold
    from reward_kit.agent.database import Database
    from reward_kit.agent.rows.task_row import Action, TaskRow
    from reward_kit.agent.store.layout import Named

logger = logging.getLogger(__name__)

AT_ONCE = 5
"""Rows that are checked at the same time."""
MOST_OTHERS = 40
"""Calls of other rows that are tried as additions."""
PLAYABLE = {"slow-tool", "clock", "refused-gold", "no-op", "unknown-ignored", "broken-row"}
"""Errors in spite of which a row's gold actions are played."""


async def check_deeply(
    report: ValidationReport,
    seeded: Sequence[tuple[Task, Database]],
    told: Callable[[str, int, int], None],
) -> None:
    """Add the findings of all rows with gold actions; ``told`` is called before each."""
    faulty = {
        row for one in replace(report, strict=False).errors if one.kind not in PLAYABLE for row in one.rows
    }
    deep = _DeepCheck(report, seeded)
    today = datetime.now(UTC).isoformat(timespec="seconds")  # replays write equal times
    playable = [
        (replace(task, row=replace(task.row, now=task.row.now or today)), base)
        for task, base in seeded
        if task.row.actions is not None and task.row.id not in faulty
    ]
    for task, base in playable:
        await deep.play(task, base)
    for start in range(0, len(playable), AT_ONCE):  # functions that are no coroutines wait for threads
        told("trying wrong calls", start, len(playable))
        batch = playable[start : start + AT_ONCE]
        checks = [deep.check(task, base) for task, base in batch]
        for (task, _), faults in zip(batch, await asyncio.gather(*checks), strict=True):
            for fault in faults:
                place = f"{task.row.place} {task.row.id}"
                report.add(fault.kind, place, fault.text, [task.row.id], grade=fault.grade)


class _DeepCheck:
    """The state that rows share: tools known to write, answers of reading tools, values of gold arguments."""

    def __init__(self, report: ValidationReport, seeded: Sequence[tuple[Task, Database]]) -> None:
        self.report = report
        self.writing: set[str] = set()
        self.readers: dict[int, Reader] = {}
        self.pool: Pool = pool_of([task.row.actions or () for task, _ in seeded])
        self.more: dict[str, tuple[str, Action]] = {}

    async def play(self, task: Task, base: Database) -> None:
        """Replay the gold calls once, for the tools that write and calls to add to other rows."""
        replay = await replay_gold_calls(task, base, seed=0)
        replay.database.close()
        for action, call in zip(task.row.actions or (), replay.calls, strict=True):
            if call.changes:
                self.writing.add(action.name)
                self.more.setdefault(repr(action), (task.row.id, action))

    async def check(self, task: Task, base: Database) -> list[Fault]:
        """The faults of one row."""
        row = RowAudit(task.row.id)
        self.report.rows.append(row)
        IGNORED.set(set())
        replay = await replay_gold_calls(task, base, seed=0)
        with (
            replay.database as gold_database,
            base.fork(seed=0, now=task.row.clock(), hidden=task.hidden) as untouched,
        ):
            gold = await play_gold(task, base, gold_database)
            if not gold.is_sound:
                return []
            idle = await play_idle(task, untouched, gold_database)
            reader = self.readers.setdefault(id(base), Reader(base, self.writing))
            reach = await reach_of(task, gold, reader)
            trials = Trials(task, base, gold_database, gold, self.writing, reach, row)
            scored = task.row.score_by
            others = [action for owner, action in self.more.values() if owner != task.row.id]
            found = [
                *self._idle_faults(task, gold, idle),
                *unknown_literals(task, gold, reach),
                *unknown_outputs(task, gold, reach),
                *unstated_facts(reach),
            ]
            for faults in (
                dropped(trials),
                moved(trials),
                changed(trials, self.pool),
                *([added(trials, others[:MOST_OTHERS])] if scored is None or "data" in scored else []),
                alternatives(trials),
                free_texts(trials),
                loose_outputs(trials),
            ):
                found += [fault async for fault in faults]
            return found

    def _idle_faults(self, task: Task, gold: PlayedGold, idle: PlayedGold) -> Iterator[Fault]:
        """The fault of a row that doing nothing solves although it has gold calls."""
        actions = task.row.actions or ()
        if not idle.reached or gold.changes or not actions:
            return
        if writes := [action.name for action in actions if action.name in self.writing]:
            text = f"doing nothing gives {idle.reward:g}: the gold call {writes[0]} changes nothing"
            yield Fault("no-op", text)
        elif not task.row.scored_outputs:
            tools = task.registry.tools | task.user_registry.tools
            ends = [one.name for one in actions if one.name in tools and tools[one.name].terminal]
            text = f"doing nothing gives {idle.reward:g}: gold only reads, and nothing is to be said"
            if ends:
                asked = f'nothing asks for {ends[-1]}, "required_calls": ["{ends[-1]}"] would'
                text = f"doing nothing gives {idle.reward:g}: {asked}"
            yield Fault("no-op", text, "note")


# --- rows that are alike

SIMILAR = 0.8
"""Share of common words from which two instructions with equal gold are alike."""


def add_duplicates(
    report: ValidationReport, dataset: Path, rows: Sequence[TaskRow], against: Sequence[str | Path] | None
) -> None:
    """Add the rows that are alike: within ``rows``, and those of the other datasets.

    A dataset of which every other row is alike is another version of this one and is named once. Rows of two
    datasets that name one split, in ``metadata.split``, are not compared.
    """
    for first, second in _alike(rows, rows, least=1.0):
        if first.place < second.place or first.id < second.id:
            text = f"asks for the same as row {first.id}"
            report.add("near-duplicate", f"{second.place} {second.id}", text, [second.id])
    beside = (path for path in sorted(dataset.parent.iterdir()) if path.suffix.lower() in LINES)
    for other in (path for path in beside if path != dataset) if against is None else against:
        try:
            with read_bundle(other) as read:
                theirs, name = read.rows, read.dataset.name
        except BundleError:
            if against is not None:
                raise
            continue  # a file beside the dataset that is none
        alike = _alike(rows, theirs, least=SIMILAR)
        pairs = {
            mine.id: (mine, their)
            for mine, their in alike
            if (split := mine.metadata.get("split")) is None or split != their.metadata.get("split")
        }
        if 2 * len(pairs) > max(len(rows), len(theirs)) and len(pairs) > 1:
            text = f"has {count(len(pairs), 'row')} of this dataset: it is another version, not another split"
            report.add("near-duplicate", name, text, grade="note")
            continue
        for mine, their in pairs.values():
            text = f"asks for the same as row {their.id} of {name}"
            report.add("near-duplicate", f"{mine.place} {mine.id}", text, [mine.id])


def _alike(
    rows: Sequence[TaskRow], others: Sequence[TaskRow], *, least: float
) -> Iterator[tuple[TaskRow, TaskRow]]:
    """Pairs with the same gold calls and outputs, and at ``least`` this share of their words in common."""
    by_gold: dict[str, list[tuple[TaskRow, Counter[str]]]] = {}
    for other in others:
        by_gold.setdefault(_gold(other), []).append((other, _words(other)))
    for row in rows:
        mine = _words(row)
        for other, theirs in by_gold.get(_gold(row), ()):
            if other is row or not mine:
                continue
            shared = 2 * (mine & theirs).total() / (mine.total() + theirs.total())
            if shared >= least:
                yield row, other


def _gold(row: TaskRow) -> str:
    """The calls that both rows have to share, but for their order, or their goal; and their data."""
    calls = sorted(json.dumps([one.name, one.arguments], sort_keys=True) for one in row.actions or ())
    data = row.seed_sql, str(row.now), [one.to_json() for one in row.setup or ()]
    return json.dumps([calls, row.outputs, row.end_goal_sql, row.actions is None, data])


def _words(row: TaskRow) -> Counter[str]:
    said = [text_of(message.get("content")) for message in row.initial_messages]
    return Counter(word for text in (row.text("sim_user_prompt") or "", *said) for word in words(text))


# --- finished evaluations

ENOUGH = 4
"""Judged rollouts of a row from which never passing is a finding."""
AGREEING = 3
"""Failed rollouts with one end state from which they are a finding, if they are half of all failures too."""

_ANY = {"n_rollouts": None, "metadata": None}


def add_run_findings(
    report: ValidationReport,
    evaluations: Sequence[Named],
    rows: Mapping[str, TaskRow],
    output_dir: str | Path,
) -> None:
    """Add what the rollouts of all ``evaluations`` together say of each row that is still the same."""
    ends: dict[str, list[tuple[str, ...] | None]] = {}  # None: passed
    golds: dict[str, tuple[str, ...]] = {}
    sql = f"SELECT row_id, reward, json FROM rollouts JOIN traces ON rollout = id WHERE {FINAL}"  # noqa: S608
    for name in evaluations:
        path = find_stored(name, output_dir)
        with reading(path) as connection:
            found = connection.execute("SELECT row_id, fields, gold_changes FROM rows").fetchall()
            known = [(rows[row_id], json.loads(one), gold) for row_id, one, gold in found if row_id in rows]
            if not known:
                raise UsageError(f"evaluation {path.stem} has no row of this dataset", place="--evaluation")
            same = {
                row.id: gold
                for row, one, gold in known
                if one | _ANY in [played.reward_fields() | _ANY for played in (row, solo_row(row))]
            }
            if changed := len(known) - len(same):
                left_out = count(changed, "row")
                logger.warning("warning: evaluation %s: %s left out that have changed", path.stem, left_out)
            golds |= {row_id: _lines(json.loads(gold)) for row_id, gold in same.items() if gold}
            for row_id, reward, trajectory in connection.execute(sql):
                if row_id in same and reward is not None:
                    calls = json.loads(trajectory)["tool_calls"]
                    steps = [change for call in calls for change in call["changes"]]
                    ends.setdefault(row_id, []).append(None if is_success(reward) else _lines(steps))
    for row_id, judged in ends.items():
        place = f"{rows[row_id].place} {row_id}"
        failed = Counter(end for end in judged if end is not None)
        if failed.total() == len(judged) >= ENOUGH:
            text = f"0 of {count(len(judged), 'rollout')} passed in {count(len(evaluations), 'evaluation')}"
            report.add("never-passed", place, text, [row_id])
        for end, times in failed.most_common(1):
            is_usual = times >= AGREEING and 2 * times >= failed.total()
            if is_usual and row_id in golds and end != golds[row_id]:
                changes = cut("; ".join(end), 200) or "no change"
                number = count(failed.total(), "failed rollout")
                text = f"{times} of {number} end in one state that is not gold's: {changes}"
                report.add("agreed-failure", place, text, [row_id])


def _lines(steps: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """The net changes of tool calls, as lines."""
    return tuple(sorted(Changes.of(net(Changes.from_json(steps))).lines(whole=True)))
