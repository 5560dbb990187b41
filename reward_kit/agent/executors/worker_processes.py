"""Rollouts in several processes of this machine: the same results and files as in one.

This process holds the lock and the log, counts, and gives leave for model calls where their number is limited
(``providers.leave``); the others play, and write trajectories and databases. A process that dies takes only
the rollouts with it that it was playing: they are played again, alone, so that the one to blame is found; it
is reported as an infrastructure error when it has used up its retries.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from reward_kit.agent.executors.lost_rollout import lost_record
from reward_kit.agent.executors.process_pipes import start_process
from reward_kit.agent.executors.shares import STARTS, share_concurrency, share_config, share_jobs
from reward_kit.agent.executors.whole_lines import WholeLines
from reward_kit.agent.outcome import RolloutOutcome
from reward_kit.agent.providers.leave import Asker, LimitsForAll
from reward_kit.agent.record_keeping import outcome_of
from reward_kit.agent.runs.broken_off import BrokenOff, BrokenOffLines, broken_off
from reward_kit.agent.runs.group_commit import Finished, GroupCommit
from reward_kit.agent.runs.parcels import Parcel
from reward_kit.agent.storage import record_file
from reward_kit.agent.tally import note
from reward_kit.errors import RewardKitError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.participants import Participants
    from reward_kit.agent.runs.open_evaluation import OpenEvaluation
    from reward_kit.agent.runs.parcels import NewFile
    from reward_kit.agent.schedule import Job
    from reward_kit.agent.tally import Progress, Tally

GRACE = 15.0
"""Seconds that a process has to end once it is told to."""
HANG_GRACE = 30.0
"""So many seconds past ``--timeout`` a process whose event loop does not go on is ended."""
LOOK_EVERY = 1.0

Place = tuple[str, int]
"""Row id and number of a rollout."""


class ProcessDiedError(Exception):
    """A process ended without having said so."""


_PROGRAM = """\
import sys
if sys.path[0] == "":  # the working directory may hold a bundle's own json.py
    sys.path.append(sys.path.pop(0))
