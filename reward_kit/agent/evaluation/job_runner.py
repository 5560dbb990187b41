"""Jobs from start to store: play, repeat what failed through no fault of the agent, save, count."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from reward_kit.agent.base.deadline import is_cancelled
from reward_kit.agent.base.network import backoff
from reward_kit.agent.base.redaction import without_password
from reward_kit.agent.base.text import count as counted
from reward_kit.agent.base.types import UNJUDGED_STOPS, Usage
from reward_kit.agent.base.worker_thread import completed
from reward_kit.agent.evaluation.options import seed_of
from reward_kit.agent.evaluation.protocol import PlayRequest, RolloutLostError
from reward_kit.agent.rollout.outcome import Played, broken_off
from reward_kit.agent.rollout.rollout import PLAYERS
from reward_kit.agent.rollout.trace import Trace
from reward_kit.agent.store.writer import UnstorableError
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence

    from reward_kit.agent.base.types import Role
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.evaluation.plan import Job
    from reward_kit.agent.evaluation.progress import Display, Tally
    from reward_kit.agent.evaluation.protocol import Description, Executor
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.store.writer import Saver

_Job = TypeVar("_Job")

SETTLING = 0.01
"""Seconds for started jobs to make their first calls, before ``room`` for more is asked."""


@dataclass(slots=True)
class JobRunner:
    """Runs jobs through ``executor`` and passes the played rollouts to ``saver``.

    Each model call that was answered is counted once: in a stored outcome, or as usage of an attempt that was
    broken off.
    """

    config: EvaluationConfig
    description: Description
    executor: Executor
    saver: Saver
    tally: Tally
    display: Display

    async def run(self, jobs: Sequence[Job]) -> None:
        """Run all jobs; raises the first error that ends them."""
        concurrency = 1 if self.description.interactive else self.config.max_concurrency
        may_start, room = self.tally.may_start, self.executor.room
        await run_jobs(jobs, self._run, concurrency=concurrency, may_start=may_start, room=room)

    async def _run(self, job: Job) -> Coroutine[Any, Any, None]:
        """Play a job until its outcome is final, and save every attempt; returns what stores the last."""
        repeats, user_repeats = self.config.retries, max(0, self.config.retry_user_errors - job.user_retries)
        for attempt in count(job.attempts):
            account, played, again = _Account(self), None, not self.description.replays
            try:
                played = await self.executor.play(PlayRequest(*job.place, attempt), account)
            except RolloutLostError as lost:
                account.broken_off()
                played, again = self._lost(job, attempt, str(lost)), True
            finally:
                if played is None:
                    account.broken_off()
            unjudged = played.outcome.stop_reason in UNJUDGED_STOPS
            if unjudged:
                again = again and repeats > 0
            else:
                again = again and user_repeats > 0 and played.user_failed and self.tally.may_start()
            played.outcome.final = not again
            storing = self._stored(job, attempt, played, account)
            if not again:
                return storing
            await storing
            if unjudged:
                repeats -= 1
                await asyncio.sleep(backoff(self.config.retries - repeats))
            else:
                user_repeats -= 1
        raise AssertionError("an attempt is the last one")

    async def _stored(self, job: Job, attempt: int, played: Played, account: _Account) -> None:
        """Store an attempt, or what can be said of one that cannot be stored."""
        try:
            await self._save(played, account)
        except UnstorableError as fault:
            account.broken_off()
            substitute = self._lost(job, attempt, f"the rollout cannot be stored: {fault}")
            substitute.outcome.final = played.outcome.final
            await self._save(substitute, account)
        finally:
            account.broken_off()

    async def _save(self, played: Played, account: _Account) -> None:
        """Store and count; to the end, even if the evaluation is interrupted meanwhile."""
        place = f"{played.outcome.row_id}, rollout {played.outcome.index}"
        await completed(self.saver.save(played), f"{place}: storing it")
        account.calls.clear()
        self.tally.add(played.outcome)
        self.display.progress.ended(played.outcome, self.tally)
        if is_cancelled():
            raise asyncio.CancelledError

    async def judge_again(self, unjudged: Sequence[tuple[Job, Outcome]]) -> None:
        """Judge stored rollouts again whose reward failed; those whose reward fails again stay unjudged."""
        if unjudged and self.tally.may_start():
            self.display.show(f"{counted(len(unjudged), 'rollout')} whose reward had failed: judged again")
            concurrency, may_start = self.config.max_concurrency, self.tally.may_start
            await run_jobs(unjudged, self._judge_again, concurrency=concurrency, may_start=may_start)

    async def _judge_again(self, unjudged: tuple[Job, Outcome]) -> None:
        job, before = unjudged
        account = _Account(self)
        try:
            played = await self.executor.play(PlayRequest(*job.place, judge_again=before.id), account)
            played.outcome.database = before.database
            await self._save(played, account)
        except (DatabaseError, RolloutLostError, UnstorableError) as error:
            self.display.show(f"{before.file}: {error}")
            self.tally.add(before)
        finally:
            account.broken_off()

    def _lost(self, job: Job, attempt: int, why: str) -> Played:
        """The trace of a lost rollout: a failure if the agent ended its process, for it must not opt out."""
        row = job.task.row
        by_agent = PLAYERS in why
        reason = "agent_error" if by_agent else "infrastructure_error"
        trace = Trace(
            id=uuid.uuid4().hex,
            row_id=row.id,
            index=job.index,
            attempt=attempt,
            seed=seed_of(self.config, row.id, job.index, attempt),
            eval_id=self.tally.eval_id,
            agent=without_password(self.config.agent or ""),
            user=self.description.users[row.id],
            models=self.description.models,
            messages=[],
            stop_reason=reason,
            stop_detail=why,
            reward=0.0 if by_agent else None,
            failure={"kind": reason, "detail": why},
            started=time.time(),
        )
        trace.given = row
        return Played(trace.outcome(base=job.task.seed.key), trace.encoded())


@dataclass(slots=True)
class _Account:
    """The model calls of one attempt that no stored outcome counts; at its end they are broken off."""

    runner: JobRunner
    calls: list[tuple[Role, Usage]] = field(default_factory=list)

    def used(self, role: Role, usage: Usage, model: str) -> None:
        """Count a call, and warn once of a model that ``--max-cost`` does not see."""
        runner = self.runner
        self.calls.append((role, usage))
        runner.tally.usage.add(usage)
        runner.display.answered()
        if usage.unpriced_calls > usage.reused_calls and runner.config.max_cost is not None:
            runner.display.note_once(
                f"--max-cost does not see the calls of {model}: no price is known under this name. Use "
                "--max-tokens, or set it: --model-arg (--user-model-arg) input_cost_per_token=USD and "
                "output_cost_per_token=USD"
            )
        if usage.calls > usage.reused_calls and not usage.tokens and runner.config.max_tokens is not None:
            fault = f"--max-tokens does not see the calls of {model}: its answers have no usage"
            runner.display.note_once(fault)

    def broken_off(self) -> None:
        if self.calls:
            usage: dict[Role, Usage] = {}
            for role, used in self.calls:
                usage.setdefault(role, Usage()).add(used)
            self.calls.clear()
            self.runner.saver.add_usage(broken_off(usage))


async def run_jobs(
    jobs: Sequence[_Job],
    play: Callable[[_Job], Awaitable[Coroutine[Any, Any, None] | None]],
    *,
    concurrency: int,
    may_start: Callable[[], bool] = lambda: True,
    room: Callable[[], Awaitable[int]] | None = None,
) -> None:
    """Play the jobs in order, at most ``concurrency`` at a time.

    ``play`` may return what stores its job. Unless jobs are played one at a time, the next one begins
    meanwhile. ``room`` waits until further jobs may begin, and gives their number: the number of running ones
    grows with it, up to ``concurrency``. Once ``may_start`` is False no more jobs start, and the running ones
    finish. The first error, or a cancellation, cancels all others and is raised when they have ended.
    """
    waiting, most = iter(jobs), min(concurrency, len(jobs))
    workers: list[asyncio.Future[None]] = []

    async def start() -> None:
        while len(workers) < most and may_start():
            more = most - len(workers) if room is None else min(most - len(workers), await room())
            for _ in range(more):
                playing = _play_in_turn(waiting, play, may_start, alone=concurrency == 1)
                workers.append(asyncio.ensure_future(playing))
                workers[-1].add_done_callback(lambda _: starting.cancel())  # no job is left, or one failed
            if len(workers) < most:
                await asyncio.sleep(SETTLING)

    starting = asyncio.ensure_future(start())
    try:
        await asyncio.wait([starting])
        if not starting.cancelled():
            starting.result()
        if workers:
            done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            for worker in done:
                worker.result()
    finally:
        for worker in (starting, *workers):
            worker.cancel()
        await asyncio.gather(starting, *workers, return_exceptions=True)


async def _play_in_turn(
    jobs: Iterator[_Job],
    play: Callable[[_Job], Awaitable[Coroutine[Any, Any, None] | None]],
    may_start: Callable[[], bool],
    *,
    alone: bool,
) -> None:
    """Play jobs while ``may_start()``, each beside the storing of the one before unless it is ``alone``."""
    stored: asyncio.Task[None] | None = None
    try:
        async with asyncio.TaskGroup() as storage:
            for job in jobs:
                if is_cancelled() or not may_start():  # a job may end in spite of its cancellation
                    break
                storing = await play(job)
                if storing is not None and (alone or is_cancelled()):
                    await storing
                elif storing is not None:
                    before, stored = stored, storage.create_task(storing)
                    await asyncio.sleep(0)  # it begins, and so ends: the next job may fail at once
                    if before is not None:
                        await before
            if stored is not None:
                await stored
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__
