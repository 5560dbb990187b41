"""``--ray``: rollouts on the nodes of a Ray cluster, with the results and files of one process.

A worker process on this machine describes the bundle and seeds its bases. Each actor has an in-process
executor. What a lost actor or node was playing is played again; a rollout that loses two actors is then
played alone, and is lost if that loses its actor, too.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import re
import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.files import temporary_folder, write_file
from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.text import one_line
from reward_kit.agent.base.versions import versions
from reward_kit.agent.bundles.bundle import read_bundle
from reward_kit.agent.config import EvaluationConfig
from reward_kit.agent.models.local.recognise import names_local_model
from reward_kit.agent.runner.in_process import InProcess
from reward_kit.agent.runner.protocol import planned_tasks
from reward_kit.agent.runner.worker import Sender, Server
from reward_kit.agent.runner.workers import CLOSE_GRACE, STARTS, Worker, WorkerDiedError, Workers
from reward_kit.agent.storage.layout import RunsFolder
from reward_kit.errors import RewardKitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reward_kit.agent.bundles.bundle import BundleRows
    from reward_kit.agent.records.outcome import PlayedRollout
    from reward_kit.agent.runner.protocol import Description, Events, PlayRequest

DEFAULT = "default"
"""The address when none is given."""
LOCAL = "local"
OBJECT_STORE = 256 * 2**20
"""Bytes in a cluster that is started for this run."""
ACTOR = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 10_000}
CONNECT = 20.0
"""Seconds to reach a cluster's address."""
ROOM_AFTER = 20.0
"""Seconds after which to say that an actor waits for a processor."""
WAIT = 1.0
"""Seconds that an actor lets the driver wait for news."""
NOT_SENT = [".?*", "__pycache__", "node_modules", "*.pyc"]
"""Files that stay on this machine: hidden ones (``.git``, ``.env``) and caches."""
FORWARDED = re.compile(
    r"[A-Z0-9_]+_(API_KEY|API_BASE|API_VERSION|BASE_URL)"
    r"|AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|REGION|REGION_NAME|DEFAULT_REGION)"
    r"|HF_TOKEN|OPENAI_ORGANIZATION|VERTEXAI_(PROJECT|LOCATION)|WATSONX_(URL|PROJECT_ID)"
    r"|REWARD_KIT_[A-Z0-9_]+|OTEL_[A-Z0-9_]+"
)
"""Names of the variables that models, agents and telemetry are set up with."""


class RayActor:
    """The actor: a worker's server on a node, which the driver sends messages to and receives them from.

    ``start`` comes first. The process is the actor's alone: its environment is that of the rollouts.
    """

    def __init__(self) -> None:
        self._folder = temporary_folder("ray")
        self._outbox = _Outbox()
        self._server: _NodeServer | None = None

    async def start(self, setup: dict[str, Any]) -> None:
        """Prepare to play with the options of ``setup``; the bundle is loaded at the first call.

        Keys come in ``environment``: the arguments of a call stay in memory, while Ray writes its runtime
        environments to its logs.
        """
        if setup["version"] != versions()["reward-kit"]:
            raise RewardKitError(
                f"reward-kit is {setup['version']} on this machine and {versions()['reward-kit']} on a node",
                remedy="Install the same everywhere.",
            )
        os.environ.update(setup["environment"])
        options = dict(setup["config"])
        for name, place in setup["places"].items():
            options[name] = str(place.found())
        config = EvaluationConfig(**options)
        self._rows = read_bundle(config.dataset, config.task_dir)
        root = self._folder / "runs"
        executor = InProcess(config, self._rows, root, self._outbox, eval_id=setup["eval_id"])
        self._server = _NodeServer(executor, self._outbox, root, frozenset(setup["bases"]))

    async def send(self, message: dict[str, Any]) -> None:
        """Take a message of the driver."""
        assert self._server is not None
        self._server.receive(message)

    async def receive(self) -> list[dict[str, Any]]:
        """The messages for the driver; waits a little for the first."""
        return await self._outbox.take(WAIT)

    async def close(self) -> list[dict[str, Any]]:
        """Cancel what is played, and leave nothing on the node; returns the last messages."""
        if self._server is not None:
            await self._server.close()
            self._rows.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        return await self._outbox.take(0)