from runpy import run_module
run_module("reward_kit.agent.executors.worker", run_name="__main__")
"""
"""``python -m``, but for what is searched first."""


class WorkerProcesses:
    """Shares the jobs of an opened evaluation out to ``config.workers`` processes."""

    def __init__(
        self,
        config: EvaluationConfig,
        opened: OpenEvaluation,
        participants: Participants,
        tally: Tally,
        progress: Progress,
    ) -> None:
        self.outcomes: list[RolloutOutcome] = []
        self._config = config
        self._opened = opened
        self._participants = participants
        self._tally = tally
        self._progress = progress
        self._files = ThreadPoolExecutor(1, thread_name_prefix="evaluation-log")
        self._saver = GroupCommit(opened.log, self._files)
        self._broken_off = BrokenOffLines(opened.log, self._files)
        self._processes: dict[asyncio.subprocess.Process, WholeLines] = {}
        self._counting: set[asyncio.Future[RolloutOutcome]] = set()
        self._limits = LimitsForAll(config.rpm, config.tpm)

    @property
    def broken_off(self) -> BrokenOff:
        return self._broken_off.total

    async def run(self) -> None:
        self._progress.started(self._tally)
        await self._play(min(self._config.workers, self._config.max_concurrency))

    async def _play(self, processes: int) -> None:
        """Have all jobs played by so many processes, or fewer if there are too few jobs."""
        shares = share_jobs(self._opened.jobs, processes)
        concurrency = share_concurrency(self._config.max_concurrency, len(shares)) if shares else []
        playing = [
            asyncio.ensure_future(self._see_through(share, most))
            for share, most in zip(shares, concurrency, strict=True)
        ]
        try:
            # a gather that is cancelled would not wait for all, and then they are cancelled once more
            await _first_error(playing)
        finally:
            for one in playing:
                one.cancel()
            await asyncio.gather(*playing, return_exceptions=True)

    async def close(self) -> None:
        for process in list(self._processes):
            await self._end(process)
        await asyncio.gather(*self._counting, return_exceptions=True)  # a full disk is no new reason to end
        self._files.shutdown(wait=True)
        self._saver.close()
        self._broken_off.close(partial(note, self._progress))

    async def _see_through(self, jobs: Sequence[Job], concurrency: int) -> None:
        """Have all of ``jobs`` played, by one process after the other where they die."""
        left = {job.place: job for job in jobs}
        suspects: list[Place] = []
        deaths: Counter[Place] = Counter()
        failed_starts = 0
        while left and self._tally.may_start:
            alone = suspects[:1]
            places = alone or list(left)
            begun: dict[Place, float] = {}
            before = len(left)
            setup = {
                "config": share_config(self._config, 1 if alone else concurrency),
                "path": sys.path,
                "eval_id": self._tally.eval_id,
                "budget": self._tally.has_budget,
                "root": str(self._opened.folder.root),
                "jobs": places,
            }
            try:
                await self._one_process(setup, left, begun)
            except ProcessDiedError as death:
                failed_starts = failed_starts + 1 if not begun and len(left) == before else 0
                if failed_starts == STARTS:
                    raise RewardKitError(
                        f"a process that was to play rollouts {death} before it began one",
                        remedy="Run with --workers 1 to see why.",
                    ) from None
                deaths.update(begun.keys())
                suspects = [place for place in dict.fromkeys([*suspects, *begun]) if place in left]
                if len(begun) == 1 and deaths[suspects[0]] > self._config.retries:
                    await self._give_up(
                        left.pop(suspects[0]), deaths[suspects[0]] - 1, f"its process {death}"
                    )
            else:
                if not alone:
                    return
            suspects = [place for place in suspects if place in left]

    async def _one_process(
        self, setup: dict[str, Any], left: dict[Place, Job], begun: dict[Place, float]
    ) -> None:
        """Play until the process is done; ``begun`` are the rollouts that it has under way.

        Each with the moment at which it began or, if that is later, the last at which calls waited there.
        """
        process = await start_process(sys.executable, "-c", _PROGRAM)
        watch = asyncio.ensure_future(self._watch(process, begun))
        assert process.stdin is not None
        assert process.stdout is not None
        stdin = process.stdin
        said = self._processes[process] = WholeLines(process.stdout)

        def tell(line: Mapping[str, Any]) -> None:
            with suppress(ConnectionError):
                stdin.write(json.dumps(line).encode() + b"\n")

        asker = Asker(self._limits, tell)
        try:
            tell(setup)
            with suppress(ConnectionError):
                await stdin.drain()
            async for lines in said:
                self._hear_of_spending(lines)
                if not self._tally.may_start:
                    tell({"hold": True})
                for line in lines:
                    if "begun" in line and self._tally.has_budget:
                        tell({"begin": True})
                over = await self._heard(lines, left, begun, asker)
                if said.damaged:  # a rollout may be in what cannot be read
                    with suppress(ProcessLookupError):
                        process.kill()
                elif over:
                    return
            code = await process.wait()
            if not said.damaged:
                raise ProcessDiedError(_said(code))
            if left:
                raise ProcessDiedError("was ended: other code wrote into what it says")
        finally:
            watch.cancel()
            await self._end(process)
            asker.gone()
            self._processes.pop(process, None)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Let a process end in good order, or end it; what it says by then still counts."""
        if process.stdin is not None:
            process.stdin.close()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._last_words(process), GRACE)
        if process.returncode is None:
            process.kill()
            await self._last_words(process)

    async def _last_words(self, process: asyncio.subprocess.Process) -> None:
        """Take in what a process says until it has ended."""
        async for lines in self._processes[process]:
            self._heard_last(lines)
        await process.wait()

    def _heard_last(self, lines: Sequence[dict[str, Any]]) -> None:
        """Take in what a process has said that is to go on no more: what it has broken off, and finished."""
        self._hear_of_spending(lines)
        self._hear_of_broken_off(lines)
        for line in lines:
            if "note" in line:
                note(self._progress, line["note"])
        self._counted(lines)

    def _counted(self, lines: Sequence[dict[str, Any]]) -> list[asyncio.Task[RolloutOutcome]]:
        """Have the attempts in ``lines`` saved and counted, whoever still waits for that."""
        counting = [asyncio.ensure_future(self._count_saved(line)) for line in lines if "outcome" in line]
        for one in counting:
            self._counting.add(one)
            one.add_done_callback(self._is_counted)
        return counting

    def _is_counted(self, one: asyncio.Future[RolloutOutcome]) -> None:
        self._counting.discard(one)
        if not one.cancelled():
            one.exception()  # whoever waited may be gone

    async def _count_saved(self, line: dict[str, Any]) -> RolloutOutcome:
        """The attempt in ``line``, saved; one that cannot be comes to no end."""
        try:
            outcome = await self._saved(line)
        except StorageError:
            self._broken_off.add(broken_off(RolloutOutcome.from_json(line["outcome"]).usage))
            raise
        self._count(outcome)
        return outcome

    def _hear_of_spending(self, lines: Sequence[dict[str, Any]]) -> None:
        """Count what calls have used; before outcomes are saved, which takes its time: others may begin."""
        for line in lines:
            if "spending" in line:
                self._tally.spending.add(*line["spending"])

    def _hear_of_broken_off(self, lines: Sequence[dict[str, Any]]) -> None:
        for line in lines:
            if "broken_off" in line:
                self._broken_off.add(BrokenOff.from_json(line["broken_off"]))

    async def _heard(
        self,
        lines: Sequence[dict[str, Any]],
        left: dict[Place, Job],
        begun: dict[Place, float],
        asker: Asker,
    ) -> bool:
        """Take in what a process has said; True if it says that all is done."""
        for line in lines:  # first of all: saving takes its time
            asker.heard(line)
        self._hear_of_broken_off(lines)
        counting = iter(self._counted(lines))
        for line in lines:
            if "outcome" in line:
                outcome = await asyncio.shield(next(counting))
                place = outcome.row_id, outcome.index
                if outcome.final:
                    left.pop(place, None)
                    begun.pop(place, None)
                else:
                    begun[place] = time.monotonic()
            elif "begun" in line:
                row_id, index = line["begun"]
                begun[row_id, index] = time.monotonic()
            elif "waiting" in line:
                begun.update(dict.fromkeys(begun, time.monotonic()))
            elif "unpriced" in line:
                self._tally.spending.unpriced(line["unpriced"])
            elif "note" in line:
                note(self._progress, line["note"])
            elif "fault" in line:
                raise RewardKitError.from_json(line["fault"])
            elif "broke" in line:
                raise ProcessDiedError(f"was broken off: {line['broke']}")
        return any("over" in line for line in lines)

    def _saved(self, line: dict[str, Any]) -> asyncio.Future[RolloutOutcome]:
        """Put an attempt into the log; from then on it has happened."""
        return self._saver.save(lambda: self._finished(line))

    def _finished(self, line: dict[str, Any], files: Sequence[NewFile] = ()) -> Finished[RolloutOutcome]:
        """An attempt, with what its process has not written."""
        entry = line["outcome"]

        def then() -> RolloutOutcome:
            outcome = RolloutOutcome.from_json(entry)
            self.outcomes.append(outcome)
            return outcome

        return Finished(entry, then, Parcel(files))

    def _count(self, outcome: RolloutOutcome) -> None:
        self._tally.add(outcome)
        self._progress.ended(outcome, self._tally)

    async def _give_up(self, job: Job, attempt: int, why: str) -> None:
        record = lost_record(job, attempt, why, config=self._config, participants=self._participants)
        record.eval_id = self._tally.eval_id

        def lost() -> Finished[RolloutOutcome]:
            folder = self._opened.folder.row_folder(job.task)
            file = record_file(record, folder)
            outcome = outcome_of(record, file=f"{folder.name}/{file.path.name}", final=True)
            return self._finished({"outcome": {"kind": "rollout", **outcome.to_json()}}, [file])

        self._count(await asyncio.shield(self._saver.save(lost)))

    def _hangs(self, begun: Mapping[Place, float]) -> bool:
        """Whether a rollout is far past its time: its own loop should have seen to that."""
        if self._config.timeout is None:
            return False
        oldest = min(begun.values(), default=time.monotonic())
        return time.monotonic() - oldest > self._config.timeout + HANG_GRACE

    async def _watch(self, process: asyncio.subprocess.Process, begun: dict[Place, float]) -> None:
        """End a process that hangs."""
        while self._config.timeout is not None:
            await asyncio.sleep(LOOK_EVERY)
            if self._hangs(begun):
                process.kill()
                return


async def _first_error(tasks: Sequence[asyncio.Future[None]]) -> None:
    """Wait for all; the first that fails is raised at once."""
    if tasks:
        over, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for one in over:
            one.result()


def _said(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
