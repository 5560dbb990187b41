"""Servers of a bundle: ``mcp`` for its tools, ``serve`` for its episodes, also for OpenEnv and NeMo Gym."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from reward_kit.agent.base.network import address_of, listen
from reward_kit.agent.base.printing import reserved_output, say, warn
from reward_kit.agent.base.text import count
from reward_kit.cli.options import command, listening_options, row_option, user_model_option
from reward_kit.errors import BundleError, UsageError

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from reward_kit.agent.base.types import Model, Role
    from reward_kit.agent.servers.mcp_server import McpServer
    from reward_kit.agent.tools.registry import ToolRegistry
    from reward_kit.integrations.serving.episodes import Episodes

PATH = "/mcp"
TOKEN = "REWARD_KIT_MCP_TOKEN"  # noqa: S105 - the name of the variable
"""Environment variable with the bearer token that clients over HTTP must send."""
MAX_BODY = 4 * 1024 * 1024
"""Bytes of a request's body that are received before the SDK sees it, which has the same limit."""


@command("mcp")
@click.argument("target")
@row_option(help="Begin with the tools and data of this row.")
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
        from reward_kit.agent.servers.requests import check_guarded

        check_guarded(TOKEN, host)
        server = _server(target, row)
        with listen(host, port) as listener:
            say(f"{server.server.name}: {address_of(host, listener)}{PATH} (Ctrl-C ends it)", err=True)
            _serve_http(server.server, listener, host)
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


def _serve_http(server: Server[Any], listener: socket.socket, host: str) -> None:
    """Serve streamable HTTP at ``PATH`` until a signal ends it."""
    import uvicorn

    from reward_kit.agent.servers.requests import LocalOrTrusted, with_whole_bodies

    # JSON, because the SDK's client takes no event of more than a megabyte
    app = server.streamable_http_app(streamable_http_path=PATH, host=host, json_response=True)
    guarded = LocalOrTrusted(with_whole_bodies(app, MAX_BODY), variable=TOKEN)
    config = uvicorn.Config(guarded, log_level="warning", ws="none", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])


def _server(target: str, row: str | None) -> McpServer:
    """The server of ``target`` with its base seeded; raises ``BundleError`` for a faulty bundle."""
    from reward_kit.agent.tools.registry import mcp_server_of

    if row is None:
        server = mcp_server_of(_registry(target))
    else:
        from reward_kit.agent.bundles.bundle import TaskBundle
        from reward_kit.agent.bundles.task import select_tasks

        of_module = target.partition(":")[0].removesuffix(".tools")
        bundle = TaskBundle.load(target if Path(target).exists() else of_module, unanswered=True)
        (task, *_) = select_tasks(bundle.tasks, task_ids=[row], called=lambda _: "--rows")
        server = mcp_server_of(task.registry, task)
    server.sessions.open()
    return server


def _registry(target: str) -> ToolRegistry:
    from reward_kit.agent.bundles.imports import BundleImports, load_registry

    path, remedy = Path(target), "Name the bundle's folder, or its tools module: my_task.tools."
    if path.is_file():
        raise BundleError(f"{target} is a file", remedy=remedy)
    is_folder = path.is_dir()
    imports = BundleImports(path if is_folder else Path.cwd())  # stays open: tools may import when called
    toolset = ".tools" if is_folder else target
    if not is_folder and target.isidentifier() and importlib.util.find_spec(target) is not None:
        toolset = f"{target}.tools" if imports.exists(f"{target}.tools") else target
    return load_registry(imports, toolset)


@command("serve")
@click.argument("bundle")
@user_model_option(envvar="MODEL_SIM", help="The simulated user's model.")
@click.option("--user", metavar="NAME", help="The simulated user: react, none, module:function and others.")
@click.option("--reasons", is_flag=True, help="Send the whole reason of a reward, which may name the answer.")
@listening_options()
def serve(bundle: str, user_model: str | None, user: str | None, reasons: bool, host: str, port: int) -> None:
    """Serve episodes of a bundle over HTTP, for trainers.

    A client begins an episode in a session, calls tools, says lines to the simulated user, and gets the
    reward at the end: /docs has all routes. Those of OpenEnv and NeMo Gym are among them.

    Clients must send the bearer token of the environment variable REWARD_KIT_SERVER_TOKEN if it is set; it is
    required for listening on any other address than this machine's own.
    """
    import uvicorn

    from reward_kit.agent.bundles.bundle import TaskBundle
    from reward_kit.agent.players.names import load_user
    from reward_kit.agent.servers.http import TOKEN
    from reward_kit.agent.servers.requests import MAX_BODY, check_guarded
    from reward_kit.integrations.serving.app import build_app
    from reward_kit.integrations.serving.episodes import Episodes

    check_guarded(TOKEN, host)
    models = _models(bundle, user_model)
    with TaskBundle.load(bundle) as loaded, listen(host, port) as listener:
        if user is not None:
            load_user(user)
        played_by: dict[str, Any] = {} if user is None else {"user": user}
        episodes = Episodes(loaded, reasons=reasons, models=models, **played_by)
        _warn_of_unplayable(episodes)
        say(f"{address_of(host, listener)} (Ctrl-C ends it)")
        sys.stdout.flush()
        app = build_app(episodes, models.values())
        config = uvicorn.Config(app, log_level="warning", ws_max_size=MAX_BODY, timeout_graceful_shutdown=2)
        uvicorn.Server(config).run(sockets=[listener])


def _models(bundle: str, user_model: str | None) -> dict[Role, Model]:
    """The user's model; raises ``ModelSetupError`` for one that cannot be called."""
    if not user_model:
        return {}
    from reward_kit.agent.evaluation.options import make_config
    from reward_kit.agent.models.calls import Limiters
    from reward_kit.agent.players.participants import find_models
    from reward_kit.integrations.serving.episodes import MAX_SESSIONS

    config = make_config({"dataset": bundle, "sim_model": user_model})
    return find_models(config, Limiters(ceiling=MAX_SESSIONS), agent=False, user=True)


def _warn_of_unplayable(episodes: Episodes) -> None:
    refused = []
    for task in episodes.bundle.tasks:
        try:
            episodes.talks(task)
        except UsageError as error:
            refused.append(error)
    if refused:
        others = len(refused) - 1
        more = f" ({count(others, 'row')} more)" if others else ""
        warn(f"{refused[0]}{more}")
