"""WorkerProcess processes that play rollouts with FastWorkflow.

A worker speaks JSON lines on its standard streams; ``worker.py`` documents the protocol."""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
import logging
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.redaction import hide, redact
from reward_kit.agent.base.worker_thread import Waiters
from reward_kit.errors import ModelError, ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    Answer = dict[str, Any]

logger = logging.getLogger(__name__)

PLACE = "FastWorkflow"
LONGEST_LINE = 64 * 1024 * 1024
LAST_LINES = 12
"""Lines of a worker's standard error in the message when it exits unexpectedly."""
START_LIMIT = 300.0
"""Seconds until a started process answers."""


class WorkerProcess:
    """One process, which is started anew if it is lost.

    ``rollouts`` maps the ids of its rollouts to listeners for their events. ``hidden`` are secrets of its
    environment that this process's does not have; they are removed from its output.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.rollouts: dict[str, Callable[[Answer], None]] = {}
        self.process: asyncio.subprocess.Process | None = None
        """The process while it takes requests, and its ``description`` of the workflow."""
        self.description: Answer = {}
        self._command = command
        self._environment = {**environment, "TMPDIR": str(folder)}
        self._folder = folder
        self._starting = asyncio.Lock()
        self._reading: asyncio.Future[None] | None = None
        self._waiting: Waiters[int, Answer] = Waiters()
        self._numbers = itertools.count(1)
        self._fault = "it was not started"

    async def start(self) -> None:
        """Start the process unless it runs, and wait until it answers.

        Raises ``ModelSetupError`` if it does not.
        """
        async with self._starting:
            if self.process is not None:
                return
            try:
                self.process = process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    cwd=self._folder,
                    env=self._environment,
                    limit=LONGEST_LINE,
                    start_new_session=True,  # the evaluation handles Ctrl-C
                )
            except OSError as error:
                raise ModelSetupError(f"cannot be started: {error}", place=PLACE) from error
            self._reading = asyncio.ensure_future(self._read(process))
            try:
                async with asyncio.timeout(START_LIMIT):
                    self.description = await self.ask("describe")
            except (TimeoutError, ModelError) as error:
                fault = error.fault if isinstance(error, ModelError) else f"not ready after {START_LIMIT:g} s"
                await self.end(fault)
                raise ModelSetupError(f"a worker does not start: {fault}", place=PLACE) from error

    def send(self, op: str, **fields: Any) -> int:
        """Send a request and return its number.

        Raises ``ModelError`` if the process has ended, also if another one has replaced it for new rollouts.
        """
        is_known = "rollout" not in fields or fields["rollout"] in self.rollouts
        if self.process is None or self.process.stdin is None or not is_known:
            raise self._lost()
        number = next(self._numbers)
        self.process.stdin.write(f"{json.dumps({'id': number, 'op': op, **fields})}\n".encode())
        return number

    async def ask(self, op: str, **fields: Any) -> Answer:
        """Send a request and return the answer. Raises ``ModelError`` as ``send`` does."""
        return await self._waiting.wait(self.send(op, **fields))

    async def end(self, fault: str) -> None:
        """Kill the process group; pending requests fail with ``fault``."""
        process, reading = self.process, self._reading
        if process is None or reading is None:
            return
        self._lose(process, fault)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        reading.cancel()
        await asyncio.wait([reading])

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None and process.stderr is not None, "both are pipes"  # noqa: PT018
        last_lines: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        errors = asyncio.ensure_future(self._log(process.stderr, process.pid, last_lines))
        try:
            async for line in process.stdout:
                message = json.loads(hide(line.decode()))
                if "event" not in message:
                    self._waiting.answer(message["id"], message)
                elif listener := self.rollouts.get(message["rollout"]):
                    listener(message)
            await process.wait()
            await asyncio.wait({errors}, timeout=1.0)  # a child may keep the pipe open
        finally:
            errors.cancel()
            end = "an invalid line" if process.returncode is None else f"exit code {process.returncode}"
            said = "; ".join(filter(str.strip, last_lines))
            self._lose(process, f"a worker exited unexpectedly ({end})" + (f": {said}" if said else ""))

    async def _log(self, lines: asyncio.StreamReader, pid: int, last_lines: collections.deque[str]) -> None:
        async for line in lines:
            text = redact(line.decode(errors="replace").rstrip())
            last_lines.append(text[-300:])
            logger.debug("worker %s: %s", pid, text)

    def _lose(self, process: asyncio.subprocess.Process, fault: str) -> None:
        if self.process is not process:
            return
        self.process, self._fault = None, fault
        self.rollouts.clear()
        self._waiting.fail_all(self._lost())
        self._waiting = Waiters()  # for the next process

    def _lost(self) -> ModelError:
        """Return the error of a rollout whose process ended; it can be replayed."""
        return ModelError(self._fault, place=PLACE, retryable=True)
