"""Worker processes: rollouts isolated from this process and from each other's crashes.

A worker that exits, crashes, stops answering or outgrows ``--worker-memory`` costs the rollouts that it was
playing. They are played again, each alone in a process; one that ends its process again is lost.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.config import EvaluationConfig
from reward_kit.agent.records.outcome import BrokenOff, PlayedRollout
from reward_kit.agent.runner.protocol import Description, RolloutLostError
from reward_kit.errors import BundleError, RewardKitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reward_kit.agent.bundles.bundle import BundleRows
    from reward_kit.agent.runner.protocol import Events, PlayRequest

LONGEST_LINE = 2**30
"""Bytes of the longest message: a trajectory with its final state."""
CLOSE_GRACE = 15.0
"""Seconds that a process has to end in order."""
DRAIN = 1.0
"""Seconds to read the last words of a process whose socket a child of its own keeps open."""
LOOK_EVERY = 0.2
"""Seconds between two looks at the memory and the signs of life of all processes."""
SILENT_AFTER = 600.0
"""Seconds without a sign of life after which a process hangs, unless there is a ``--timeout``."""
HANG_GRACE = 30.0
"""Seconds beyond that time."""
STARTS = 3
"""Processes in succession that may die before they have begun a rollout."""
PARENT_OPTIONS = frozenset(
    {"clear_cache", "explain", "fail_under", "json", "max_cost", "max_tokens", "ray", "workers"}
)
"""Options that workers do not get."""

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; from reward_kit.agent.runner.worker import main; "
    "main(int(sys.argv[1]))"
)


class WorkerDiedError(Exception):
    """A process has ended, with the call that it was busy with.

    ``began`` says that the rollout had begun, ``at`` what it was doing, if it was watched.
    """

    def __init__(self, reason: str, *, began: bool = False, at: str | None = None) -> None:
        super().__init__(reason)
        self.began = began
        self.at = at


def worker_config(config: EvaluationConfig, processes: int, *, concurrency: int) -> dict[str, Any]:
    """The options of one of ``processes`` workers, as JSON: its share of the limits, and what all share."""
    values = {
        item.name: getattr(config, item.name)
        for item in fields(EvaluationConfig)
        if item.name not in PARENT_OPTIONS
    }
    values["max_concurrency"] = concurrency
    for name in ("rpm", "tpm"):
        if values[name] is not None:
            values[name] = max(1, values[name] // processes)
    return values


def processes_of(config: EvaluationConfig) -> int:
    """The number of workers: each has at least one rollout, and one request a minute."""
    wanted = config.workers or 1
    return max(1, min(wanted, config.max_concurrency, config.rpm or wanted))


class _Call:
    """A call that waits for its answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.began = False
        self.is_cancelled = False
        self.at: str | None = None


