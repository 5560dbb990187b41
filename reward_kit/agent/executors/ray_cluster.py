"""Rollouts on the nodes of a Ray cluster: the same results and files as in one process.

This process holds the lock and the log, counts, and writes all files; actors play. What a lost actor or node
was playing is played again elsewhere. A rollout whose actor dies twice is played alone from then on, so that
the one to blame is found; it is reported as an infrastructure error when it has used up its retries.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from reward_kit.agent.executors.ray_shipment import forwarded_environment, pack
from reward_kit.agent.executors.ray_worker import RayWorker
from reward_kit.agent.executors.shares import STARTS, share_config
from reward_kit.agent.executors.worker_processes import Place, ProcessDiedError, WorkerProcesses
from reward_kit.agent.faults import fault_line
from reward_kit.agent.providers.leave import Asker
from reward_kit.agent.reports.wording import one_line
from reward_kit.agent.runs.parcels import NewFile
from reward_kit.agent.tally import note
from reward_kit.agent.versions import versions
from reward_kit.errors import RewardKitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.participants import Participants
    from reward_kit.agent.runs.group_commit import Finished
    from reward_kit.agent.runs.open_evaluation import OpenEvaluation
    from reward_kit.agent.schedule import Job
    from reward_kit.agent.tally import Progress, Tally

DEFAULT = "default"
"""The address when none is given."""
ADDRESS = "RAY_ADDRESS"
LOCAL = "local"
OBJECT_STORE = 256 * 2**20
"""Bytes in a cluster of our own: little but the bundle goes through it."""
ACTOR = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": 2}
"""Calls at the same time: one that takes what the actor has to say, and one that tells it something."""
GRACE = 15.0
"""Seconds that an actor has to end once it is told to."""
CONNECT = 20.0
"""Seconds to reach a cluster's address."""
ROOM_AFTER = 20.0
"""Seconds after which to say that an actor waits for a processor."""


