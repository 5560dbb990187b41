"""``--ray``: workers on the nodes of a Ray cluster, with the results and files of one process.

Each actor starts a worker process on its node and passes the messages between it and this process on.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import re
import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.files import temporary_folder
from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.text import one_line
from reward_kit.agent.base.versions import versions
from reward_kit.agent.evaluation.connection import (
    CLOSE_GRACE,
    LONGEST_LINE,
    Worker,
    WorkerDiedError,
    end_of,
    kill_group,
)
from reward_kit.agent.evaluation.fork_server import ForkServer
from reward_kit.agent.models.local.recognise import names_local_model
from reward_kit.errors import RewardKitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from reward_kit.agent.bundles.bundle import BundleRows
    from reward_kit.agent.bundles.seed import Seed
    from reward_kit.agent.config import EvaluationConfig

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
END = 1.0
"""Seconds that an actor has to kill its worker."""
WAIT = 1.0
"""Seconds that an actor lets the driver wait for messages."""
CHUNK = 2**20
"""Bytes that an actor reads at once."""
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
    """The actor: starts a worker on its node, and passes the bytes between it and the driver on."""

    def __init__(self) -> None:
        self._folder = temporary_folder("ray")
        self._received = bytearray()
        self._filled = asyncio.Event()

    async def start(self, setup: dict[str, Any]) -> None:
        """Start the worker with ``setup``.

        Keys come in ``environment``: the arguments of a call stay in memory, while Ray writes its runtime
        environments to its logs.
        """
        here = versions()["reward-kit"]
        if setup["version"] != here:
            raise RewardKitError(
                f"reward-kit is {setup['version']} on this machine and {here} on a node",
                remedy="Install the same everywhere.",
            )
        config = {**setup["config"], **{name: _found(place) for name, place in setup["places"].items()}}
        first = {"config": config, "root": str(self._folder / "runs"), "bases": setup["bases"]}
        self._server = ForkServer({**os.environ, **setup["environment"]})
        connection, self._end = self._server.fork()
        self._reader, self._writer = await asyncio.open_connection(sock=connection)
        self._pid = json.loads(await self._reader.readline())["pid"]
        self._reading = asyncio.create_task(self._read())
        await self.send(json.dumps(first).encode() + b"\n")

    async def send(self, data: bytes) -> None:
        """Pass bytes of the driver on."""
        if not self._writer.is_closing():
            self._writer.write(data)

    async def receive(self) -> bytes | str:
        """Bytes for the driver, waiting a little for the first; the end of the worker, in words."""
        if not self._received and not self._reading.done():
            self._filled.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT):
                    await self._filled.wait()
        if self._received or not self._reading.done():
            return self._taken()
        return end_of(await asyncio.shield(self._end))

    async def close(self) -> bytes:
        """End the worker, and leave nothing on the node; returns the last bytes."""
        if not self._writer.is_closing():
            self._writer.write_eof()
        await asyncio.wait({self._reading}, timeout=CLOSE_GRACE)
        await self.kill()
        return self._taken()

    async def kill(self) -> None:
        """End the worker at once, also if it no longer sees that its socket is closed."""
        kill_group(self._pid)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _taken(self) -> bytes:
        taken = bytes(self._received)
        self._received.clear()
        return taken

    async def _read(self) -> None:
        with suppress(OSError):
            while data := await self._reader.read(CHUNK):
                self._received += data
                self._filled.set()
        self._filled.set()


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
    """A worker on a node, as the driver sees it."""

    def __init__(self, note: Callable[[str], None], ray: Any, *, processors: int) -> None:
        super().__init__(note)
        self._ray = ray
        self._actor = ray.remote(RayActor).options(**ACTOR, num_cpus=processors).remote()
        self._receiving: asyncio.Task[None] | None = None

    async def start(self, setup: Mapping[str, Any]) -> None:
        """Wait for the actor, and say so if the cluster has no processor for it."""
        starting = asyncio.ensure_future(self._actor.start.remote(dict(setup)))
        try:
            done, _ = await asyncio.wait({starting}, timeout=ROOM_AFTER)
            if not done:
                self._note("waiting for a free processor in the Ray cluster")
            await starting
        except self._ray.exceptions.RayActorError as error:
            if not getattr(error, "actor_init_failed", False):
                raise WorkerDiedError(_why(error)) from None
            raise RewardKitError(
                f"no actor can start on the Ray cluster: {one_line(str(error).strip().splitlines()[-1])}",
                remedy=f"Install reward-kit {versions()['reward-kit']} on all nodes.",
            ) from None
        except self._ray.exceptions.RayTaskError as error:
            cause = getattr(error, "cause", error)
            raise cause if isinstance(cause, RewardKitError) else RewardKitError(_why(error)) from None
        finally:
            starting.cancel()
        self.heard = time.monotonic()
        self._stream = asyncio.StreamReader(limit=LONGEST_LINE)
        self._reading = asyncio.create_task(self.read(self._stream))
        self._receiving = asyncio.create_task(self._stream_in())

    def write(self, data: bytes) -> None:
        self._actor.send.remote(data)

    def kill(self, reason: str) -> None:
        self._lost(reason)
        if self._receiving is not None:
            self._receiving.cancel()
        with suppress(self._ray.exceptions.RayError):
            self._actor.kill.remote()
        asyncio.get_running_loop().call_later(END, self._end)

    def _end(self) -> None:
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)

    async def close(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)
        with suppress(TimeoutError, self._ray.exceptions.RayError):
            async with asyncio.timeout(2 * CLOSE_GRACE):
                self._stream.feed_data(await self._actor.close.remote())
        self._stream.feed_eof()
        await self._reading
        self._lost("was closed")
        self._end()

    async def _stream_in(self) -> None:
        with self._answers:
            try:
                while not isinstance(received := await self._actor.receive.remote(), str):
                    self._stream.feed_data(received)
                reason = received
            except self._ray.exceptions.RayError as error:
                self.ready = True  # nothing says what it was doing
                reason = f"was lost: {_why(error)}"
            self._stream.feed_eof()
            await self._reading
            self._receiving = None
            self.kill(reason)


class RayCluster:
    """A connection to a Ray cluster, which starts workers there."""

    def __init__(
        self, config: EvaluationConfig, rows: BundleRows, root: Path, note: Callable[[str], None]
    ) -> None:
        """Raises ``UsageError`` for options that no node can act on, and if no cluster can be reached."""
        self._config = config
        self._rows = rows
        self._root = root
        self._note = note
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
        if (config.agent or "").startswith("replay:"):
            raise UsageError("--ray cannot be combined with a replay, which asks no model")
        if config.cache:
            raise UsageError("--ray cannot be combined with --cache: the nodes have no folder in common")
        for name, provider in ((config.model, config.provider), (config.sim_model, config.user_provider)):
            if name and names_local_model(name, provider=provider, model_args={}):
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

    async def connect(self, used: Iterable[Seed]) -> int:
        """Connect to the cluster; returns its number of processors. ``used`` are the seeds of the rows."""
        keys = {seed.key for seed in used}
        seeded = (self._root / ".bases").glob("*.seeded")
        self._bases = [path.name for path in seeded if path.name.partition(".")[0] in keys]
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connect)
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
            self._ray.init(
                address=self._address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env=self._files_to_send(),
                **more,
            )
        except (OSError, RuntimeError, ValueError) as error:
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
                raise UsageError(
                    f"{path} is neither in the working directory nor in the bundle's folder",
                    remedy="Move it there: these are sent to the nodes of a Ray cluster.",
                )
        return places

    def setup(self) -> dict[str, Any]:
        """Keys of a worker's setup besides ``config`` and ``root``."""
        return {
            "places": self._places(),
            "environment": {name: text for name, text in os.environ.items() if FORWARDED.fullmatch(name)},
            "bases": self._bases,
            "version": versions()["reward-kit"],
        }

    def worker(self, *, alone: bool) -> Worker:
        """A worker to be started there; beside all others if ``alone``."""
        # the other actors may hold all processors
        worker = RayWorker(self._note, self._ray, processors=0 if alone else 1)
        self._workers.append(worker)
        return worker

    async def close(self) -> None:
        """End the connection."""
        if self._connected:
            self._connected = False
            await asyncio.get_running_loop().run_in_executor(self._thread, self._ray.shutdown)
        self._workers.clear()
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


def _why(error: Exception) -> str:
    """The line of Ray's message that says what happened, without the ids before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "died" in line or "dead" in line or "lost" in line]
    return one_line(telling[-1] if telling else lines[-1] if lines else type(error).__name__)
