"""``validate --deep``: the findings of each row that is sound in form and may measure the wrong thing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from reward_kit.agent.checks.findings import Fault, RowAudit
from reward_kit.agent.checks.literals import reach_of, unknown_literals, unknown_outputs, unstated_facts
from reward_kit.agent.checks.mutants import Trials, added, alternatives, changed, dropped, moved, pool_of
from reward_kit.agent.checks.playing import play_gold, play_idle
from reward_kit.agent.checks.reach import Reader
from reward_kit.agent.checks.wording import free_texts, loose_outputs
from reward_kit.agent.database.changes import IGNORED
from reward_kit.agent.rollout.gold import replay_gold_calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reward_kit.agent.bundles.bundle import Task
    from reward_kit.agent.checks.findings import ValidationReport
    from reward_kit.agent.checks.mutants import Pool
    from reward_kit.agent.checks.playing import PlayedGold
    from reward_kit.agent.database import Database
    from reward_kit.agent.rows.task_row import Action

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
    faulty = {row for one in report.errors if one.kind not in PLAYABLE for row in one.rows}
    deep = _DeepCheck(report, seeded)
    playable = [
        (_at_fixed_time(task), base)
        for task, base in seeded
        if task.row.actions is not None and task.row.id not in faulty
    ]
    for task, base in playable:
        await deep.play(task, base)
    for start in range(
        0, len(playable), AT_ONCE
    ):  # tools and rewards that are no coroutines wait for threads
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
        writes = [action.name for action in actions if action.name in self.writing]
        if writes:
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


def _at_fixed_time(task: Task) -> Task:
    """Freeze the task's clock, so that replays write equal times."""
    now = task.row.now or datetime.now(UTC).isoformat(timespec="seconds")
    return replace(task, row=replace(task.row, now=now))
