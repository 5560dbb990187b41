"""What ``create_fastapi_app`` returns: an ASGI application that is built when it is first used.

A bundle's ``tools`` module makes its application whenever it is imported, also by an evaluation that serves
nothing; so the import of FastAPI waits until a server calls the application or looks inside it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from reward_kit.agent.tool_registry import ToolRegistry
    from reward_kit.agent.tool_server import ToolServer

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class ToolApp:
    """The tools of a registry over HTTP. Every attribute but its own is the FastAPI application's."""

    def __init__(self, registry: ToolRegistry) -> None:
        own = self.__dict__  # past __setattr__, which sets attributes of the application
        own["_registry"] = registry
        own["_server"] = None
        own["_building"] = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = self._built()
        if scope["type"] != "lifespan":
            await server.app(scope, receive, send)
            return
        try:
            server.sessions.open()
        except RewardKitError as error:
            # Raised, it would reach the server's log as a traceback of FastAPI's with the message at its end.
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        try:
            await server.app(scope, receive, send)
        finally:
            server.sessions.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # probes of inspect, copy and test runners, which should not build anything
            raise AttributeError(name)
        return getattr(self._built().app, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._built().app, name, value)

    def __repr__(self) -> str:
        return f"<tool server of {self._registry.name!r}>"

    def _built(self) -> ToolServer:
        with self._building:
            if self._server is None:
                from reward_kit.agent.tool_server import build_server

                self.__dict__["_server"] = build_server(self._registry)
            server: ToolServer = self._server
            return server
