"""Serving a bundle's tools over MCP: on standard input and output, or over HTTP."""

from __future__ import annotations

import contextlib
import os
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from reward_kit.agent.tools.access import LocalOrTrusted, is_loopback, token_of
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from mcp.server.lowlevel import Server

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


def check_host(host: str) -> None:
    """Raise ``RewardKitError`` where others than this machine would reach a server without a token."""
    if token_of(TOKEN) is None and not is_loopback(host):
        raise RewardKitError(
            f"anybody who reaches {host} could call the tools",
            place="--host",
            remedy=f"Set {TOKEN} to a secret that clients send as a bearer token, or listen on 127.0.0.1.",
        )


def serve_http(server: Server[Any], listener: socket.socket, host: str) -> None:
    """Speak streamable HTTP at ``PATH`` until a signal ends it."""
    import uvicorn

    # JSON, for as an event the SDK's client takes no answer of more than a megabyte
    app = server.streamable_http_app(streamable_http_path=PATH, host=host, json_response=True)
    guarded = LocalOrTrusted(app, variable=TOKEN)
    config = uvicorn.Config(guarded, log_level="warning", ws="none", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])
