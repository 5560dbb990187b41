"""The object that ``create_fastapi_app`` returns.

A bundle's ``tools`` module makes its application whenever it is imported, also by an evaluation that serves
nothing, so FastAPI is imported only when a server calls the application or somebody asks for ``app.fastapi``.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send

    from reward_kit.agent.servers.sessions import Sessions
    from reward_kit.agent.tools.registry import ToolRegistry


class ToolApp:
    """The tools of a registry as an ASGI application."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry

    @cached_property
    def fastapi(self) -> FastAPI:
        """The FastAPI application behind it, for further routes and middleware.

        It is built when it is first needed, with the tools that are registered then.
        """
        from reward_kit.agent.servers.http import build_app

        return build_app(self._registry, self._sessions)

    @cached_property
    def _sessions(self) -> Sessions:
        from reward_kit.agent.servers.sessions import MAX_SESSIONS, Sessions

        return Sessions(self._registry, MAX_SESSIONS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self.fastapi(scope, receive, send)
            return
        try:
            self._sessions.open()
        except RewardKitError as error:  # FastAPI would log a traceback
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        try:
            await self.fastapi(scope, receive, send)
        finally:
            self._sessions.close()

    def __repr__(self) -> str:
        return f"<tool server of {self._registry.name!r}>"
