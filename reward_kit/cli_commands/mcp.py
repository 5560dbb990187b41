"""``reward-kit mcp``: serve a bundle's tools to MCP clients."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reward_kit.cli_commands.printing import say
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from reward_kit.agent.tool_registry import ToolRegistry
    from reward_kit.agent.tools.mcp_server import McpServer


@click.command()
@click.argument("target")
@click.option("--http", is_flag=True, help="Streamable HTTP at /mcp, instead of standard input and output.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen, with --http.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="On which port, with --http; 0: a free one.",
)
def mcp(target: str, http: bool, host: str, port: int) -> None:
    """Serve a bundle's tools to MCP clients.

    TARGET is the import path of a tools module (my_task.tools) or a bundle's folder.  Each session has a
    database of its own: it begins with the bundle's seed, and its changes are gone when it ends.

    With --http, clients must send the bearer token of the environment variable REWARD_KIT_MCP_TOKEN if it is
    set; it must be to listen elsewhere than on this machine.
    """
    if http:
        _over_http(target, host, port)
    else:
        _over_stdio(target)


def _over_stdio(target: str) -> None:
    import asyncio

    from reward_kit.agent.tools.mcp_serving import serve_stdio, wire

    with wire() as (reader, writer):
        server = _server(target)
        _end_on_signals(server)
        asyncio.run(serve_stdio(server.server, reader, writer))


def _end_on_signals(server: McpServer) -> None:
    """End at once: the thread that waits for input cannot be woken, and would keep the process."""

    def end(number: int, _frame: object) -> None:
        server.sessions.close()
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)


def _over_http(target: str, host: str, port: int) -> None:
    from reward_kit.agent.listening import listen
    from reward_kit.agent.tools.mcp_serving import PATH, check_host, serve_http

    check_host(host)
    server = _server(target)
    with listen(host, port) as listener:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}{PATH}"
        say(f"{server.server.name}: {address} (Ctrl-C ends it)", err=True)
        serve_http(server.server, listener, host)


def _server(target: str) -> McpServer:
    """The server of ``target``, its base seeded; raises ``BundleError`` for a faulty bundle."""
    from reward_kit.agent.tool_registry import mcp_server_of

    server = mcp_server_of(_registry(target))
    server.sessions.open()
    return server


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