class _Outbox(Sender):
    """Messages that wait until the driver takes them."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._loop = asyncio.get_event_loop()
        self._filled = asyncio.Event()

    def send(self, message: Mapping[str, Any]) -> None:
        self._messages.append(dict(message))
        self._loop.call_soon_threadsafe(self._filled.set)

    async def take(self, seconds: float) -> list[dict[str, Any]]:
        with suppress(asyncio.TimeoutError):
            if not self._messages:
                self._filled.clear()
                await asyncio.wait_for(self._filled.wait(), seconds)
        taken, self._messages = self._messages, []
        return taken


class _NodeServer(Server):
    """Sends the complete databases along, which lie in a folder of the node."""

    def __init__(self, executor: InProcess, sender: Sender, root: Path, bases: frozenset[str]) -> None:
        super().__init__(executor, sender)
        self._root = root
        self._bases = bases

    async def play(self, request: PlayRequest) -> dict[str, Any]:
        for path in (self._root / ".bases").glob("*.seeded"):
            if path.name not in self._bases:  # deltas and gold states go with the driver's bases
                raise RewardKitError(
                    "a node of the Ray cluster seeds another database than this machine (SQLite "
                    f"{versions()['sqlite']} there)",
                    remedy="Install the same versions everywhere, and let a seed.py draw no random numbers.",
                )
        plain = await super().play(request)
        for name in (plain["outcome"]["database"], f"{request.row_id}/roll_{plain['outcome']['id']}.log"):
            if name is not None and (self._root / name).is_file():
                plain.setdefault("files", {})[name] = (self._root / name).read_bytes()
                (self._root / name).unlink()
        return plain


@dataclass(frozen=True, slots=True)
class _Place:
    """A file or folder that a node has, too: relative to the working directory, or to a module's folder."""

    path: str
    module: str | None = None

    def found(self) -> Path:
        """The path on this node."""
        if self.module is None:
            return Path(self.path)
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            raise RewardKitError(f"a node of the Ray cluster has no {self.module}")
        return Path(next(iter(spec.submodule_search_locations))) / self.path


class RayWorker(Worker):
    """An actor, as the driver sees it."""

    def __init__(self, events: Events, ray: Any, *, processors: int = 1) -> None:
        super().__init__(events)
        self._ray = ray
        self._actor = ray.remote(RayActor).options(**ACTOR, num_cpus=processors).remote()
        self._receiving: asyncio.Future[None] | None = None

    async def start(self, setup: Mapping[str, Any]) -> None:
        """Wait for the actor, and say so if the cluster has no processor for it."""
        starting = asyncio.ensure_future(_result(self._actor.start.remote(dict(setup))))
        try:
            done, _ = await asyncio.wait({starting}, timeout=ROOM_AFTER)
            if not done:
                self._events.note("waiting for a free processor in the Ray cluster")
            await starting
        except self._ray.exceptions.RayActorError as error:
            if not getattr(error, "actor_init_failed", False):
                raise WorkerDiedError(_why(error)) from None
            raise RewardKitError(
                f"no actor can start on the Ray cluster: {one_line(str(error).strip().splitlines()[-1])}",
                remedy=f"Install reward-kit {versions()['reward-kit']} on all nodes.",
            ) from None
        except self._ray.exceptions.RayTaskError as error:
            raise _cause(error) from None
        finally:
            starting.cancel()
        self.heard = time.monotonic()
        self._receiving = asyncio.ensure_future(self._receive())

    def send(self, message: Mapping[str, Any]) -> None:
        self._actor.send.remote(dict(message))

    def kill(self, reason: str) -> None:
        self._lost(reason)
        if self._receiving is not None:
            self._receiving.cancel()
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)

    async def close(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)
        with suppress(asyncio.TimeoutError, self._ray.exceptions.RayError):
            for message in await asyncio.wait_for(_result(self._actor.close.remote()), CLOSE_GRACE):
                self.receive(message)
        self.kill("was closed")

    async def _receive(self) -> None:
        try:
            while True:
                for message in await self._actor.receive.remote():
                    self.receive(message)
                self.heard = time.monotonic()
        except self._ray.exceptions.RayError as error:
            for call in self._calls.values():  # none says what it was doing
                call.began = True
            self._lost(f"was lost: {_why(error)}")


