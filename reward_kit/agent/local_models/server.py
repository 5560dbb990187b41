"""The server of a local model: started once, shared by all who ask for the same path, ended with the last."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.local_models import guard
from reward_kit.agent.local_models.backends import HOST, extra_arguments, find_backend
from reward_kit.agent.local_models.recognise import LocalFile, read_json
from reward_kit.agent.local_models.server_log import ServerLog
from reward_kit.errors import ModelError, ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

TIMEOUT = "REWARD_KIT_LOCAL_MODEL_TIMEOUT"
DEFAULT_TIMEOUT = 600.0
"""Seconds until a server must be ready; big models are read from slow disks."""
STOP_SECONDS = guard.GRACE + 5.0
PAUSE = 0.25
SECONDS_BETWEEN_WORDS = 15.0
PORTS_TRIED = 3
"""Between finding a free port and the server's taking it, another process may."""

_PORT_TAKEN = re.compile(r"address already in use|couldn't bind|failed to bind", re.IGNORECASE)

logger = logging.getLogger(__name__)


class ModelServers:
    """The servers of one evaluation, by path: agent and user that name the same model share its server."""

    def __init__(self) -> None:
        self._servers: dict[Path, ModelServer] = {}

    def of(self, name: str) -> ModelServer:
        """The server for the model at the path ``name``, not started yet.

        Raises ``ModelSetupError`` where there is no such model, or nothing that serves it.
        """
        file = LocalFile.find(name)
        path = file.path.resolve()
        if path not in self._servers:
            self._servers[path] = ModelServer(file)
        return self._servers[path]


