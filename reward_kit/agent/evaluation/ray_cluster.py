"""``--ray``: workers on the nodes of a Ray cluster, with the results and files of one process.

Each is an actor that plays: it has the methods ``receive(call)`` and ``reports()``, and ends with an error of
Ray's.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import re
import shutil
import socket
import threading
import time
import traceback
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.files import temporary_folder
from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.text import one_line
from reward_kit.agent.base.versions import install_line, versions
from reward_kit.agent.evaluation.connection import CLOSE_GRACE, Worker, WorkerDiedError
from reward_kit.agent.evaluation.protocol import Report, Setup, WorkerCall, decoded, encoded
from reward_kit.agent.models.local.backends import names_local_model
from reward_kit.errors import RewardKitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from reward_kit.agent.bundles.bundle import BundleRows
    from reward_kit.agent.bundles.seed import Seed
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.evaluation.worker import Player

DEFAULT = "default"
"""The address when none is given."""
LOCAL = "local"
WORKER = "reward_kit.agent.evaluation.worker"
OBJECT_STORE = 256 * 2**20
"""Bytes in a cluster that is started for this run."""
ACTOR = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 10_000}
CONNECT = 20.0
"""Seconds to reach a cluster's address."""
ROOM_AFTER = 20.0
"""Seconds after which to say that an actor waits for a processor."""
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
    """The actor: plays on its node, in a thread beside those of Ray."""

    def __init__(self) -> None:
        self._folder = temporary_folder("ray")
        self._reports: list[bytes] = []
        self._filled = asyncio.Event()
        # by name: the driver imports nothing that plays
        self._player: Player = import_module(WORKER).Player(self._tell)

    async def start(self, setup: Setup, marks: Any, name: str) -> None:
        """Play with ``setup``, whose keys Ray does not log; ``marks`` remembers what begins by ``name``."""
        here = versions()["reward-kit"]
        if setup.version != here:
            fault = f"reward-kit is {setup.version} on this machine and {here} on a node"
            raise RewardKitError(fault, remedy="Install the same everywhere.")
        os.environ.update(setup.environment)
        config = {**setup.config, **{option: _found(place) for option, place in setup.places.items()}}
        setup = replace(setup, config=config, root=str(self._folder / "runs"))
        self._loop, self._mark = asyncio.get_running_loop(), partial(marks.put.remote, name)
        began = asyncio.Event()
        self._thread = threading.Thread(target=self._play, args=(setup, began), daemon=True)
        self._thread.start()
        await began.wait()

    def _play(self, setup: Setup, began: asyncio.Event) -> None:
        """Play to the end in this thread; code of the bundle that breaks it ends the process."""
        with ExitStack() as broken:
            broken.callback(os._exit, 1)
            broken.callback(traceback.print_exc)
            self._player.run(setup, partial(self._soon, began.set))
            broken.pop_all()

    def _tell(self, report: Report) -> None:
        if report.at is not None:  # the process may end before this is asked for
            _ray().get(self._mark(report.at))
        self._soon(self._add, encoded(report))

    def _soon(self, do: Callable[..., None], *what: bytes) -> None:
        self._loop.call_soon_threadsafe(do, *what)

    def _add(self, *reports: bytes) -> None:
        self._reports += reports
        self._filled.set()

    async def receive(self, call: bytes) -> None:
        self._player.receive(decoded(WorkerCall, call))

    async def reports(self) -> list[bytes]:
        """The next messages, once there are any; none after ``close``."""
        await self._filled.wait()
        if self._thread.is_alive():
            self._filled.clear()
        reports, self._reports = self._reports, []
        return reports

    async def close(self) -> None:
        """Stop playing, and leave nothing on the node."""
        self._player.stop()
        await asyncio.to_thread(self._thread.join)
        self._add()
        shutil.rmtree(self._folder, ignore_errors=True)


class Marks:
    """An actor that outlives those that play: what a watched rollout was doing, by the name of its actor."""

    def __init__(self) -> None:
        self._marks: dict[str, str] = {}

    def put(self, name: str, what: str) -> None:
        self._marks[name] = what

    def get(self, name: str) -> str | None:
        return self._marks.get(name)


