"""A worker process: an in-process executor that another process drives. Started by ``connection``.

Both sides speak JSON lines over a socket pair of their own, so that nothing a bundle prints, reads or closes
gets between them. The first line is the setup: ``config``, ``root`` (the runs folder), ``eval_id``, and for a
worker on another machine ``bases``, the names of the seeded databases that it must come to. Then come calls,
each with an ``id``: ``{"id": 1, "do": "describe"}``, ``{"id": 2, "do": "play", "request": ...}``,
``{"id": 2, "do": "cancel"}``. Each is answered once, with its ``id`` and ``result``, ``error`` (a
``RewardKitError``), ``crash`` (any other exception) or ``cancelled``. In between come, with the ``id`` of the
call, ``began`` once a rollout begins, ``used`` for each model call and ``at`` as a watched rollout begins
something; and, without one, ``note`` (a text for people) and ``alive``, as long as the event loop runs.

The end of the socket ends the process.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import socket
import sys
import threading
import time
from base64 import b64encode
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.versions import versions
from reward_kit.agent.bundles.bundle import read_bundle
from reward_kit.agent.config import EvaluationConfig
from reward_kit.agent.runner.in_process import InProcess
from reward_kit.agent.runner.protocol import PlayRequest
from reward_kit.agent.runner.signals import is_held_up, run_in_loop
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reward_kit.agent.base.types import Role, Usage

CLOSE_GRACE = 10.0
"""Seconds to end in order once the other side has closed the socket."""
ALIVE_EVERY = 1.0
"""Seconds between two signs of life."""


class _Channel:
    """The worker's end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self.lines = connection.makefile("rb")

    def send(self, **message: Any) -> None:
        """Send one message, from any thread; nothing happens if the other side is gone."""
        data = json.dumps(message).encode() + b"\n"
        with self._lock, suppress(OSError):
            self._connection.sendall(data)


class _Account:
    """Sends the model calls of one attempt to the process that counts them."""

    def __init__(self, channel: _Channel, number: int) -> None:
        self._channel = channel
        self._number = number

    def used(self, role: Role, usage: Usage, model: str) -> None:
        self._channel.send(id=self._number, used=[role, asdict(usage), model])

    def broken_off(self) -> None:
        raise NotImplementedError("the other process counts attempts")


class _Server:
    """Answers the calls that arrive, many at a time."""

    def __init__(self, executor: InProcess, channel: _Channel, setup: Mapping[str, Any]) -> None:
        self._executor = executor
        self._channel = channel
        self._root = Path(setup["root"])
        self._bases: list[str] | None = setup.get("bases")
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._described: asyncio.Task[Any] | None = None

    def receive(self, message: Mapping[str, Any]) -> None:
        """Begin or cancel the call in ``message``."""
        number = message["id"]
        if message["do"] == "cancel":
            if (call := self._calls.get(number)) is not None:
                call.cancel()
            return
        call = self._calls[number] = asyncio.create_task(self._answer(message))
        call.add_done_callback(partial(self._ended, number))

    def _ended(self, number: int, call: asyncio.Task[None]) -> None:
        del self._calls[number]
        if call.cancelled():  # perhaps before it began
            self._channel.send(id=number, cancelled=True)

    async def _answer(self, message: Mapping[str, Any]) -> None:
        try:
            answer = {"result": await self._result(message)}
        except RewardKitError as error:
            answer = {"error": error.to_json()}
        except Exception as error:  # noqa: BLE001 - the other process has to hear of any end
            answer = {"crash": fault_line(error)}
        self._channel.send(id=message["id"], **answer)

    async def _result(self, message: Mapping[str, Any]) -> Any:
        if self._described is None:
            self._described = asyncio.create_task(self._executor.describe())
        description = await asyncio.shield(self._described)
        if message["do"] == "describe":
            return description.to_json()
        self._check_bases()
        number, request = message["id"], PlayRequest(**message["request"])
        self._channel.send(id=number, began=True)
        if request.watched:
            self._executor.watch = lambda what: self._channel.send(id=number, at=what)
        played = (await self._executor.play(request, _Account(self._channel, number))).to_json()
        return played if self._bases is None else {**played, "files": self._taken_files(played["outcome"])}

    def _check_bases(self) -> None:
        if self._bases is None:
            return
        for path in (self._root / ".bases").glob("*.seeded"):
            if path.name not in self._bases:  # deltas and gold states go with the driver's bases
                raise RewardKitError(
                    "a node of the Ray cluster seeds another database than this machine (SQLite "
                    f"{versions()['sqlite']} there)",
                    remedy="Install the same versions everywhere, and let a seed.py draw no random numbers.",
                )

    def _taken_files(self, outcome: Mapping[str, Any]) -> dict[str, str]:
        """The files of a rollout, which the other process keeps: names and contents as base64."""
        files = {}
        for name in (outcome["database"], f"{outcome['row_id']}/roll_{outcome['id']}.log"):
            if name is not None and (path := self._root / name).is_file():
                files[name] = b64encode(path.read_bytes()).decode("ascii")
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
        executor = InProcess(
            config, rows, setup["root"], lambda text: channel.send(note=text), eval_id=setup["eval_id"]
        )
        server = _Server(executor, channel, setup)
        main = asyncio.current_task()
        assert main is not None
        loop = asyncio.get_running_loop()
        threading.Thread(target=_listen, args=(channel, loop, server, main), daemon=True).start()
        try:
            while True:
                channel.send(alive=True)
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


def main(descriptor: int) -> None:
    """Play what the process at the other end of the socket asks for."""
    faulthandler.enable()
    os.set_inheritable(descriptor, False)
    channel = _Channel(socket.socket(fileno=descriptor))
    first = channel.lines.readline()
    if not first:
        return
    with suppress(asyncio.CancelledError):
        run_in_loop(_serve(json.loads(first), channel))
    sys.stdout.flush()
    if is_held_up():
        os._exit(0)