class RayExecutor(Workers):
    """An executor that plays on a Ray cluster."""

    deaths_before_alone = 2

    def __init__(
        self, config: EvaluationConfig, rows: BundleRows, root: str | Path, events: Events, *, eval_id: str
    ) -> None:
        super().__init__(config, rows, root, events, eval_id=eval_id)
        self._address = (os.environ.get("RAY_ADDRESS") if config.ray == DEFAULT else config.ray) or LOCAL
        self._check()
        self._ray = _ray()
        self._connected = False
        self._starts: set[asyncio.Task[None]] = set()
        self._fault: BaseException | None = None
        self._changed = asyncio.Event()
        # in one thread: Ray installs handlers of signals if it is started in the main one
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")

    def _check(self) -> None:
        """Raise ``UsageError`` for options that no node can heed, ``RewardKitError`` where no cluster is."""
        config = self._config
        if (config.agent or "").startswith("replay:"):
            raise UsageError("--ray cannot be combined with a replay, which asks no model")
        if config.cache:
            raise UsageError("--ray cannot be combined with --cache: the nodes have no folder in common")
        models = ((config.model, config.provider), (config.sim_model, config.user_provider))
        if any(
            name and names_local_model(name, provider=provider, model_args={}) for name, provider in models
        ):
            raise UsageError(
                "--ray cannot be combined with a model that lies on this machine",
                remedy="Serve it where all nodes reach it, and name it with --model-arg api_base=...",
            )
        if not _ray().is_initialized():
            try:
                _check_address(self._address)
            except OSError as error:
                raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> RewardKitError:
        return RewardKitError(
            f"the Ray cluster cannot be reached: {one_line(fault_line(error))}",
            place=f"--ray {self._address}",
        )

    async def describe(self) -> Description:
        """Have a process of this machine describe the bundle, and connect to the cluster."""
        local = Workers(
            replace(self._config, workers=1), self._rows, self._root, self._events, eval_id=self._eval_id
        )
        try:
            description = await local.describe()
        finally:
            await local.close()
        self._config = replace(self._config, **description.options)
        self._tasks = {task.row.id: task for task in planned_tasks(self._rows, description)}
        self._folder = RunsFolder(self._root)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connect)
        processors = int(self._ray.cluster_resources().get("CPU", 1))
        wanted = self._config.workers or processors
        self._processes = max(1, min(wanted, self._config.max_concurrency))
        self._looking = asyncio.ensure_future(self._look())
        return description

    def _connect(self) -> None:
        if self._ray.is_initialized():
            return  # by the program that calls this, which stays connected
        more: dict[str, Any] = {}
        if self._address == LOCAL:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            more = {
                "num_cpus": max(os.cpu_count() or 1, self._config.workers or 1),
                "object_store_memory": OBJECT_STORE,
                "include_dashboard": False,
            }
        try:
            self._ray.init(
                address=self._address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env=self._files_to_send(),
                **more,
            )
        except (OSError, RuntimeError, ValueError, TimeoutError) as error:
            raise self._unreachable(error) from error
        self._connected = True

    def _files_to_send(self) -> dict[str, Any]:
        """The runtime environment: the working directory, and the bundle if that lies elsewhere."""
        here, folder = Path.cwd().resolve(), self._rows.folder.resolve()
        excluded = list(NOT_SENT)
        if self._root.is_relative_to(here):
            excluded.append(f"/{self._root.relative_to(here)}")
        excluded += [f"/{path.parent.relative_to(here)}" for path in here.glob("*/pyvenv.cfg")]
        environment: dict[str, Any] = {"working_dir": str(here), "excludes": excluded}
        if not folder.is_relative_to(here):
            environment["py_modules"] = [str(folder)]
        return environment

    def _places(self) -> dict[str, _Place]:
        """The files that options name, as the nodes find them."""
        named = {"dataset": self._rows.dataset, "task_dir": self._rows.folder}
        if self._config.few_shot_displays:
            named["few_shot_displays"] = Path(self._config.few_shot_displays)
        here, folder = Path.cwd().resolve(), self._rows.folder.resolve()
        places = {}
        for name, path in ((name, path.resolve()) for name, path in named.items()):
            if path.is_relative_to(here):
                places[name] = _Place(str(path.relative_to(here)))
            elif path.is_relative_to(folder):
                places[name] = _Place(str(path.relative_to(folder)), folder.name)
            else:
                raise UsageError(
                    f"{path} is neither in the working directory nor in the bundle's folder",
                    remedy="Move it there: these are sent to the nodes of a Ray cluster.",
                )
        return places

    def _setup(self, *, alone: bool) -> dict[str, Any]:
        keys = {task.seed.key for task in self._tasks.values()}
        bases = (self._root / ".bases").glob("*.seeded")
        return {
            **super()._setup(alone=alone),
            "places": self._places(),
            "environment": {name: text for name, text in os.environ.items() if FORWARDED.fullmatch(name)},
            "bases": [path.name for path in bases if path.name.partition(".")[0] in keys],
            "version": versions()["reward-kit"],
        }

    async def _started(self, *, alone: bool = False) -> Worker:
        # the other actors may hold all processors
        worker = RayWorker(self._events, self._ray, processors=0 if alone else 1)
        self._running.add(worker)
        await worker.start(self._setup(alone=alone))
        return worker

    async def _least_busy(self, row_id: str) -> Worker:
        """An actor with the fewest rollouts; others start meanwhile, as the cluster has room for them."""
        while True:
            self._workers = [worker for worker in self._workers if worker.died is None]
            missing = self._processes - len(self._workers) - len(self._starts)
            self._starts |= {asyncio.ensure_future(self._join()) for _ in range(missing)}
            if self._workers:
                return self._chosen(row_id)
            self._changed.clear()
            await self._changed.wait()
            if self._fault is not None:
                raise self._fault

    async def _join(self) -> None:
        """Start an actor, and play on it from then on."""
        try:
            self._workers.append(await self._started())
            self._failed_starts = 0
        except WorkerDiedError as death:
            self._failed_starts += 1
            if self._failed_starts >= STARTS:
                self._fault = RewardKitError(f"actors of the Ray cluster die before they play: {death}")
        except RewardKitError as error:
            self._fault = error
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._starts.discard(task)
            self._changed.set()

    def _played(self, plain: Mapping[str, Any]) -> PlayedRollout:
        """Write the files that came with a rollout."""
        played = super()._played(plain)
        outcome = played.outcome
        self._folder.row_folder(self._tasks[outcome.row_id])
        expected = {f"{outcome.row_id}/roll_{outcome.id}{ending}" for ending in (".db", ".log")}
        for name, data in plain.get("files", {}).items():
            if name not in expected:
                raise RewardKitError(f"a node of the Ray cluster sent a file for another place: {name}")
            write_file(self._root / name, data, durable=name.endswith(".db"))
        return played

    async def close(self) -> None:
        """End the actors, and the connection unless it was there before."""
        for start in list(self._starts):
            start.cancel()
        await super().close()
        if self._connected:
            self._connected = False
            await asyncio.get_running_loop().run_in_executor(self._thread, self._ray.shutdown)
        self._thread.shutdown()


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


async def _result(awaited: Any) -> Any:
    return await awaited


def _cause(error: Any) -> Exception:
    """The error that an actor raised."""
    cause = getattr(error, "cause", error)
    return cause if isinstance(cause, RewardKitError) else RewardKitError(_why(error))


def _why(error: Exception) -> str:
    """The line of Ray's message that says what happened, without the ids before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "died" in line or "dead" in line or "lost" in line]
    return one_line(telling[-1] if telling else lines[-1] if lines else type(error).__name__)
