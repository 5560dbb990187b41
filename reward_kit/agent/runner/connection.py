"""Calls to a worker process: JSON lines over a socket pair, many calls at a time.

``worker`` is the other end and describes the messages. Subclasses of ``Worker`` know how to reach a process:
``WorkerProcess`` on this machine, an actor on a Ray cluster.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.types import Usage
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reward_kit.agent.runner.protocol import Account

LONGEST_LINE = 2**30
"""Bytes of the longest message: a trajectory with its final state."""
CLOSE_GRACE = 15.0
"""Seconds that a process has to end in order."""
DRAIN = 1.0
"""Seconds to read the last words of a process whose socket a child of its own keeps open."""

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; from reward_kit.agent.runner.worker import main; "
    "main(int(sys.argv[1]))"
)

Lines = tuple[asyncio.subprocess.Process, asyncio.StreamReader, asyncio.StreamWriter]


class WorkerDiedError(Exception):
    """A process has ended, with the call that it was busy with.

    ``began`` says that the rollout had begun, ``at`` what it was doing, if it was watched.
    """

    def __init__(self, reason: str, *, began: bool = False, at: str | None = None) -> None:
        super().__init__(reason)
        self.began = began
        self.at = at


async def start_worker(environment: Mapping[str, str] | None = None) -> Lines:
    """Start a worker process; returns it with the streams to and from it."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _PROGRAM, str(theirs.fileno()), *sys.path),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=2,  # stdout is the report's
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C is for this process alone
            env=environment,
        )
    return process, *await asyncio.open_connection(sock=ours, limit=LONGEST_LINE)


def kill_group(process: asyncio.subprocess.Process) -> None:
    """End a worker process at once, with its children."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def end_of(code: int) -> str:
    """The end of a process with this exit code, in words."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@dataclass(slots=True, eq=False)
class _Call:
    """A call that waits for its answer."""

    account: Account | None
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    began: bool = False
    is_cancelled: bool = False
    at: str | None = None


class Worker:
    """A process that answers calls; ``note`` receives its messages for people."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.heard = time.monotonic()
        self.died: str | None = None
        self._note = note
        self._calls: dict[int, _Call] = {}
        self._number = 0

    async def start(self, setup: Mapping[str, Any]) -> None:
        """Start the process; it loads the bundle on its first call."""
        raise NotImplementedError

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; nothing happens if the process is gone."""
        raise NotImplementedError

    def kill(self, reason: str) -> None:
        """End the process at once."""
        raise NotImplementedError

    async def close(self) -> None:
        """Let the process end in order, or kill it; what it says until then still counts."""
        raise NotImplementedError

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

    async def call(self, do: str, account: Account | None = None, **more: Any) -> Any:
        """The result of a call; raises ``RewardKitError`` and ``WorkerDiedError``.

        If this is cancelled, so is the call, unless its result is on its way: then that is returned.
        """
        if self.died is not None:
            raise WorkerDiedError(self.died)
        self._number += 1
        number, call = self._number, _Call(account)
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
        if "note" in message:
            self._note(message["note"])
            return
        call = self._calls.get(message.get("id", 0))
        if call is None:
            return
        if "used" in message:
            role, usage, model = message["used"]
            if call.account is not None:
                call.account.used(role, Usage(**usage), model)
        elif "began" in message:
            call.began = True
        elif "at" in message:
            call.at = message["at"]
        elif not call.answer.done():
            self._answered(call, message)

    def _answered(self, call: _Call, message: Mapping[str, Any]) -> None:
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
        for call in self._calls.values():
            self._fail(call, reason)

    def _fail(self, call: _Call, reason: str) -> None:
        if not call.answer.done():
            call.answer.set_exception(WorkerDiedError(reason, began=call.began, at=call.at))
            call.answer.exception()  # retrieved, also where the caller is gone


class WorkerProcess(Worker):
    """A worker on this machine."""

    _reason: str | None = None

    async def start(self, setup: Mapping[str, Any]) -> None:
        self._process, self._reader, self._writer = await start_worker()
        self._exit = asyncio.create_task(self._process.wait())
        self._reading = asyncio.create_task(self._read())
        self._watching = asyncio.create_task(self._wait())
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
        self._reason = self._reason or reason
        kill_group(self._process)

    async def close(self) -> None:
        if not self._writer.is_closing():
            self._writer.write_eof()
        await asyncio.wait({self._watching}, timeout=CLOSE_GRACE)
        if not self._watching.done():
            self.kill("did not end")
            await self._watching
        kill_group(self._process)  # children that it has left behind

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
        self._lost(self._reason or end_of(code))
