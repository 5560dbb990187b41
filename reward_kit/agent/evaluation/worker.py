"""A worker: an in-process executor that another process drives. Forked by ``fork_server.ForkServer``.

Both sides speak messages of ``protocol``, a line each, over a separate socket pair, so that nothing a
bundle prints, reads or closes gets between them. The worker begins with its ``pid``, gets its ``Setup``, then
calls. The end of the socket ends the process.
"""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import os
import resource
import signal
import sys
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.network import chain
from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.versions import versions
from reward_kit.agent.bundles.bundle import read_bundle
from reward_kit.agent.config import EvaluationConfig
from reward_kit.agent.evaluation.in_process import InProcess
from reward_kit.agent.evaluation.protocol import Report, Setup, WorkerCall, decoded, encoded
from reward_kit.agent.evaluation.signals import is_held_up, run_in_loop
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable
    from typing import NoReturn

    from reward_kit.agent.base.types import Role, Usage
    from reward_kit.agent.evaluation.protocol import Description, PlayRequest
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
        """The name of the first part that has changed; added variables do not count."""
        now = self._now()
        now["environment"] = {name: now["environment"].get(name) for name in self._before["environment"]}
        return next((name for name, before in self._before.items() if now[name] != before), None)


@dataclass(slots=True)
class _ReportingAccount:
    """Reports the model calls of one attempt to the process that counts them, and its attempts."""

    used: Callable[[Role, Usage, str], None]

    def broken_off(self) -> None: ...


class Player:
    """Answers calls, many at a time, in its own event loop; ``tell`` gets its reports from any thread."""

    def __init__(self, tell: Callable[[Report], None]) -> None:
        self._tell = tell
        self._calls: dict[int, asyncio.Task[Report]] = {}
        self._used: list[tuple[int, Role, str, Usage]] = []
        self._reporting: asyncio.TimerHandle | None = None
        self._state: _ProcessState | None = None

    def run(self, setup: Setup, began: Callable[[], None]) -> None:
        """Play until ``stop`` is called. ``began`` is called once calls can be received."""
        with suppress(asyncio.CancelledError):
            run_in_loop(self._serve(setup, began))
        is_held_up()  # threads of the bundle have a moment to end

    async def _serve(self, setup: Setup, began: Callable[[], None]) -> None:
        config = EvaluationConfig(**setup.config)
        self._root, self._bases = Path(setup.root), setup.bases
        with read_bundle(config.dataset, config.task_dir, mode=config.mode) as rows:
            self._executor = InProcess(config, rows, self._root, lambda text: self._tell(Report(note=text)))
            self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
            self._asked = asyncio.Event()
            self._described = asyncio.create_task(self._describe())
            self._described.add_done_callback(lambda done: done.cancelled() or done.exception())
            began()
            try:
                while True:
                    self._tell(Report())
                    await asyncio.sleep(ALIVE_EVERY)
            finally:
                calls = [self._described, *self._calls.values()]
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
                await self._executor.close()

    def stop(self) -> None:
        """Cancel all calls and close the executor, from any thread."""
        assert self._main is not None
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._main.cancel)

    def receive(self, call: WorkerCall) -> None:
        """Begin or cancel a call, from any thread; raises ``RuntimeError`` if the loop has ended."""
        self._loop.call_soon_threadsafe(self._begin, call)

    def _begin(self, call: WorkerCall) -> None:
        if not call.cancel:
            answer = self._calls[call.id] = asyncio.create_task(self._answer(call))
            answer.add_done_callback(partial(self._ended, call.id))
        elif call.id in self._calls:
            self._calls[call.id].cancel()

    def _ended(self, number: int, call: asyncio.Task[Report]) -> None:
        """Answer a call that has ended, also by an error; this process ends if it cannot report that."""
        with ExitStack() as untold:
            untold.callback(os._exit, 1)
            del self._calls[number]
            changed = self._state.changed() if self._state is not None else None
            if call.cancelled():  # perhaps before it began
                report = Report(cancelled=True)
            elif (error := call.exception()) is None:
                report = call.result()
            elif not isinstance(error, RewardKitError) or changed or _is_of_this_process(error):
                report = Report(crash=fault_line(error))
            else:
                report = Report(error=error.to_json())
            report.id, report.changed, report.used = number, changed, self._take_used()
            try:
                self._tell(report)
            except (TypeError, ValueError, RecursionError) as unfit:  # JSON does not hold it
                self._tell(Report(number, crash=fault_line(unfit), changed=changed, used=report.used))
            untold.pop_all()

    async def _answer(self, call: WorkerCall) -> Report:
        self._asked.set()
        description = await asyncio.shield(self._described)
        if call.request is None:
            return Report(description=description)
        return await self._play(call.id, call.request)

    async def _describe(self) -> Description:
        """Load everything at once, but describe it in a call: one worker alone seeds the bases."""
        self._executor.load()
        await self._asked.wait()
        description = await self._executor.describe()
        for path in (self._root / ".bases").glob("*.seeded"):
            if self._bases is not None and path.name not in self._bases:  # deltas go with the driver's bases
                raise RewardKitError(
                    "a node of the Ray cluster seeds another database than this machine (SQLite "
                    f"{versions()['sqlite']} there)",
                    remedy="Install the same versions everywhere, and let a seed.py draw no random numbers.",
                )
        self._tell(Report(ready=True))
        self._state = _ProcessState()
        return description

    async def _play(self, number: int, request: PlayRequest) -> Report:
        if request.watched:
            self._executor.watch = lambda what: self._tell(Report(number, at=what))
        played = await self._executor.play(request, _ReportingAccount(partial(self.used, number)))
        files = self._taken_files(played.outcome) if self._bases is not None else {}
        return Report(played=played, files=files)

    def _taken_files(self, outcome: Outcome) -> dict[str, bytes]:
        """The files of a rollout on another machine, by name, for the process that keeps them."""
        files = {}
        for name in (outcome.database, f"{outcome.row_id}/roll_{outcome.id}.log"):
            if name is not None and (path := self._root / name).is_file():
                files[name] = path.read_bytes()
                path.unlink()
        return files

    def used(self, number: int, role: Role, usage: Usage, model: str) -> None:
        """Report a model call, with others that are answered in the next moment."""
        self._used.append((number, role, model, usage))
        if self._reporting is None:
            self._report_used()

    def _report_used(self) -> None:
        self._reporting = None
        if used := self._take_used():
            self._tell(Report(used=used))
            self._reporting = asyncio.get_running_loop().call_later(USED_EVERY, self._report_used)

    def _take_used(self) -> list[tuple[int, Role, str, Usage]]:
        used, self._used = self._used, []
        return used