class Worker:
    """A process that answers calls; subclasses know how to reach it."""

    def __init__(self, events: Events) -> None:
        self.heard = time.monotonic()
        self.died: str | None = None
        self._events = events
        self._calls: dict[int, _Call] = {}
        self._number = 0

    @property
    def load(self) -> int:
        """The number of calls that wait for their answers."""
        return len(self._calls)

    @property
    def plays(self) -> bool:
        """True if a rollout has begun; loading the bundle may take any time."""
        return any(call.began for call in self._calls.values())

    @property
    def memory(self) -> int:
        """Bytes of memory that the process holds, as far as that is known."""
        return 0

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; nothing happens if the process is gone."""
        raise NotImplementedError

    def kill(self, reason: str) -> None:
        """End the process at once."""
        raise NotImplementedError

    async def close(self) -> None:
        """Let the process end in order, or kill it; what it says until then still counts."""
        raise NotImplementedError

    async def call(self, do: str, **more: Any) -> Any:
        """The result of a call; raises ``RewardKitError`` and ``WorkerDiedError``.

        If this is cancelled, so is the call, unless its result is on its way: then that is returned.
        """
        if self.died is not None:
            raise WorkerDiedError(self.died)
        self._number += 1
        number, call = self._number, _Call()
        self._calls[number] = call
        try:
            self.send({"id": number, "do": do, **more})
            try:
                return await asyncio.shield(call.answer)
            except asyncio.CancelledError:
                call.is_cancelled = True
                self.send({"id": number, "do": "cancel"})
                await asyncio.wait({call.answer}, timeout=CLOSE_GRACE)
                if call.answer.done() and not call.answer.cancelled() and call.answer.exception() is None:
                    return call.answer.result()
                raise
        finally:
            del self._calls[number]

    def receive(self, message: Mapping[str, Any]) -> None:
        """Take in a message of the process."""
        self.heard = time.monotonic()
        if "event" in message:
            self._event(message["event"], message["values"])
        elif "began" in message:
            if (call := self._calls.get(message["began"])) is not None:
                call.began = True
        elif "at" in message:
            if (call := self._calls.get(message["at"][0])) is not None:
                call.at = message["at"][1]
        elif "id" in message and (call := self._calls.get(message["id"])) is not None:
            self._answered(call, message)

    def _event(self, name: str, values: list[Any]) -> None:
        if name == "broken_off":
            self._events.broken_off(BrokenOff.from_json(values[0]))
        elif name == "spent":
            self._events.spent(*values)
        elif name == "unpriced":
            self._events.unpriced(*values)
        elif name == "note":
            self._events.note(*values)

    def _answered(self, call: _Call, message: Mapping[str, Any]) -> None:
        if call.answer.done():
            return
        if "result" in message:
            call.answer.set_result(message["result"])
        elif "error" in message:
            call.answer.set_exception(RewardKitError.from_json(message["error"]))
        elif "crash" in message:
            self._fail(call, f"failed: {message['crash']}")
        elif call.is_cancelled:
            call.answer.cancel()
        else:
            self._fail(call, "cancelled the task of the rollout")

    def _lost(self, reason: str) -> None:
        """The process has ended: so have all of its calls."""
        self.died = reason
        for call in list(self._calls.values()):
            self._fail(call, reason)

    def _fail(self, call: _Call, reason: str) -> None:
        if not call.answer.done():
            call.answer.set_exception(WorkerDiedError(reason, began=call.began, at=call.at))
            call.answer.exception()  # retrieved, also where the caller is gone


class WorkerProcess(Worker):
    """A worker on this machine, at the other end of a socket pair."""

    def __init__(self, events: Events) -> None:
        super().__init__(events)
        self._reason: str | None = None

    async def start(self, setup: Mapping[str, Any]) -> None:
        """Start the process; it loads the bundle on its first call."""
        ours, theirs = socket.socketpair()
        with theirs:
            number = str(theirs.fileno())
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _PROGRAM, number, *sys.path),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=2,  # stdout is the report's
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is for this process alone
            )
        self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)
        self._exit = asyncio.ensure_future(self._process.wait())
        self._reading = asyncio.ensure_future(self._read())
        self._watching = asyncio.ensure_future(self._wait())
        self.send(setup)

    @property
    def memory(self) -> int:
        try:
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):  # it has ended
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def send(self, message: Mapping[str, Any]) -> None:
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    def kill(self, reason: str) -> None:
        """End the process at once, with its children."""
        self._reason = self._reason or reason
        self._kill_group()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def close(self) -> None:
        if not self._writer.is_closing():
            self._writer.write_eof()
        await asyncio.wait({self._watching}, timeout=CLOSE_GRACE)
        if not self._watching.done():
            self.kill("did not end")
            await self._watching
        self._kill_group()  # children that it has left behind

    async def _read(self) -> None:
        try:
            while line := await self._reader.readline():
                self.receive(json.loads(line))
        except (ValueError, KeyError):  # no line of ours
            self.kill("was ended, since other code wrote into its socket")
        except OSError:
            pass
        else:
            await asyncio.wait({self._exit}, timeout=DRAIN)
            if not self._exit.done():
                self.kill("was ended, since other code closed its socket")

    async def _wait(self) -> None:
        """Wait for the end of the process, whose socket may stay open in a child of its own."""
        code = await self._exit
        await asyncio.wait({self._reading}, timeout=DRAIN)
        self._reading.cancel()
        self._writer.close()
        ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._lost(self._reason or ended)


class Workers:
    """An executor that plays in ``config.workers`` processes."""

    room = None
    deaths_before_alone = 1
    """Processes that a rollout may lose before it is played alone."""

    def __init__(
        self, config: EvaluationConfig, rows: BundleRows, root: str | Path, events: Events, *, eval_id: str
    ) -> None:
        self._config = config
        self._rows = rows
        self._root = Path(root)
        self._events = events
        self._eval_id = eval_id
        self._processes = processes_of(config)
        self._workers: list[Worker] = []
        self._running: set[Worker] = set()
        self._solo: Worker | None = None
        self._homes: dict[str, Worker] = {}
        self._failed_starts = 0
        self._starting = asyncio.Lock()
        self._alone = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None

    async def describe(self) -> Description:
        """Have a worker load and describe everything."""
        if self._config.worker_memory is not None and not Path("/proc/self/statm").exists():
            raise UsageError("--worker-memory needs Linux", remedy="Omit it.")
        self._looking = asyncio.ensure_future(self._look())
        worker = await self._started()
        try:
            plain = await worker.call("describe")
        except WorkerDiedError as death:
            toolsets = sorted({row.toolset for row in self._rows.rows})
            module = toolsets[0].partition(":")[0]
            raise BundleError(
                f"the process that loads the bundle {death}",
                place=", ".join(toolsets[:3]),
                remedy=f"Run python -c 'import {module}' to see why.",
            ) from None
        self._workers.append(worker)
        return Description.from_json(plain)

    async def play(self, request: PlayRequest) -> PlayedRollout:
        """Play in the least busy process, and if that dies, again alone in one of its own."""
        deaths = 0
        while deaths < self.deaths_before_alone:
            worker = await self._least_busy(request.row_id)
            try:
                plain = await worker.call("play", request=request.to_json())
            except WorkerDiedError as death:
                if worker in self._workers:
                    self._workers.remove(worker)
                    self._failed_starts = 0 if death.began else self._failed_starts + 1
                deaths += death.began
                if self._failed_starts >= STARTS:
                    raise RewardKitError(
                        f"worker processes end before they play: the last one {death}",
                        remedy="Run without --workers to see why.",
                    ) from None
            else:
                return self._played(plain)
        return await self._play_alone(request)

    async def _play_alone(self, request: PlayRequest) -> PlayedRollout:
        """Play a rollout whose process died; raises ``RolloutLostError`` if that ends its process, too."""
        watched = replace(request, watched=True).to_json()
        async with self._alone:
            for start in range(1, STARTS + 1):
                if self._solo is None or self._solo.died is not None:
                    self._solo = await self._started(alone=True)
                try:
                    return self._played(await self._solo.call("play", request=watched))
                except WorkerDiedError as death:
                    self._solo = None
                    if death.began or start == STARTS:
                        doing = f" in {death.at}" if death.at else ""
                        raise RolloutLostError(f"its process {death}{doing}, twice") from None
        raise AssertionError("unreachable")

    def _played(self, plain: Mapping[str, Any]) -> PlayedRollout:
        return PlayedRollout.from_json(plain)

    async def _least_busy(self, row_id: str) -> Worker:
        """A process with the fewest rollouts; of several, the one that has played the row before."""
        async with self._starting:
            self._workers = [worker for worker in self._workers if worker.died is None]
            if len(self._workers) < self._processes and all(worker.load for worker in self._workers):
                self._workers.append(await self._started())
        return self._chosen(row_id)

    def _chosen(self, row_id: str) -> Worker:
        home = self._homes.get(row_id)
        chosen = min(self._workers, key=lambda worker: (worker.load, worker is not home))
        self._homes[row_id] = chosen
        return chosen

    async def _started(self, *, alone: bool = False) -> Worker:
        worker = WorkerProcess(self._events)
        await worker.start(self._setup(alone=alone))
        self._running.add(worker)
        return worker

    def _setup(self, *, alone: bool) -> dict[str, Any]:
        concurrency = 1 if alone else -(-self._config.max_concurrency // self._processes)
        return {
            "config": worker_config(self._config, self._processes, concurrency=concurrency),
            "root": str(self._root),
            "eval_id": self._eval_id,
        }

    async def _look(self) -> None:
        """Kill processes that hang or use too much memory."""
        limit = None if self._config.worker_memory is None else self._config.worker_memory * 2**20
        silence = (self._config.timeout or SILENT_AFTER) + HANG_GRACE
        while True:
            await asyncio.sleep(LOOK_EVERY)
            for worker in list(self._running):
                if worker.died is not None:
                    self._running.discard(worker)
                elif limit is not None and worker.memory > limit:
                    worker.kill(f"used more than --worker-memory {self._config.worker_memory}")
                elif worker.plays and time.monotonic() - worker.heard > silence:
                    worker.kill("stopped answering and was ended")

    async def close(self) -> None:
        """End all processes."""
        if self._looking is not None:
            self._looking.cancel()
        await asyncio.gather(*(worker.close() for worker in self._running if worker.died is None))
        self._running.clear()
