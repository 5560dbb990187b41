"""Servers of local models: started once, shared by everyone who names the same path, ended with the last."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.files import temporary_folder
from reward_kit.agent.base.network import LOOPBACK, listen
from reward_kit.agent.base.redaction import redact
from reward_kit.agent.models.local.backends import extra_arguments, find_backend
from reward_kit.errors import ModelError, ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from reward_kit.agent.models.local.backends import LocalFile

TIMEOUT = "REWARD_KIT_LOCAL_MODEL_TIMEOUT"
DEFAULT_TIMEOUT = 600.0
"""Seconds for a server to become ready; large models load slowly."""
LOG = "server.log"
END_SECONDS = 10.0
"""Time limit for the guard to end the server."""
PAUSE = 0.25
SECONDS_BETWEEN_NOTES = 15.0
LAST_LINES, LAST_BYTES, SHORT = 12, 16_384, 300

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

logger = logging.getLogger(__name__)


class ModelServer:
    """A process that serves ``file`` on a free port of 127.0.0.1, from first ``open`` to last ``close``.

    Its output goes to a log file, which is kept if an error names it. Raises ``ModelSetupError`` when made if
    no installed program serves the model.
    """

    def __init__(self, file: LocalFile) -> None:
        self.file = file
        self.backend, self._program = find_backend(file)
        self.place = f"model {self.file.name} ({self.backend.name})"
        """Its name in errors."""
        self.timeout = start_limit()
        self._users = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path()  # made by ``open``
        self._log_named = False
        self._port = 0

    @property
    def url(self) -> str:
        """The base address of its OpenAI-compatible interface."""
        return f"http://{LOOPBACK}:{self._port}/v1"

    @property
    def served_name(self) -> str:
        """The model's name in requests."""
        return self.backend.served or str(self._folder / "model")

    def identity(self) -> dict[str, Any]:
        """Return everything that determines its answers: model files, program and arguments."""
        path = self.file.path
        files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
        return {
            "local_model": str(path),
            "files": [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files],
            "server": self.backend.name,
            "arguments": extra_arguments(),
        }

    async def open(self) -> bool:
        """Start the server unless it runs, and wait until it is ready; return True if this call started it.

        Raises ``ModelSetupError`` with its last lines if it exits or is not ready in time.
        """
        if not self._users:
            self._folder = temporary_folder("model")
            (self._folder / "model").symlink_to(self.file.path)
            async with AsyncExitStack() as failed:
                failed.push_async_callback(self._stop)
                await self._start()
                failed.pop_all()
        self._users += 1
        return self._users == 1

    async def close(self) -> bool:
        """End the server with its last user; return True if this call ended it."""
        self._users -= 1
        if not self._users:
            await self._stop()
        return not self._users

    def fault(self) -> ModelError | None:
        """Return an error if the server has exited."""
        if self._process is None or self._process.poll() is None:
            return None
        code = self._process.returncode
        return ModelError(f"its server has exited (exit code {code}): {self.last_words()}", place=self.place)

    async def fault_behind(self, error: ModelError) -> ModelError | None:
        """Return the server's exit behind a failed call; the connection breaks shortly before the exit."""
        if error.status is None and self.fault() is None:
            await asyncio.sleep(2 * PAUSE)
        return self.fault()

    def last_words(self) -> str:
        """Return the end of the server's output and the path of its log, in one line."""
        self._log_named = True
        text = " | ".join(self._last_lines())
        return f"{'…' if len(text) > SHORT else ''}{text[-SHORT:]} (log: {self._folder / LOG})"

    def _last_lines(self) -> list[str]:
        """Read the last lines, without colours and keys, and only the last state of a progress bar."""
        output = (self._folder / LOG).read_bytes()[-LAST_BYTES:].decode(errors="replace")
        text = redact(_COLOURS.sub("", output))
        lines = (line.rstrip().rsplit("\r")[-1].strip() for line in text.split("\n"))
        return [line for line in lines if line][-LAST_LINES:]

    async def _start(self) -> None:
        name, log = self.file.name, self._folder / LOG
        logger.info("starting a server for %s (%s); its log is %s", name, self.backend.name, log)
        started = time.monotonic()
        with listen(LOOPBACK, 0) as probe:
            self._port = probe.getsockname()[1]
        command = await asyncio.to_thread(
            self.backend.command, self._program, self.file, self._folder / "model", self._port
        )
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603, ASYNC220 - an installed program; starting is quick
                [sys.executable, "-I", str(Path(__file__).with_name("guard.py")), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # the evaluation handles Ctrl-C and ends the server in order
            )
        noted = started
        while not await self._answers():
            now = time.monotonic()
            if self._process.poll() is not None:
                raise self._not_started(f"has exited (exit code {self._process.returncode})")
            if now - started > self.timeout:
                more = f"(more time: {TIMEOUT}=SECONDS)"
                raise self._not_started(f"is not ready after {self.timeout:g} s {more}")
            if now - noted >= SECONDS_BETWEEN_NOTES:
                logger.info("still loading %s, %.0f s", name, now - started)
                noted = now
            await asyncio.sleep(PAUSE)
        logger.info("%s is ready after %.0f s", name, time.monotonic() - started)

    async def _answers(self) -> bool:
        import aiohttp

        address = f"http://{LOOPBACK}:{self._port}{self.backend.health}"
        try:
            limit = aiohttp.ClientTimeout(total=5.0)
            async with aiohttp.ClientSession(timeout=limit) as http, http.get(address) as response:
                await response.read()  # a server may log a connection that is closed too early
                return response.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    def _not_started(self, what: str) -> ModelSetupError:
        self._log_named = True
        log = self._folder / LOG
        lines = "".join(f"\n  {line}" for line in self._last_lines())
        output = f"The last lines of {log}:{lines}" if lines else f"It printed nothing ({log})."
        return ModelSetupError(f"its server {what}. {output}", place=self.place)

    async def _stop(self) -> None:
        """End the server and wait for it; remove the log unless an error has named it."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None, "it is a pipe"
            with suppress(OSError):
                process.stdin.close()
            try:
                await asyncio.to_thread(process.wait, END_SECONDS)
            except subprocess.TimeoutExpired:
                process.terminate()
        if not self._log_named:
            shutil.rmtree(self._folder, ignore_errors=True)


def start_limit() -> float:
    """Return the time limit for a start in seconds. Raises ``ModelSetupError`` for an invalid setting."""
    text = os.environ.get(TIMEOUT) or str(DEFAULT_TIMEOUT)
    with suppress(ValueError):
        if float(text) > 0:
            return float(text)
    raise ModelSetupError(f"{TIMEOUT}={text!r} is not a number of seconds")


@contextmanager
def shown_on(stream: TextIO) -> Iterator[None]:
    """Also print progress (starting, still loading, ready) to ``stream``."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(min(level, logging.INFO) or logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
