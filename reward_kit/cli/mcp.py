"""``reward-kit mcp``: serve a bundle's tools to MCP clients, on standard input and output or over HTTP."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from reward_kit.agent.base.network import address_of, listen
from reward_kit.agent.base.printing import reserved_output, say
from reward_kit.cli.common_options import command, listening_options
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.servers.mcp_server import McpServer
    from reward_kit.agent.tools.registry import ToolRegistry

PATH = "/mcp"
TOKEN = "REWARD_KIT_MCP_TOKEN"  # noqa: S105 - the name of the variable
"""Environment variable with the bearer token that clients over HTTP must send."""
MAX_BODY = 4 * 1024 * 1024
"""Bytes of a request's body that are received before the SDK sees it, which has the same limit."""


@command("mcp")
@click.argument("target")
@click.option("--rows", "--row", "row", metavar="ID", help="Begin with the tools and data of this row.")
@click.option("--http", is_flag=True, help="Streamable HTTP at /mcp, instead of standard input and output.")
@listening_options(", with --http")
def mcp(target: str, row: str | None, http: bool, host: str, port: int) -> None:
    """Serve a bundle's tools to MCP clients.

    TARGET is the import path of a tools module (my_task.tools) or a bundle's folder. Each session has its
    own database: it begins with the bundle's seed, or with that of a row, and its changes are dropped when it
    ends.

    With --http, clients must send the bearer token of the environment variable REWARD_KIT_MCP_TOKEN if it is
    set; it is required for listening on any other address than this machine's own.
    """
    if http:
        _over_http(target, row, host, port)
        return
    with reserved_output() as output:
        incoming = os.fdopen(os.dup(0), "rb")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)  # tools that read must not take the client's requests
        os.close(nothing)
        server = _server(target, row)
        _end_on_signals(server)
        asyncio.run(_serve_stdio(server.server, incoming, output))


async def _serve_stdio(server: Server[Any], incoming: BinaryIO, outgoing: BinaryIO) -> None:
    """Serve one client until it closes its end."""
    import anyio
    from mcp.server.stdio import stdio_server

    woken, wakes = socket.socketpair()  # a signal may reach the thread that waits for input: wake the loop
    for end in (woken, wakes):
        end.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    asyncio.get_running_loop().add_reader(woken, woken.recv, 64)
    reader = anyio.wrap_file(TextIOWrapper(incoming, encoding="utf-8", errors="replace"))
    writer = anyio.wrap_file(TextIOWrapper(outgoing, encoding="utf-8", newline="\n"))
    async with stdio_server(reader, writer) as (requests, answers):
        await server.run(requests, answers, server.create_initialization_options())


def _end_on_signals(server: McpServer) -> None:
    """End at once on a signal: the thread that waits for input would keep the process."""

    def end(number: int, _frame: object) -> None:
        server.sessions.close()
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


def _over_http(target: str, row: str | None, host: str, port: int) -> None:
    from reward_kit.agent.servers.access import check_guarded

    check_guarded(TOKEN, host)
    server = _server(target, row)
    with listen(host, port) as listener:
        say(f"{server.server.name}: {address_of(host, listener)}{PATH} (Ctrl-C ends it)", err=True)
        _serve_http(server.server, listener, host)


def _serve_http(server: Server[Any], listener: socket.socket, host: str) -> None:
    """Serve streamable HTTP at ``PATH`` until a signal ends it."""
    import uvicorn

    from reward_kit.agent.servers.access import LocalOrTrusted
    from reward_kit.agent.servers.bodies import received

    # JSON, because the SDK's client takes no event of more than a megabyte
    app = server.streamable_http_app(streamable_http_path=PATH, host=host, json_response=True)

    async def unless_gone(scope: Any, receive: Any, send: Any) -> None:
        """Pass on complete requests only: the SDK logs a traceback for a client that hangs up in the body."""
        whole = await received(receive, MAX_BODY) if scope["type"] == "http" else receive
        if whole is not None:
            await app(scope, whole, send)

    guarded = LocalOrTrusted(unless_gone, variable=TOKEN)
    config = uvicorn.Config(guarded, log_level="warning", ws="none", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])


def _server(target: str, row: str | None) -> McpServer:
    """The server of ``target`` with its base seeded; raises ``BundleError`` for a faulty bundle."""
    from reward_kit.agent.tools.registry import mcp_server_of

    task = None if row is None else _task(target, row)
    server = mcp_server_of(_registry(target) if task is None else task.registry, task)
    server.sessions.open()
    return server


def _task(target: str, row: str) -> Task:
    from reward_kit.agent.bundles.bundle import TaskBundle
    from reward_kit.agent.bundles.task import select_tasks

    of_module = target.partition(":")[0].removesuffix(".tools")
    bundle = TaskBundle.load(target if Path(target).exists() else of_module, unanswered=True)
    return select_tasks(bundle.tasks, task_ids=[row], called=lambda _: "--row")[0]


def _registry(target: str) -> ToolRegistry:
    from reward_kit.agent.bundles.imports import BundleImports
    from reward_kit.agent.bundles.toolset import load_registry

    path = Path(target)
    if path.is_file():
        raise BundleError(
            f"{target} is a file", remedy="Name the bundle's folder, or its tools module: my_task.tools."
        )
    is_folder = path.is_dir()
    imports = BundleImports(path if is_folder else Path.cwd())  # stays open: tools may import when called
    toolset = f"{path.resolve().name}.tools" if is_folder else target
    if not is_folder and target.isidentifier() and importlib.util.find_spec(target) is not None:
        toolset = f"{target}.tools" if imports.exists(f"{target}.tools") else target
    return load_registry(imports, toolset)