def _found(place: tuple[str, str | None]) -> str:
    """The path on this node of a file relative to the working directory, or to a module's folder."""
    path, module = place
    if module is None:
        return path
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise RewardKitError(f"a node of the Ray cluster has no {module}")
    return str(Path(next(iter(spec.submodule_search_locations))) / path)


class RayWorker(Worker):
    def __init__(self, note: Callable[[str], None], ray: Any, marks: Any, *, processors: int) -> None:
        super().__init__(note)
        self._ray, self._marks, self._name = ray, marks, uuid.uuid4().hex
        self._actor = ray.remote(RayActor).options(**ACTOR, num_cpus=processors).remote()
        self._listening: asyncio.Task[None] | None = None

    async def start(self, setup: Setup) -> None:
        """Wait for the actor, and say so if the cluster has no processor for it."""
        starting = asyncio.ensure_future(self._actor.start.remote(setup, self._marks, self._name))
        try:
            done, _ = await asyncio.wait({starting}, timeout=ROOM_AFTER)
            if not done:
                self._note("waiting for a free processor in the Ray cluster")
            await starting
        except self._ray.exceptions.RayActorError as error:
            if not getattr(error, "actor_init_failed", False):
                raise WorkerDiedError(_why(error)) from None
            fault = f"no actor can start on the Ray cluster: {one_line(str(error).strip().splitlines()[-1])}"
            remedy = f"Install reward-kit {versions()['reward-kit']} on all nodes."
            raise RewardKitError(fault, remedy=remedy) from None
        except self._ray.exceptions.RayTaskError as error:
            cause = getattr(error, "cause", error)
            raise cause if isinstance(cause, RewardKitError) else RewardKitError(_why(error)) from None
        finally:
            starting.cancel()
        self.heard = time.monotonic()
        self._listening = asyncio.create_task(self._listen())

    def write(self, data: bytes) -> None:
        self._actor.receive.remote(data)

    def kill(self, reason: str) -> None:
        self._reason = self._reason or reason
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)

    async def close(self) -> None:
        with suppress(TimeoutError, self._ray.exceptions.RayError):
            async with asyncio.timeout(2 * CLOSE_GRACE):
                await self._actor.close.remote()
                if self._listening is not None:
                    await self._listening
        self.kill("was closed")
        self._lost("was closed")

    async def _listen(self) -> None:
        with self._answers:
            try:
                while reports := await self._actor.reports.remote():
                    for report in reports:
                        self.receive(decoded(Report, report))
            except self._ray.exceptions.RayError as error:
                with suppress(self._ray.exceptions.RayError):
                    at = await self._marks.get.remote(self._name)
                    for call in self._calls.values():
                        call.at = at
                self.ready = True  # nothing says whether it was
                self.kill(f"was lost: {_why(error)}")
                self._lost(self._reason or "was lost")


