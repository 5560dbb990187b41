"""A worker process: an in-process executor that another process drives. Forked by ``fork_server``.

Both sides speak JSON lines over a socket pair of their own, so that nothing a bundle prints, reads or closes
gets between them. A line with ``bytes`` (names and sizes) is followed by that many raw bytes: trajectories
and final states. The worker begins with its ``pid`` and gets the setup: ``config``, ``root`` (the runs
folder), and on another machine ``bases``, the seeded databases that it must come to.
Then come calls, each with an ``id``: ``{"id": 1, "do": "describe"}``, ``{"id": 2, "do": "play", "request":
...}``, ``{"id": 2, "do": "cancel"}``. Each is answered once, with its ``id`` and ``result``, ``error`` (a
``RewardKitError``), ``crash`` (any other exception, and faults of this process alone) or ``cancelled``, and
with ``changed`` if the process is not as it was (see ``_ProcessState``). In between come ``ready`` once
everything is loaded, ``used`` for model calls, ``at`` as a watched rollout begins something, ``note`` (a text
for people), and empty lines as signs of life, as long as the event loop runs.

The end of the socket ends the process.
"""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import json
import os
import resource
import signal
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import as_json
from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.versions import versions
from reward_kit.agent.bundles.bundle import read_bundle
from reward_kit.agent.config import EvaluationConfig
from reward_kit.agent.evaluation.in_process import InProcess
from reward_kit.agent.evaluation.protocol import PlayRequest, encoded
from reward_kit.agent.evaluation.signals import is_held_up, run_in_loop
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from typing import NoReturn

    from reward_kit.agent.base.types import Role, Usage
    from reward_kit.agent.evaluation.protocol import Blobs
    from reward_kit.agent.rollout.outcome import Outcome

CLOSE_GRACE = 10.0
"""Seconds to end in order once the other side has closed the socket."""
ALIVE_EVERY = 1.0
"""Seconds between two signs of life."""
USED_EVERY = 0.02
"""Seconds between two reports of model calls; the first is sent at once."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM)
LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)
_OWN_LIMITS = frozenset({errno.EMFILE, errno.EFBIG, errno.ENOMEM})


class _Channel:
    """The worker's end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._used: list[str] = []
        self._reporting: asyncio.TimerHandle | None = None
        self.lines = connection.makefile("rb")

    def send(self, blobs: Blobs | None = None, **message: Any) -> None:
        """Send one message, from any thread; nothing happens if the other side is gone.

        Raises ``TypeError``, ``ValueError`` or ``RecursionError`` if JSON does not hold it.
        """
        if blobs:
            message["bytes"] = {name: len(data) for name, data in blobs.items()}
        line = json.dumps(message).encode() + b"\n"
        with self._lock, suppress(OSError):
            self._connection.sendall(b"".join((line, *blobs.values())) if blobs else line)

    def used(self, number: int, role: Role, usage: Usage, model: str) -> None:
        """Report a model call, with others that are answered in the next moment."""
        self._used.append(json.dumps((number, role, model, [*as_json(usage).values()])))
        if self._reporting is None:
            self._report()

    def _report(self) -> None:
        self._reporting = None
        if used := self.take_used():
            self.send(used=used)
            self._reporting = asyncio.get_running_loop().call_later(USED_EVERY, self._report)

    def take_used(self) -> list[str]:
        """The model calls that no message has reported yet, each as JSON."""
        used, self._used = self._used, []
        return used


class _ProcessState:
    """Settings that all rollouts of a process share, as they were when this was made."""

    def __init__(self) -> None:
        self._deepest = sys.getrecursionlimit()
        self._mask = os.umask(0o022)
        os.umask(self._mask)
        self._before = self._now()

    def _now(self) -> dict[str, Any]:
        mask = os.umask(self._mask)  # not another: a thread may be making a file
        os.umask(mask)
        folder = None
        with suppress(OSError):  # it was removed
            folder = os.getcwd()  # noqa: PTH109 - a path takes longer
        return {
            "recursion limit": min(self._deepest, sys.getrecursionlimit()),
            "working directory": folder,
            "signal handlers": [signal.getsignal(number) for number in SIGNALS],
            "file mode mask": mask,
            "resource limits": [resource.getrlimit(number) for number in LIMITS],
            "environment": dict(os.environ),
        }

    def changed(self) -> str | None:
        """The first of them that has changed; variables that were added are no change."""
        now = self._now()
        now["environment"] = {name: now["environment"].get(name) for name in self._before["environment"]}
        return next((name for name, before in self._before.items() if now[name] != before), None)


def _is_of_this_process(error: BaseException | None) -> bool:
    """True for an error that comes of the limits of this process: another may do better."""
    while error is not None:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) in _OWN_LIMITS:
            return True
        error = error.__cause__ or error.__context__
    return False


class _Account:
    """Sends the model calls of one attempt to the process that counts them."""

    def __init__(self, channel: _Channel, number: int) -> None:
        self.used = partial(channel.used, number)

    def broken_off(self) -> None:
        raise NotImplementedError("the other process counts attempts")


