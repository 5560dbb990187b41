"""Rollouts side by side in one event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from reward_kit.agent.bundles.loop_guard import own_tasks_guarded
from reward_kit.agent.judge import import_for
from reward_kit.agent.rollout_runner import RolloutRunner
from reward_kit.agent.runs.broken_off import BrokenOffLines
from reward_kit.agent.runs.group_commit import GroupCommit
from reward_kit.agent.runs.row_states import RowStates
from reward_kit.agent.schedule import run_jobs
from reward_kit.agent.tally import note, teller
from reward_kit.agent.telemetry import open_telemetry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.own_models import CallTimeout
    from reward_kit.agent.participants import Participants
    from reward_kit.agent.rollout import Role
    from reward_kit.agent.runs.broken_off import BrokenOff
    from reward_kit.agent.runs.group_commit import OutcomeLog
    from reward_kit.agent.schedule import Job
    from reward_kit.agent.storage import RunsFolder
    from reward_kit.agent.tally import Progress, Tally

FILE_THREADS = 2
"""One for rollouts that are over, one for what a row needs before its first."""


class InProcess:
    """Plays ``jobs`` with ``participants``, which it opens and closes."""

    def __init__(
        self,
        *,
        config: EvaluationConfig,
        jobs: Sequence[Job],
        participants: Participants,
        folder: RunsFolder,
        log: OutcomeLog,
        tally: Tally,
        progress: Progress,
        call_timeouts: Mapping[Role, CallTimeout] | None = None,
    ) -> None:
        self._config = config
        self._jobs = jobs
        self._participants = participants
        self._tally = tally
        self._progress = progress
        self._files = ThreadPoolExecutor(FILE_THREADS, thread_name_prefix="evaluation-files")
        self._rows = RowStates(folder, config, jobs, self._files, partial(note, progress))
        self._telemetry = open_telemetry()
        self._saver = GroupCommit(log, self._files)
        self._broken_off = BrokenOffLines(log, self._files)
        self._runner = RolloutRunner(
            config=config,
            participants=participants,
            folder=folder,
            rows=self._rows,
            saver=self._saver,
            broken_off=self._broken_off,
            tally=tally,
            progress=progress,
            call_timeouts=call_timeouts,
            telemetry=self._telemetry,
        )

    @property
    def outcomes(self) -> list[RolloutOutcome]:
        return self._runner.outcomes

    @property
    def broken_off(self) -> BrokenOff:
        return self._broken_off.total

    async def run(self) -> None:
        participants = self._participants
        if self._jobs:
            await participants.open()
            import_for({id(job.task.reward): job.task.reward for job in self._jobs}.values())
        self._progress.started(self._tally)
        concurrency = 1 if participants.interactive else self._config.max_concurrency
        self._saver.expect(min(concurrency, len(self._jobs)))
        with own_tasks_guarded():
            await run_jobs(
                self._jobs,
                self.play,
                concurrency=concurrency,
                may_start=lambda: self._tally.may_start,
                room=participants.gates.room if participants.gates.used else None,
            )

    async def play(self, job: Job) -> None:
        """Play one rollout, with all attempts."""
        await self._runner.play(job)

    async def close(self) -> None:
        self._files.shutdown(wait=True)
        self._saver.close()
        self._broken_off.close(partial(note, self._progress))
        await self._rows.close()
        await self._participants.close()
        if self._telemetry is not None:
            await asyncio.to_thread(self._telemetry.close, teller(self._progress))
