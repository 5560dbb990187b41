"""Serving a bundle's tools over MCP: on standard input and output, or over HTTP."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import os
import re
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from mcp.server.lowlevel import Server
    from starlette.types import ASGIApp, Receive, Scope, Send

PATH = "/mcp"
TOKEN = "REWARD_KIT_MCP_TOKEN"  # noqa: S105 - the name of the variable
"""Environment variable with the bearer token that clients over HTTP must send."""


@contextlib.contextmanager
def wire() -> Iterator[tuple[TextIOWrapper, TextIOWrapper]]:
    """Standard input and output for the protocol alone: whatever else is printed meanwhile goes to stderr.

    This holds for ``print``, for C code and for child processes, from before the bundle is imported on.
    """
    sys.stdout.flush()
    given = os.dup(0), os.dup(1)
    reader = TextIOWrapper(os.fdopen(os.dup(0), "rb"), encoding="utf-8", errors="replace")
    writer = TextIOWrapper(os.fdopen(os.dup(1), "wb"), encoding="utf-8", newline="\n")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield reader, writer
    finally:
        for number, descriptor in enumerate(given):
            os.dup2(descriptor, number)
            os.close(descriptor)


async def serve_stdio(server: Server[Any], reader: TextIOWrapper, writer: TextIOWrapper) -> None:
    """Speak to one client until it closes its end."""
    import anyio
    from mcp.server.stdio import stdio_server

    async with stdio_server(anyio.wrap_file(reader), anyio.wrap_file(writer)) as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def http_token(host: str) -> str | None:
    """The token that clients must send; ``RewardKitError`` where there must be one and is none."""
    token = os.environ.get(TOKEN, "").strip()
    if token and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise RewardKitError(f"{TOKEN} has characters that no token has", remedy="Use visible ASCII.")
    if not token and not _is_loopback(host):
        raise RewardKitError(
            f"anybody who reaches {host} could call the tools",
            place="--host",
            remedy=f"Set {TOKEN} to a secret that clients send as a bearer token, or listen on 127.0.0.1.",
        )
    return token or None


def serve_http(server: Server[Any], listener: socket.socket, host: str, token: str | None) -> None:
    """Speak streamable HTTP at ``PATH`` until a signal ends it."""
    import uvicorn

    app: ASGIApp = server.streamable_http_app(streamable_http_path=PATH, host=host)
    if token is not None:
        app = _Guard(app, token)
    config = uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])


class _Guard:
    """Lets requests with the token through."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                from starlette.responses import JSONResponse

                headers = {"WWW-Authenticate": "Bearer"}
                answer = JSONResponse({"detail": f"send the bearer token of {TOKEN}"}, 401, headers)
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