class _Server:
    """Answers the calls that arrive, many at a time."""

    def __init__(self, executor: InProcess, channel: _Channel, setup: Mapping[str, Any]) -> None:
        self._executor = executor
        self._channel = channel
        self._root = Path(setup["root"])
        self._bases: list[str] | None = setup.get("bases")
        self._calls: dict[int, asyncio.Task[tuple[dict[str, Any], Blobs]]] = {}
        self._state: _ProcessState | None = None
        self._described: asyncio.Task[dict[str, Any]] | None = None

    def receive(self, message: Mapping[str, Any]) -> None:
        """Begin or cancel the call in ``message``."""
        number = message["id"]
        if message["do"] == "cancel":
            if (call := self._calls.get(number)) is not None:
                call.cancel()
            return
        call = self._calls[number] = asyncio.create_task(self._answer(number, message.get("request")))
        call.add_done_callback(partial(self._ended, number))

    def _ended(self, number: int, call: asyncio.Task[tuple[dict[str, Any], Blobs]]) -> None:
        """Answer a call, however it has ended; if that cannot be sent, this process ends."""
        with ExitStack() as unsent:
            unsent.callback(os._exit, 1)
            del self._calls[number]
            blobs: Blobs = {}
            rest: dict[str, Any] = {"id": number, "used": self._channel.take_used()}
            if self._state is not None and (changed := self._state.changed()) is not None:
                rest["changed"] = changed
            if call.cancelled():  # perhaps before it began
                answer: dict[str, Any] = {"cancelled": True}
            elif (error := call.exception()) is None:
                answer, blobs = call.result()
            elif not isinstance(error, RewardKitError) or "changed" in rest or _is_of_this_process(error):
                answer = {"crash": fault_line(error)}
            else:
                answer = {"error": error.to_json()}
            try:
                self._channel.send(blobs, **rest, **answer)
            except (TypeError, ValueError, RecursionError) as unfit:
                self._channel.send(**rest, crash=fault_line(unfit))
            unsent.pop_all()

    async def _answer(self, number: int, request: Mapping[str, Any] | None) -> tuple[dict[str, Any], Blobs]:
        if self._described is None:
            self._described = asyncio.create_task(self._describe())
        described = await asyncio.shield(self._described)
        if request is None:
            return {"result": described}, {}
        return await self._play(number, PlayRequest(**request))

    async def _describe(self) -> dict[str, Any]:
        description = asdict(await self._executor.describe())
        for path in (self._root / ".bases").glob("*.seeded"):
            if self._bases is not None and path.name not in self._bases:  # deltas go with the driver's bases
                raise RewardKitError(
                    "a node of the Ray cluster seeds another database than this machine (SQLite "
                    f"{versions()['sqlite']} there)",
                    remedy="Install the same versions everywhere, and let a seed.py draw no random numbers.",
                )
        self._channel.send(ready=True)
        self._state = _ProcessState()
        return description

    async def _play(self, number: int, request: PlayRequest) -> tuple[dict[str, Any], Blobs]:
        if request.watched:
            self._executor.watch = lambda what: self._channel.send(id=number, at=what)
        played = await self._executor.play(request, _Account(self._channel, number))
        result, blobs = encoded(played)
        if self._bases is not None:
            blobs.update(self._taken_files(played.outcome))
        return {"result": result}, blobs

    def _taken_files(self, outcome: Outcome) -> Blobs:
        """The files of a rollout on another machine, by name, for the process that keeps them."""
        files = {}
        for name in (outcome.database, f"{outcome.row_id}/roll_{outcome.id}.log"):
            if name is not None and (path := self._root / name).is_file():
                files[name] = path.read_bytes()
                path.unlink()
        return files

    async def close(self) -> None:
        """Cancel all calls and close the executor."""
        calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._executor.close()


async def _serve(setup: Mapping[str, Any], channel: _Channel) -> None:
    config = EvaluationConfig(**setup["config"])
    with read_bundle(config.dataset, config.task_dir) as rows:
        executor = InProcess(config, rows, setup["root"], lambda text: channel.send(note=text))
        server = _Server(executor, channel, setup)
        main = asyncio.current_task()
        assert main is not None
        loop = asyncio.get_running_loop()
        threading.Thread(target=_listen, args=(channel, loop, server, main), daemon=True).start()
        try:
            while True:
                channel.send()
                await asyncio.sleep(ALIVE_EVERY)
        finally:
            await server.close()


def _listen(
    channel: _Channel, loop: asyncio.AbstractEventLoop, server: _Server, main: asyncio.Task[None]
) -> None:
    """Pass on what arrives; at the end of the socket cancel ``main``, and exit if that takes too long."""
    with suppress(OSError, ValueError, RuntimeError):  # the socket was closed, or the loop has ended
        for line in channel.lines:
            loop.call_soon_threadsafe(server.receive, json.loads(line))
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(main.cancel)
    time.sleep(CLOSE_GRACE)
    os._exit(1)


def main(connection: socket.socket) -> NoReturn:
    """Play what the process at the other end of the socket asks for, then end this process."""
    code = 0
    try:
        faulthandler.enable()
        # Ctrl-C is the main process's: a KeyboardInterrupt here is raised by foreign code
        signal.signal(signal.SIGINT, lambda *_: None)
        channel = _Channel(connection)
        channel.send(pid=os.getpid())
        if first := channel.lines.readline():
            with suppress(asyncio.CancelledError):
                run_in_loop(_serve(json.loads(first), channel))
            is_held_up()  # threads of the bundle have a moment to end
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    finally:
        if (fault := sys.exception()) is not None:
            code = 1
            sys.excepthook(type(fault), fault, fault.__traceback__)
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # what stands below on the stack belongs to the process that forked this one