class RayCluster(WorkerProcesses):
    """Shares the jobs of an opened evaluation out to actors; ``check_ray`` tells whether that can be."""

    def __init__(
        self,
        config: EvaluationConfig,
        opened: OpenEvaluation,
        participants: Participants,
        tally: Tally,
        progress: Progress,
    ) -> None:
        super().__init__(config, opened, participants, tally, progress)
        self._ray = _ray()
        self._jobs = {job.place: job for job in opened.jobs}
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="ray")
        self._connected = False
        self._shipment: Any = None
        self._environment = forwarded_environment()

    async def run(self) -> None:
        self._progress.started(self._tally)
        if not self._jobs:
            return
        shipment = pack(self._config)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._starter, self._connect)  # in a thread: Ray would take over SIGTERM
        self._shipment = await loop.run_in_executor(self._starter, self._ray.put, shipment)
        await self._play(self._actors_wanted())

    async def close(self) -> None:
        """Leave the cluster; one that was started for this run ends."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._starter, self._disconnect)  # after _connect, should that still run
        self._starter.shutdown()
        await super().close()

    def _connect(self) -> None:
        if self._ray.is_initialized():
            return  # by the program that calls this, which goes on using it
        address = _address(self._config)
        more: dict[str, Any] = {}
        if address == LOCAL:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            more = {
                "num_cpus": max(os.cpu_count() or 1, self._config.workers),
                "object_store_memory": OBJECT_STORE,
                "include_dashboard": False,
            }
        noise = logging.getLogger("ray")
        level = noise.level
        noise.setLevel(logging.ERROR)
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **more)
        except (OSError, RuntimeError, ValueError, TimeoutError) as error:
            raise _unreachable(address, error) from error
        finally:
            noise.setLevel(level)
        self._connected = True

    def _disconnect(self) -> None:
        self._shipment = None
        if self._connected:
            self._connected = False
            self._ray.shutdown()

    def _actors_wanted(self) -> int:
        if self._config.workers > 1:
            return min(self._config.workers, self._config.max_concurrency)
        processors = int(self._ray.cluster_resources().get("CPU", 1))
        return max(1, min(processors, len(self._jobs), self._config.max_concurrency))

    async def _see_through(self, jobs: Sequence[Job], concurrency: int) -> None:
        """Have all of ``jobs`` played, by one actor after the other where they die."""
        left = {job.place: job for job in jobs}
        deaths: Counter[Place] = Counter()
        failed_starts = 0
        while left and self._tally.may_start:
            alone = [place for place in left if deaths[place] > 1][:1]
            before = len(left)
            begun: dict[Place, float] = {}
            setup = {
                "config": share_config(self._config, 1 if alone else concurrency),
                "eval_id": self._tally.eval_id,
                "budget": self._tally.has_budget,
                "environment": self._environment,
                "bases": self._bases(),
                "version": versions()["reward-kit"],
            }
            try:
                await self._one_actor(setup, alone or list(left), left, begun)
            except ProcessDiedError as death:
                failed_starts = failed_starts + 1 if not begun and len(left) == before else 0
                if failed_starts == STARTS:
                    raise RewardKitError(
                        f"an actor that was to play rollouts died before it began one: {death}",
                        remedy="Run without --ray to see why.",
                    ) from None
                deaths.update(begun.keys())
                place = next(iter(begun), None) if alone else None  # None: it did not get to it
                if place is not None and deaths[place] > max(1, self._config.retries):
                    await self._give_up(left.pop(place), deaths[place] - 1, f"its actor died: {death}")
            else:
                if not alone:
                    return

    def _bases(self) -> list[str]:
        """What ``seeded_bases`` wrote down of the bases in use."""
        folder = self._opened.folder
        keys = {job.task.seed.key: folder.ensure_base(job.task.seed).parent for job in self._jobs.values()}
        return [path.name for key, home in keys.items() for path in home.glob(f"{key}.*.seeded")]

    async def _one_actor(
        self,
        setup: dict[str, Any],
        places: list[Place],
        left: dict[Place, Job],
        begun: dict[Place, float],
    ) -> None:
        """Play until the actor is done; ``begun`` are the rollouts that it has under way."""
        errors = self._ray.exceptions
        actor = self._ray.remote(RayWorker).options(**ACTOR).remote()
        asker = Asker(self._limits, actor.hear.remote)
        in_order = False
        taking: Awaitable[list[dict[str, Any]]] | None = None
        try:
            # Keys go in the arguments of a call, which stay in memory. A runtime environment, where Ray has
            # a place for variables, is written to its logs.
            await self._room(actor.begin.remote(setup, places, self._shipment))
            in_order = True
            over = False
            while not over:
                taking = actor.take.remote(may_start=self._tally.may_start)
                lines = await taking
                taking = None
                self._hear_of_spending(lines)
                over = await self._heard(lines, left, begun, asker)
                if self._hangs(begun):
                    in_order = False
                    raise ProcessDiedError("it did not end in time, and was ended")
        except errors.RayActorError as error:
            in_order = False
            if getattr(error, "actor_init_failed", False):
                raise RewardKitError(
                    f"no actor can start on the Ray cluster: {one_line(_last_line(error))}",
                    remedy=f"Install reward-kit {versions()['reward-kit']} on all nodes.",
                ) from None
            raise ProcessDiedError(_why(error)) from None
        except errors.RayTaskError as error:
            raise RewardKitError(f"an actor of the Ray cluster failed: {_last_line(error)}") from None
        except errors.RayError as error:  # what it said was lost with its node
            raise ProcessDiedError(_why(error)) from None
        finally:
            await self._ended(actor, taking, in_order=in_order)
            asker.gone()

    def _finished(self, line: dict[str, Any], files: Sequence[NewFile] = ()) -> Finished[RolloutOutcome]:
        return super()._finished(line, files or self._files_of(line))

    def _files_of(self, line: dict[str, Any]) -> list[NewFile]:
        """What belongs to a rollout; its trajectory last, which says that all the rest is there."""
        outcome, files = line["outcome"], line["files"]
        folder = self._opened.folder.row_folder(self._jobs[outcome["row_id"], outcome["index"]].task)
        found = []
        for name in sorted(files, key=lambda name: name == outcome["file"]):
            path = self._opened.folder.root / name
            if path.parent != folder:
                raise RewardKitError(f"a node of the Ray cluster sent a file for another place: {name}")
            found.append(NewFile(path, (files[name],), durable=path.suffix != ".log"))
        return found

    async def _room(self, beginning: Awaitable[None]) -> None:
        """Wait until an actor has begun; say so if the cluster has no processor for it."""
        waiting = asyncio.ensure_future(_result(beginning))
        try:
            done, _ = await asyncio.wait({waiting}, timeout=ROOM_AFTER)
            if not done:
                note(self._progress, "waiting for a free processor in the Ray cluster")
            await waiting
        finally:
            waiting.cancel()

    async def _ended(
        self, actor: Any, taking: Awaitable[list[dict[str, Any]]] | None, *, in_order: bool
    ) -> None:
        """End an actor, ``in_order`` if it can be told to; ``taking`` is what it has been asked for last."""
        errors = self._ray.exceptions
        if in_order:
            with suppress(asyncio.TimeoutError, errors.RayError):
                self._heard_last(await asyncio.wait_for(_last_words(actor, taking), GRACE))
        with suppress(errors.RayError):
            self._ray.kill(actor)


def check_ray(config: EvaluationConfig, participants: Participants) -> None:
    """Raise ``UsageError`` for what cannot be shared out to actors, and where Ray is not installed;
    ``RewardKitError`` where no cluster is.
    """
    from reward_kit.agent.local_models import LocalModel

    if participants.recordings is not None:
        raise UsageError("--ray goes with no replay, which asks no model and needs little time")
    if config.cache:
        raise UsageError("--ray does not go with --cache: the nodes have no folder in common")
    if any(isinstance(model, LocalModel) for model in participants.models.values()):
        raise UsageError(
            "--ray does not go with a model that lies on this machine",
            remedy="Serve it where all nodes reach it, and name it with --model-arg api_base=...",
        )
    address = _address(config)
    if not _ray().is_initialized():
        try:
            _check_address(address)
        except OSError as error:
            raise _unreachable(address, error) from error


def _address(config: EvaluationConfig) -> str:
    """Where the cluster is, or ``LOCAL``."""
    return (os.environ.get(ADDRESS) if config.ray == DEFAULT else config.ray) or LOCAL


def _unreachable(address: str, error: Exception) -> RewardKitError:
    return RewardKitError(
        f"the Ray cluster cannot be reached: {one_line(fault_line(error))}", place=f"--ray {address}"
    )


def _ray() -> Any:
    """The library, imported only here."""
    try:
        import ray  # type: ignore[import-not-found,unused-ignore]  # an extra
    except ImportError:
        raise UsageError(
            "--ray needs Ray, which is not installed", remedy="pip install 'reward-kit[ray]'"
        ) from None
    return ray


def _check_address(address: str) -> None:
    """Raise ``OSError`` if nothing listens there: Ray itself would try for minutes."""
    host, colon, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT).close()


async def _last_words(actor: Any, taking: Awaitable[list[dict[str, Any]]] | None) -> list[dict[str, Any]]:
    """What an actor has to say that is told to end."""
    ending = actor.end.remote()
    taken = [] if taking is None else await taking
    return [*taken, *await ending]


async def _result(awaited: Awaitable[Any]) -> Any:
    return await awaited


def _why(error: Exception) -> str:
    """The line of Ray's message that says what happened, without the ids before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "died" in line or "dead" in line or "lost" in line]
    return one_line(telling[-1] if telling else lines[-1] if lines else type(error).__name__)


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
