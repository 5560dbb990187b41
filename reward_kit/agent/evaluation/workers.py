"""``--workers``: rollouts in processes, isolated from this one and from each other's crashes.

A worker that exits, crashes, stops answering or outgrows ``--worker-memory`` costs the rollouts that it was
playing. They are played again, each alone in a process; one that ends its process again is lost. A worker in
which a rollout has changed what all share plays no others. With ``--ray`` the workers are started on the
nodes of a cluster.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import as_json
from reward_kit.agent.base.files import write_file
from reward_kit.agent.bundles.imports import absolute
from reward_kit.agent.evaluation.connection import WorkerDiedError, WorkerProcess
from reward_kit.agent.evaluation.options import chosen_tasks
from reward_kit.agent.evaluation.protocol import Description, Executor, RolloutLostError, Setup
from reward_kit.agent.models.local.backends import names_local_model
from reward_kit.agent.store.layout import RunsFolder
from reward_kit.errors import BundleError, RewardKitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from reward_kit.agent.bundles.bundle import BundleRows
    from reward_kit.agent.bundles.seed import Seed
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.evaluation.connection import Worker
    from reward_kit.agent.evaluation.fork_server import ForkServer
    from reward_kit.agent.evaluation.protocol import Account, PlayRequest, Report
    from reward_kit.agent.evaluation.ray_cluster import RayCluster
    from reward_kit.agent.rollout.outcome import Played

LOOK_EVERY = 0.2
"""Seconds between two looks at the memory and the signs of life of all processes."""
SILENT_AFTER = 120.0
"""Seconds without a sign of life after which a process hangs."""
HANG_GRACE = 30.0
"""Seconds beyond the ``--timeout`` after which it does, if that is sooner."""
RESTART_AFTER = 0.5
"""Seconds until another process is started in place of one that could not be."""
STARTS = 3
"""Processes in succession that may die before they begin a rollout."""
MOST_ALONE = 8
"""Processes that play one rollout each; as many as workers if those are more, or hold models in memory."""
DEATHS_ON_A_CLUSTER = 2
"""Workers that a rollout may lose there before it is played alone: nodes are lost for other reasons."""


def worker_config(config: EvaluationConfig, processes: int, *, concurrency: int) -> dict[str, Any]:
    """The options of one of ``processes`` workers, as JSON: its share of the limits, and what all share."""
    rpm, tpm = (limit and max(1, limit // processes) for limit in (config.rpm, config.tpm))
    return {**as_json(config), "rpm": rpm, "tpm": tpm, "max_concurrency": concurrency}


def processes_of(config: EvaluationConfig, rows: BundleRows, processors: int = 1) -> int:
    """The number of workers: each has at least one rollout, and one request a minute."""
    rollouts = sum(config.n_rollouts or row.n_rollouts for row in chosen_tasks(rows.rows, config))
    wanted = config.workers or processors
    return min(wanted, config.max_concurrency, config.rpm or wanted, rollouts)


class Workers(Executor):
    """An executor that plays in ``config.workers`` processes, on ``cluster`` if one is given.

    They come from ``server``.
    """

    def __init__(
        self,
        config: EvaluationConfig,
        rows: BundleRows,
        root: str | Path,
        note: Callable[[str], None],
        server: ForkServer,
        cluster: RayCluster | None = None,
    ) -> None:
        if config.worker_memory is not None and not Path("/proc/self/statm").exists():
            raise UsageError("--worker-memory needs Linux", remedy="Omit it.")
        self._config, self._rows, self._note = config, rows, note
        self.folder = RunsFolder(root)
        self._cluster = cluster
        self._server = server
        self._processes = processes_of(config, rows)
        self._seeds: dict[str, Seed] = {}
        self._workers: list[Worker] = []
        self._running: set[Worker] = set()
        self._starts: set[asyncio.Task[None]] = set()
        self._beside: set[asyncio.Task[None]] = set()
        self._alone: list[Worker] = []
        is_large = any(name and names_local_model(name) for name in (config.model, config.sim_model))
        self._may_be_alone = asyncio.Semaphore(max(self._processes, 0 if is_large else MOST_ALONE))
        self._failed_starts = self._failed_server = 0
        self._fault: BaseException | None = None
        self._changed = asyncio.Event()

    async def describe(self) -> Description:
        """Start the workers, which load the bundle at once, and have one describe everything."""
        self._begin(self._look())
        if self._cluster is None:
            self._start_missing(self._processes - 1)
        worker, description = await self._described()
        if description.interactive:
            fault = "a person at the terminal cannot play in another process"
            raise UsageError(fault, remedy="Omit --workers.")
        if self._cluster is None:
            for other in self._workers:
                other.prepare()
            self._workers.insert(0, worker)
            self._start_missing(self._processes)
            return description
        await worker.close()
        found = zip(self._rows.rows, self._rows.seeds, strict=True)
        self._seeds = {row.id: seed for row, seed in found if row.id in description.code.rows}
        processors = await self._cluster.connect(self._seeds.values())
        self._processes = processes_of(self._config, self._rows, processors)
        self._start_missing(self._processes)
        return description

    async def _described(self) -> tuple[Worker, Description]:
        """A worker that has described everything; raises ``BundleError`` if all end before that."""
        start, worker = 1, None
        while True:
            try:
                worker = worker or await self._started(WorkerProcess(self._note, self._server))
                report = await worker.call()
            except WorkerDiedError as death:
                if self._fault is not None:
                    raise self._fault from None
                start += 1
                others = [other for other in self._workers if other.died is None and death.server is None]
                if not others and (death.server is None or start > STARTS):  # else it was not the bundle
                    toolsets = sorted({absolute(self._rows.folder, row.toolset) for row in self._rows.rows})
                    remedy = f"Run python -c 'import {toolsets[0].partition(':')[0]}' to see why."
                    fault, place = f"the process that loads the bundle {death}", ", ".join(toolsets[:3])
                    raise BundleError(fault, place=place, remedy=remedy) from None
                worker = others[0] if others else None
                self._workers = [other for other in self._workers if other is not worker]
            else:
                assert report.description is not None
                return worker, report.description

    async def play(self, request: PlayRequest, account: Account) -> Played:
        """Play in the least busy process, and if that dies, again alone in a separate one."""
        deaths = 0
        while deaths < (1 if self._cluster is None else DEATHS_ON_A_CLUSTER):
            worker = await self._least_busy()
            try:
                return self._kept(await worker.call(request, account))
            except WorkerDiedError as death:
                account.broken_off()
                deaths += death.began
                if worker in self._workers:
                    self._count(death)
                    self._replace(worker)
            finally:
                if worker.changed is not None:
                    self._replace(worker, f"{request.row_id}, rollout {request.index}")
                self._changed.set()
        return await self._play_alone(request, account)

    def _replace(self, worker: Worker, place: str | None = None) -> None:
        """Stop using a worker that has died, or whose process a rollout at ``place`` has changed."""
        if worker in self._workers:
            self._workers.remove(worker)
            if place is not None:
                what = f"the {worker.changed} of its process has changed"
                self._note(f"{place}: {what}: others play in a new one")
            self._start_missing(self._processes)
        if place is not None and not worker.load:
            self._begin(worker.close())

    async def _play_alone(self, request: PlayRequest, account: Account) -> Played:
        """Play a rollout whose process died; raises ``RolloutLostError`` if that ends its process, too."""
        watched, start = replace(request, watched=True), 1
        async with self._may_be_alone:
            while True:
                self._alone = [worker for worker in self._alone if worker.died is None]
                try:
                    new = None if self._alone else self._started(self._new(alone=True), alone=True)
                    worker = self._alone.pop() if new is None else await new
                    played = self._kept(await worker.call(watched, account))
                except WorkerDiedError as death:
                    account.broken_off()
                    if self._fault is not None:
                        raise self._fault from None
                    if (death.began and death.server is None) or start == STARTS:
                        doing = f" in {death.at}" if death.at else ""
                        raise RolloutLostError(f"its process {death}{doing}, twice") from None
                    start += 1
                else:
                    if worker.changed is None:
                        self._alone.append(worker)
                    return played

    def _kept(self, report: Report) -> Played:
        """The rollout that came back; files that came with it from another machine are written."""
        assert report.played is not None
        outcome = report.played.outcome
        wanted = {f"{outcome.row_id}/roll_{outcome.id}{ending}" for ending in (".db", ".log")}
        for name in wanted & report.files.keys() if self._cluster is not None else ():
            file = self.folder.row_folder(outcome.row_id, self._seeds[outcome.row_id]) / Path(name).name
            write_file(file, report.files[name], durable=file.suffix == ".db")
            if file.suffix == ".db":
                outcome.database = file.relative_to(self.folder.root).as_posix()
        return report.played

    async def _least_busy(self) -> Worker:
        """A process with the fewest rollouts; none gets more than its share of ``--max-concurrency``."""
        while True:
            if self._fault is not None:
                raise self._fault
            for worker in [worker for worker in self._workers if worker.died is not None]:
                self._count(WorkerDiedError(worker.died or "", began=worker.ready, server=worker.server))
                self._replace(worker)
            if able := [worker for worker in self._workers if worker.load < self._share]:
                return min(able, key=lambda worker: worker.load)
            self._changed.clear()
            await self._changed.wait()

    def _start_missing(self, wanted: int) -> None:
        for _ in range(wanted - len(self._workers) - len(self._starts)):
            self._starts.add(self._begin(self._join()))

    async def _join(self) -> None:
        """Start a process, and play in it from then on."""
        while self._fault is None:
            try:
                self._workers.append(await self._started(self._new(alone=False)))
                if self._cluster is not None:
                    self._failed_starts = 0
                break
            except WorkerDiedError as death:
                self._count(death)
                await asyncio.sleep(RESTART_AFTER)
        self._changed.set()

    def _count(self, death: WorkerDiedError) -> None:
        """End the evaluation if several processes have ended in succession before they were ready."""
        if death.server is not None and not death.began:
            if death.server == self._failed_server:  # one fault of several processes
                return
            self._failed_server = death.server
        self._failed_starts = 0 if death.began else self._failed_starts + 1
        if self._failed_starts >= STARTS:
            fault = f"worker processes end before they play: the last one {death}"
            self._fail(RewardKitError(fault, remedy="Run without --workers to see why."))

    def _fail(self, fault: BaseException) -> None:
        """End the evaluation: all calls that wait for a worker raise ``fault``."""
        self._fault = self._fault or fault
        for worker in self._running:
            if worker.died is None:
                worker.kill("was ended, since the evaluation fails")
        self._changed.set()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do ``work`` beside the rollouts; its exception ends the evaluation."""
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._beside.discard(task)
        self._starts.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fail(fault)

    def _new(self, *, alone: bool) -> Worker:
        if self._cluster is None:
            return WorkerProcess(self._note, self._server)
        return self._cluster.worker(alone=alone)

    async def _started(self, worker: Worker, *, alone: bool = False) -> Worker:
        config = worker_config(self._config, self._processes, concurrency=1 if alone else self._share)
        here = Setup(config, str(self.folder.root))
        await worker.start(self._cluster.setup(config) if self._cluster and self._seeds else here)
        self._running.add(worker)
        return worker

    @property
    def _share(self) -> int:
        """The most rollouts that one process plays at a time."""
        return -(-self._config.max_concurrency // self._processes)

    async def _look(self) -> None:
        """Kill processes that hang or use too much memory."""
        limit = None if self._config.worker_memory is None else self._config.worker_memory * 2**20
        silence = min((self._config.timeout or SILENT_AFTER) + HANG_GRACE, SILENT_AFTER)
        while True:
            await asyncio.sleep(LOOK_EVERY)
            for worker in list(self._running):
                if worker.died is not None:
                    self._running.discard(worker)
                elif limit is not None and worker.memory > limit:
                    worker.kill(f"used more than --worker-memory {self._config.worker_memory}")
                elif worker.ready and worker.load and time.monotonic() - worker.heard > silence:
                    worker.kill("stopped answering and was ended")

    async def close(self) -> None:
        beside = list(self._beside)
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await asyncio.gather(*(worker.close() for worker in self._running if worker.died is None))
        self._running.clear()
        if self._cluster is not None:
            await self._cluster.close()