def _is_of_this_process(error: BaseException) -> bool:
    """True for an error that comes of the limits of this process: another may do better."""
    behind = chain(error)
    return any(isinstance(one, MemoryError) or getattr(one, "errno", None) in _OWN_LIMITS for one in behind)


def _listen(lines: Iterable[bytes], player: Player) -> None:
    """Pass on what arrives; at the end of the socket stop the player, and exit if that takes too long."""
    with suppress(OSError, ValueError, RuntimeError):  # the socket was closed, or the loop has ended
        for line in lines:
            player.receive(decoded(WorkerCall, line))
    player.stop()
    time.sleep(CLOSE_GRACE)
    os._exit(1)


def main(connection: socket.socket) -> NoReturn:
    """Play the rollouts that the process at the other end of the socket asks for, then end this process."""
    code = 0
    sending = threading.Lock()

    def send(report: Report) -> None:  # from any thread; nothing happens if the other side is gone
        line = encoded(report)
        with sending, suppress(OSError):
            connection.sendall(line)

    try:
        faulthandler.enable()
        # Ctrl-C is the main process's: a KeyboardInterrupt here is raised by foreign code
        signal.signal(signal.SIGINT, lambda *_: None)
        lines = connection.makefile("rb")
        send(Report(pid=os.getpid()))
        if first := lines.readline():
            player = Player(send)
            listening = threading.Thread(target=_listen, args=(lines, player), daemon=True)
            player.run(decoded(Setup, first), listening.start)
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
