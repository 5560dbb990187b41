"""A server on this machine through which remote agents call the tools of the rollouts they play."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import socket
from typing import TYPE_CHECKING

import uvicorn

from reward_kit.agent.base.network import LOOPBACK
from reward_kit.agent.servers.endpoint_app import Admission, EndpointApp, mcp_sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from reward_kit.agent.rollout.rollout import Rollout

STOPPING = 2
"""Seconds that open requests have when the server stops."""
KEEP_ALIVE = 600
"""Seconds that an idle connection is kept: closing early would race with a client that reuses it."""


class ToolEndpoint:
    """One HTTP server for all admitted rollouts, in the event loop of the evaluation.

    ::

        endpoint = ToolEndpoint()
        await endpoint.open()
        with endpoint.admit(rollout) as token:
            ...  # requests to endpoint.url with "Authorization: Bearer <token>" act on this rollout
        await endpoint.close()

    ``GET /tools`` lists the tools, ``POST /tools/{name}`` calls one, ``GET /rollout`` shows the conversation,
    ``/mcp`` is the same for MCP clients. docs/http-agent.md is the reference.
    """

    def __init__(self) -> None:
        self._admissions: dict[bytes, Admission] = {}
        self._port: int | None = None
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._has_mcp = False

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``; raises ``RuntimeError`` while the endpoint is not open."""
        if self._port is None:
            raise RuntimeError("the tool endpoint is not open")
        return f"http://{LOOPBACK}:{self._port}"

    @property
    def tools_url(self) -> str:
        """The address that lists the tools; ``POST`` goes to ``{tools_url}/{name}``."""
        return f"{self.url}/tools"

    @property
    def rollout_url(self) -> str:
        """The address that shows the rollout."""
        return f"{self.url}/rollout"

    @property
    def mcp_url(self) -> str | None:
        """The address for MCP clients; None if the package ``mcp`` is not installed."""
        return f"{self.url}/mcp" if self._has_mcp else None

    async def open(self) -> None:
        """Listen on a free port of this machine; calls then run on the current event loop."""
        if self._serving is not None:
            raise RuntimeError("the tool endpoint is open already")
        # With an explicit TCP, asyncio sets TCP_NODELAY; otherwise an answer may wait 40 ms for an
        # acknowledgement.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.bind((LOOPBACK, 0))
            listener.listen(1024)
        except OSError:
            listener.close()
            raise
        mcp = mcp_sessions(self._admitted)
        self._has_mcp = mcp is not None
        self._server = _Server(EndpointApp(self._admitted, mcp))
        self._serving = asyncio.ensure_future(_serve(self._server, listener, mcp))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
                raise RuntimeError("the server ended before it had started")
            await asyncio.sleep(0.001)
        self._port = listener.getsockname()[1]

    @contextlib.contextmanager
    def admit(self, rollout: Rollout, *, on_stop: Callable[[], None] | None = None) -> Iterator[str]:
        """Let the holder of the token that this returns act on ``rollout`` until the block ends.

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
        """End the running calls and the server; may be called again."""
        serving, self._serving = self._serving, None
        if serving is None or self._server is None:
            return
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

        Tokens are looked up by their digest: the time that takes does not depend on the token, and no token
        is kept here in clear text.
        """
        scheme, _, token = (authorization or "").partition(" ")
        return self._admissions.get(_digest(token.strip())) if scheme.lower() == "bearer" else None


class _Server(uvicorn.Server):
    """Serves without touching signals or logging, which belong to the evaluation."""

    def __init__(self, app: EndpointApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=STOPPING,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave Ctrl-C to the evaluation."""
        yield


async def _serve(server: _Server, listener: socket.socket, mcp: StreamableHTTPSessionManager | None) -> None:
    """Run until ``server.should_exit``; tasks of MCP must begin and end in this one."""
    async with mcp.run() if mcp is not None else contextlib.nullcontext():
        await server.serve(sockets=[listener])


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