class RayCluster:
    """A connection to a Ray cluster, which starts workers there."""

    def __init__(
        self, config: EvaluationConfig, rows: BundleRows, root: Path, note: Callable[[str], None]
    ) -> None:
        """Raises ``UsageError`` for options that no node can act on, and if no cluster can be reached."""
        self._config, self._rows, self._root, self._note = config, rows, root, note
        self._bases: list[str] = []
        self._address = (os.environ.get("RAY_ADDRESS") if config.ray == DEFAULT else config.ray) or LOCAL
        self._connected = False
        self._workers: list[Worker] = []
        """All that were made: Ray ends an actor with the last reference to it, also one that still starts."""
        self._check()
        self._ray = _ray()
        # in one thread: Ray installs handlers of signals if it is started in the main one
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")

    def _check(self) -> None:
        config = self._config
        if any((one or "").startswith("replay:") for one in (config.agent, config.user)):
            raise UsageError("--ray cannot be combined with a replay")
        if config.cache:
            raise UsageError("--ray cannot be combined with --cache: the nodes have no folder in common")
        for name, provider in ((config.model, config.provider), (config.sim_model, config.user_provider)):
            if name and names_local_model(name, provider=provider, model_args={}):
                fault = "--ray cannot be combined with a model that lies on this machine"
                remedy = "Serve it where all nodes reach it, and name it with --model-arg api_base=..."
                raise UsageError(fault, remedy=remedy)
        if not _ray().is_initialized():
            try:
                _check_address(self._address)
            except OSError as error:
                raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> RewardKitError:
        fault = f"the Ray cluster cannot be reached: {one_line(fault_line(error))}"
        return RewardKitError(fault, place=f"--ray {self._address}")

    async def connect(self, used: Iterable[Seed]) -> int:
        """Connect to the cluster; returns its number of processors. ``used`` are the seeds of the rows."""
        keys = {seed.key for seed in used}
        seeded = (self._root / ".bases").glob("*.seeded")
        self._bases = [path.name for path in seeded if path.name.partition(".")[0] in keys]
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connect)
        self._marks = self._ray.remote(Marks).options(num_cpus=0).remote()
        return int(self._ray.cluster_resources().get("CPU", 1))

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
            options = {"log_to_driver": False, "logging_level": logging.ERROR, **more}
            self._ray.init(address=self._address, runtime_env=self._files_to_send(), **options)
        except (OSError, RuntimeError, ValueError) as error:
            raise self._unreachable(error) from error
        self._connected = True

    def _files_to_send(self) -> dict[str, Any]:
        """The runtime environment: the working directory, and the bundle if that lies elsewhere."""
        here, folder = Path.cwd().resolve(), self._rows.folder.resolve()
        excluded = list(NOT_SENT)
        if here in self._root.parents:
            excluded.append(f"/{self._root.relative_to(here)}")
        excluded += [f"/{path.parent.relative_to(here)}" for path in here.glob("*/pyvenv.cfg")]
        environment: dict[str, Any] = {"working_dir": str(here), "excludes": excluded}
        if not folder.is_relative_to(here):
            environment["py_modules"] = [str(folder)]
        return environment

    def _places(self) -> dict[str, tuple[str, str | None]]:
        """The files that options name, as the nodes find them: a path, and the module it is relative to."""
        named = {"dataset": self._rows.dataset, "task_dir": self._rows.folder}
        if self._config.few_shot_displays:
            named["few_shot_displays"] = Path(self._config.few_shot_displays)
        here, folder = Path.cwd().resolve(), self._rows.folder.resolve()
        places: dict[str, tuple[str, str | None]] = {}
        for name, path in ((name, path.resolve()) for name, path in named.items()):
            if path.is_relative_to(here):
                places[name] = str(path.relative_to(here)), None
            elif path.is_relative_to(folder):
                places[name] = str(path.relative_to(folder)), folder.name
            else:
                fault = f"{path} is neither in the working directory nor in the bundle's folder"
                raise UsageError(fault, remedy="Move it there: these are sent to the nodes of a Ray cluster.")
        return places

    def setup(self, config: dict[str, Any]) -> Setup:
        environment = {name: text for name, text in os.environ.items() if FORWARDED.fullmatch(name)}
        version = versions()["reward-kit"]
        return Setup(config, "", version, self._places(), environment, self._bases)

    def worker(self, *, alone: bool) -> Worker:
        """A worker to be started there; beside all others if ``alone``."""
        # the other actors may hold all processors
        worker = RayWorker(self._note, self._ray, self._marks, processors=0 if alone else 1)
        self._workers.append(worker)
        return worker

    async def close(self) -> None:
        if self._connected:
            self._connected = False
            await asyncio.get_running_loop().run_in_executor(self._thread, self._ray.shutdown)
        self._workers.clear()
        self._thread.shutdown()


def _ray() -> Any:
    """The library, imported only here."""
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "A worker died or was killed")  # we report it
    try:
        import ray  # type: ignore[import-not-found,unused-ignore]  # an extra
    except ImportError:
        raise UsageError("--ray needs Ray, which is not installed", remedy=install_line("ray")) from None
    return ray


def _check_address(address: str) -> None:
    """Raise ``OSError`` if nothing listens there: Ray itself would try for minutes."""
    host, colon, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT).close()


def _why(error: Exception) -> str:
    """The sentence of Ray's message that says what happened, without the ids before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "died" in line or "dead" in line or "lost" in line]
    line = telling[-1] if telling else lines[-1] if lines else type(error).__name__
    return one_line(line.partition(". ")[0].removesuffix("."))