class ModelServer:
    """A process that serves ``file`` on a free port of 127.0.0.1, from the first ``open`` to the last close.

    What it prints goes to ``log``, which is kept if an error has named it. Raises ``ModelSetupError`` when
    made where nothing is installed that could serve the model.
    """

    def __init__(self, file: LocalFile) -> None:
        self.file = file
        self.backend, self._program = find_backend(file)
        self.timeout = start_limit()
        self._users = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log: ServerLog | None = None
        self._port = 0

    @property
    def place(self) -> str:
        """How errors name it."""
        return f"model {self.file.name} ({self.backend.name})"

    @property
    def url(self) -> str:
        """The base address of its OpenAI-compatible interface."""
        return f"http://{HOST}:{self._port}/v1"

    @property
    def served_name(self) -> str:
        """The model's name in requests."""
        return self.backend.served or str(self._link)

    @property
    def never_samples(self) -> bool:
        """Whether a temperature changes nothing there."""
        settings = read_json(self.file.path / "generation_config.json")
        return self.backend.name == "transformers" and not settings.get("do_sample")

    @property
    def log(self) -> ServerLog:
        """What the server prints."""
        assert self._log is not None, "the server has been opened"
        return self._log

    @property
    def _link(self) -> Path:
        return self.log.path.with_name("model")

    def identity(self) -> dict[str, Any]:
        """What decides its answers: the files of the model, the program, its arguments. (Not the port.)"""
        path = self.file.path
        files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
        return {
            "local_model": str(path),
            "files": [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files],
            "server": self.backend.name,
            "arguments": extra_arguments(),
        }

    async def open(self) -> bool:
        """Start it and wait until it is ready; whether it was started by this call.

        Raises ``ModelSetupError`` if it ends, or is not ready in time: with the last lines that it printed.
        """
        if self._users:
            self._users += 1
            return False
        self._log = ServerLog(Path(tempfile.mkdtemp(prefix="reward-kit-model-")) / "server.log")
        self._link.symlink_to(self.file.path)
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        self._users = 1
        return True

    async def close(self) -> bool:
        """End it when the last who opened it closes it; whether that was now. Harmless where none did."""
        if not self._users:
            return False
        self._users -= 1
        if not self._users:
            await self._stop()
        return not self._users

    def fault(self) -> ModelError | None:
        """What to say of a server that has ended by itself; None while it runs."""
        if self._process is None or self._process.poll() is None:
            return None
        return ModelError(f"its server {self._end()}: {self.log.end()}", place=self.place)

    async def fault_behind(self, error: ModelError) -> ModelError | None:
        """The same for a call that has failed: a connection breaks a little before the process is gone."""
        if error.status is None and self.fault() is None:
            await asyncio.sleep(2 * guard.PAUSE)
        return self.fault()

    async def _start(self) -> None:
        logger.info(
            "starting a server for %s (%s); its log is %s", self.file.name, self.backend.name, self.log.path
        )
        started = time.monotonic()
        for attempt in range(PORTS_TRIED):
            self._port = _free_port()
            command = await asyncio.to_thread(
                self.backend.command, self._program, self.file, self._link, self._port
            )
            self._process = self._guarded(command)
            if await self._ready(started):
                break
            if attempt + 1 == PORTS_TRIED or not _PORT_TAKEN.search("\n".join(self.log.lines())):
                raise self._not_started(self._end())
        logger.info("%s is ready after %.0f s", self.file.name, time.monotonic() - started)

    def _guarded(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self.log.path.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - what find_backend found
                [sys.executable, "-I", guard.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the evaluation, which ends this in its turn
            )

    async def _ready(self, started: float) -> bool:
        """Wait; whether it is ready, or has ended. Raises ``ModelSetupError`` when the time is up."""
        assert self._process is not None
        said = started
        while self._process.poll() is None:
            if await _answers(self._port, self.backend.health) and self._process.poll() is None:
                return True
            now = time.monotonic()
            if now - started > self.timeout:
                raise self._not_started(
                    f"is not ready after {self.timeout:g} s (more time: {TIMEOUT}=SECONDS)"
                )
            if now - said >= SECONDS_BETWEEN_WORDS:
                logger.info("still loading %s, %.0f s", self.file.name, now - started)
                said = now
            await asyncio.sleep(PAUSE)
        return False

    def _not_started(self, what: str) -> ModelSetupError:
        return ModelSetupError(f"its server {what}. {self.log.quoted()}", place=self.place)

    def _end(self) -> str:
        code = self._process.poll() if self._process is not None else None
        return f"has ended (exit code {code})"

    async def _stop(self) -> None:
        """End it, and wait until it has; the log is kept if somebody was told of it."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()
            await _gone(process)
        self.log.clear_away()


async def _gone(process: subprocess.Popen[bytes]) -> None:
    """Wait for the guard, which needs some seconds at most; it is not left behind if this is cancelled."""
    deadline = time.monotonic() + STOP_SECONDS
    try:
        while process.poll() is None and time.monotonic() < deadline:  # noqa: ASYNC110 - a process sets no event
            await asyncio.sleep(PAUSE / 5)
    finally:
        if process.poll() is None:
            process.terminate()  # it ends the server at once and then itself


async def _answers(port: int, path: str) -> bool:
    """Whether the server says 200 to ``path``. (No library: this goes past every proxy.)"""
    writer = None
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(HOST, port), 5.0)
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {HOST}:{port}\r\n\r\n".encode())
        line = await asyncio.wait_for(reader.readline(), 5.0)
        return line.split(b" ")[1:2] == [b"200"]
    except (OSError, asyncio.TimeoutError, ValueError):
        return False
    finally:
        if writer is not None:
            writer.close()


def start_limit() -> float:
    """Seconds that a server may take to start; raises ``ModelSetupError`` for a setting that is no number."""
    text = os.environ.get(TIMEOUT) or str(DEFAULT_TIMEOUT)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise ModelSetupError(f"{TIMEOUT}={text!r} is no number of seconds")
    return seconds


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        number: int = probe.getsockname()[1]
        return number


@contextmanager
def shown_on(stream: TextIO) -> Iterator[None]:
    """What is going on (starting, still loading, ready) also as lines on ``stream``."""
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
