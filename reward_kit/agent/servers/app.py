"""The object that ``create_fastapi_app`` returns.

A bundle's ``tools`` module makes its application whenever it is imported, also by an evaluation that serves
nothing, so FastAPI is imported only when a server calls the application or somebody asks for ``app.fastapi``.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send

    from reward_kit.agent.servers.http import ToolServer
    from reward_kit.agent.tools.registry import ToolRegistry


class ToolApp:
    """The tools of a registry as an ASGI application.

    ``fastapi`` is the FastAPI application behind it, for further routes and middleware. It has the tools that
    are registered when it is built.
    """

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry
        self._server: ToolServer | None = None
        self._building = threading.Lock()

    @property
    def fastapi(self) -> FastAPI:
        """The FastAPI application, built when it is first needed."""
        return self._built().app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = self._built()
        if scope["type"] != "lifespan":
            await server.app(scope, receive, send)
            return
        try:
            server.sessions.open()
        except RewardKitError as error:  # FastAPI would log a traceback
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        try:
            await server.app(scope, receive, send)
        finally:
            server.sessions.close()

    def __repr__(self) -> str:
        return f"<tool server of {self._registry.name!r}>"

    def _built(self) -> ToolServer:
        with self._building:
            if self._server is None:
                from reward_kit.agent.servers.http import build_server

                self._server = build_server(self._registry)
            return self._server
