"""A worker process: an in-process executor that another process drives. Started by ``workers``.

Both sides speak JSON lines over a socket pair of their own, so that nothing a bundle prints, reads or closes
gets between them. The first line is the setup: ``config``, ``root`` (the runs folder) and ``eval_id``. Then
come calls, each with an ``id``: ``{"id": 1, "do": "describe"}``, ``{"id": 2, "do": "play", "request": ...}``,
``{"id": 2, "do": "cancel"}``. Each is answered once, with ``result``, ``error`` (a ``RewardKitError``),
``crash`` (any other exception) or ``cancelled``. In between come ``event`` lines, ``began`` once a rollout
begins, ``at`` as a watched rollout begins something, and ``alive`` as long as the event loop runs.

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
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.places import fault_line
from reward_kit.agent.runner.protocol import PlayRequest
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reward_kit.agent.records.outcome import BrokenOff
    from reward_kit.agent.runner.in_process import InProcess

CLOSE_GRACE = 10.0
"""Seconds to end in order once the other side has closed the socket."""
ALIVE_EVERY = 1.0
"""Seconds between two signs of life."""


class Sender:
    """Sends messages to the process that started this one, the events of an executor among them."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message, from any thread."""
        raise NotImplementedError

    def note(self, text: str) -> None:
        self.send({"event": "note", "values": [text]})

    def spent(self, cost: float, tokens: int) -> None:
        self.send({"event": "spent", "values": [cost, tokens]})

    def unpriced(self, model: str) -> None:
        self.send({"event": "unpriced", "values": [model]})

    def broken_off(self, usage: BrokenOff) -> None:
        self.send({"event": "broken_off", "values": [usage.to_json()]})


class Channel(Sender):
    """The worker's end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self.lines = connection.makefile("rb")

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message; nothing happens if the other side is gone, which the reader notices."""
        data = json.dumps(message).encode() + b"\n"
        with self._lock, suppress(OSError):
            self._connection.sendall(data)


class Server:
    """Answers the calls that arrive, many at a time."""

    def __init__(self, executor: InProcess, sender: Sender) -> None:
        self._executor = executor
        self._sender = sender
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._described: asyncio.Task[Any] | None = None

    def receive(self, message: Mapping[str, Any]) -> None:
        """Begin or cancel the call in ``message``."""
        number = message["id"]
        if message["do"] == "cancel":
            if (call := self._calls.get(number)) is not None:
                call.cancel()
            return
        call = self._calls[number] = asyncio.ensure_future(self._answer(message))
        call.add_done_callback(lambda _: self._calls.pop(number, None))

    async def _answer(self, message: Mapping[str, Any]) -> None:
        number = message["id"]
        try:
            answer = {"result": await self._result(message)}
        except asyncio.CancelledError:
            answer = {"cancelled": True}
        except RewardKitError as error:
            answer = {"error": error.to_json()}
        except Exception as error:  # noqa: BLE001 - the other process has to hear of any end
            answer = {"crash": fault_line(error)}
        self._sender.send({"id": number, **answer})

    async def _result(self, message: Mapping[str, Any]) -> Any:
        if self._described is None:
            self._described = asyncio.ensure_future(self._executor.describe())
        description = await asyncio.shield(self._described)
        if message["do"] == "describe":
            return description.to_json()
        number, request = message["id"], PlayRequest(**message["request"])
        self._sender.send({"began": number})
        if request.watched:
            self._executor.watch = lambda what: self._sender.send({"at": [number, what]})
        return await self.play(request)

    async def play(self, request: PlayRequest) -> dict[str, Any]:
        """The result of a play, as it is sent."""
        return (await self._executor.play(request)).to_json()

    async def close(self) -> None:
        """Cancel all calls and close the executor."""
        calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._executor.close()


async def _serve(setup: Mapping[str, Any], channel: Channel) -> None:
    from reward_kit.agent.bundles.bundle import read_bundle
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.runner.in_process import InProcess
    from reward_kit.agent.runner.signals import log_background_error

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_background_error)
    config = EvaluationConfig(**setup["config"])
    with read_bundle(config.dataset, config.task_dir) as rows:
        server = Server(InProcess(config, rows, setup["root"], channel, eval_id=setup["eval_id"]), channel)
        main = asyncio.current_task()
        assert main is not None
        threading.Thread(target=_listen, args=(channel, loop, server, main), daemon=True).start()
        try:
            while True:
                channel.send({"alive": True})
                await asyncio.sleep(ALIVE_EVERY)
        finally:
            await server.close()


def _listen(
    channel: Channel, loop: asyncio.AbstractEventLoop, server: Server, main: asyncio.Task[None]
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
    channel = Channel(socket.socket(fileno=descriptor))
    first = channel.lines.readline()
    if not first:
        return
    with suppress(asyncio.CancelledError):
        asyncio.run(_serve(json.loads(first), channel))
    sys.stdout.flush()
