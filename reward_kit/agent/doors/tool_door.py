"""A server on this machine through which remote agents call the tools of the rollouts they play."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import socket
from typing import TYPE_CHECKING, Any

from reward_kit.agent.doors.admission import Admission
from reward_kit.agent.listening import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from reward_kit.agent.rollout import Rollout


class ToolDoor:
    """One HTTP server for all rollouts that are admitted, in the event loop of the evaluation.

    ::

        door = ToolDoor()
        await door.open()
        with door.admit(rollout) as token:
            ...  # requests to door.url with "Authorization: Bearer <token>" act on this rollout
        await door.close()

    ``GET /tools`` lists the tools, ``POST /tools/{name}`` calls one, ``GET /rollout`` shows the conversation,
    ``/mcp`` is the same for MCP clients. docs/http-agent.md is the reference.
    """

    def __init__(self) -> None:
        self._admissions: dict[bytes, Admission] = {}
        self._port: int | None = None
        self._server: Any = None
        self._serving: asyncio.Task[None] | None = None
        self._has_mcp = False

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``; a ``RuntimeError`` while the door is not open."""
        if self._port is None:
            raise RuntimeError("the door is not open")
        return f"http://{LOOPBACK}:{self._port}"

    @property
    def tools_url(self) -> str:
        """Where the tools are listed; ``POST`` goes to ``{tools_url}/{name}``."""
        return f"{self.url}/tools"

    @property
    def rollout_url(self) -> str:
        """Where the rollout can be looked at."""
        return f"{self.url}/rollout"

    @property
    def mcp_url(self) -> str | None:
        """Where MCP clients connect; None where the package ``mcp`` is not installed."""
        return f"{self.url}/mcp" if self._has_mcp else None

    async def open(self) -> None:
        """Listen on a free port of this machine; all calls then run on the loop that this is called on."""
        from reward_kit.agent.doors.app import DoorApp
        from reward_kit.agent.doors.server import QuietServer

        if self._serving is not None:
            raise RuntimeError("the door is open already")
        mcp = _rollout_mcp(self._admitted)
        # Named TCP, it gets TCP_NODELAY from asyncio; without, an answer may wait 40 ms to be acknowledged.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.bind((LOOPBACK, 0))
            listener.listen(1024)
        except OSError:
            listener.close()
            raise
        self._has_mcp = mcp is not None
        self._server = QuietServer(DoorApp(self._admitted, None if mcp is None else mcp.handle_request))
        self._serving = asyncio.ensure_future(_serve(self._server, listener, mcp))
        await self._server.wait_until_started(self._serving)
        self._port = listener.getsockname()[1]

    @contextlib.contextmanager
    def admit(self, rollout: Rollout, *, on_stop: Callable[[], None] | None = None) -> Iterator[str]:
        """Let the holder of the token that this gives act on ``rollout``, until the block ends.

        ``on_stop`` is called when an answer tells the agent that the rollout is over.
        """
        token = secrets.token_urlsafe(32)
        digest = _digest(token)
        self._admissions[digest] = Admission(rollout, on_stop)
        try:
            yield token
        finally:
            del self._admissions[digest]

    async def close(self) -> None:
        """End the calls that are still running, and the server."""
        serving, self._serving = self._serving, None
        if serving is None:
            return
        from reward_kit.agent.doors.server import STOPPING

        for admission in list(self._admissions.values()):
            await admission.cancel()
        self._port = None
        self._server.should_exit = True
        done, _ = await asyncio.wait({serving}, timeout=2 * STOPPING)
        if not done:
            serving.cancel()
            await asyncio.wait({serving})

    def _admitted(self, authorization: str | None) -> Admission | None:
        """The rollout of an ``Authorization`` header.

        Tokens are looked up by their digest: how long that takes tells nothing about a token, and none is
        kept here in clear text.
        """
        scheme, _, token = (authorization or "").partition(" ")
        return self._admissions.get(_digest(token.strip())) if scheme.lower() == "bearer" else None


async def _serve(server: Any, listener: socket.socket, mcp: Any) -> None:
    """Run until ``server.should_exit``; MCP's own tasks must begin and end in this one."""
    async with mcp.run() if mcp is not None else contextlib.nullcontext():
        await server.serve(sockets=[listener])


def _rollout_mcp(admitted: Callable[[str | None], Admission | None]) -> Any:
    """The MCP side of the door; None where the package ``mcp`` is not installed."""
    try:
        from reward_kit.agent.doors.rollout_mcp import rollout_mcp
    except ImportError:
        return None
    return rollout_mcp(admitted)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
