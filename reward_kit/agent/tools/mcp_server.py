"""The tools of a registry as an MCP server, with a database per session."""

from __future__ import annotations

import contextlib
import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST, METHOD_NOT_FOUND, RequestParams

from reward_kit.agent.tools.mcp_format import mcp_result, mcp_tools
from reward_kit.agent.tools.sessions import Sessions, TooManySessionsError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp.server.context import HandlerResult, ServerRequestContext
    from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams

    from reward_kit.agent.tool_registry import ToolRegistry

    Context = ServerRequestContext[str]

logger = logging.getLogger(__name__)

MAX_SESSIONS = 256
"""Sessions with changes that are held at once."""

SESSION_HEADER = "mcp-session-id"


@dataclass(frozen=True, slots=True)
class McpServer:
    """The SDK's server and the databases behind it, which are closed when its last connection ends."""

    server: Server[str]
    sessions: Sessions


def build_mcp_server(registry: ToolRegistry) -> McpServer:
    """A server of the tools that ``registry`` has now.

    A session is a connection on stdio, and over HTTP what the protocol's handshake begins. The newest
    protocol has no sessions over HTTP, where the server asks its clients to fall back to the handshake.
    """
    handlers = _Handlers(registry)
    server: Server[str] = Server(
        registry.name,
        instructions=registry.description,
        lifespan=handlers.lifespan,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
    )
    discover = server.get_request_handler("server/discover")
    if discover is not None:
        handlers.discover_here = discover.handler
        server.add_request_handler("server/discover", RequestParams, handlers.discover)
    return McpServer(server, handlers.sessions)


class _Handlers:
    def __init__(self, registry: ToolRegistry) -> None:
        self.sessions = Sessions(registry, MAX_SESSIONS)
        self.discover_here: Any = None
        self._registry = registry
        self._running = 0
        self._named: set[str] = set()

    @contextlib.asynccontextmanager
    async def lifespan(self, _server: Server[str]) -> AsyncIterator[str]:
        """The name of the session of a connection; an HTTP server has one for all, which is not used."""
        name = uuid.uuid4().hex
        self._running += 1
        try:
            yield name
        finally:
            self.sessions.reset(name)
            self._running -= 1
            if not self._running:
                self.sessions.close()

    async def discover(self, context: Context, params: RequestParams) -> HandlerResult:
        """The newest protocol's greeting: answered only where a connection is a session."""
        if context.request is not None:
            raise MCPError(METHOD_NOT_FOUND, "this server keeps sessions, which begin with initialize")
        answer: HandlerResult = await self.discover_here(context, params)
        return answer

    async def list_tools(self, _context: Context, _params: PaginatedRequestParams | None) -> ListToolsResult:
        return mcp_tools(self._registry.get_openai_tools())

    async def call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        try:
            session = self._session(context)
            result = await self.sessions.call(session, params.name, params.arguments or {})
        except TooManySessionsError as error:
            return mcp_result(f"Error: {error.fault}; end one that is not needed any more", "failed")
        if result.error:
            logger.warning("tool %r failed\n%s", params.name, result.error)
        return mcp_result(result.content, result.status)

    def _session(self, context: Context) -> str:
        if context.request is None:
            return context.lifespan_context
        name: str | None = context.request.headers.get(SESSION_HEADER)
        if name is None:
            raise MCPError(
                INVALID_REQUEST, "each session has a database of its own: begin one with initialize"
            )
        if name not in self._named:
            self._named.add(name)
            # The SDK's hook for the end of a session; its public way there (a context with .connection) is
            # announced and not handed to handlers yet.
            context.session._connection.exit_stack.callback(self._forget, name)  # noqa: SLF001 - as said above
        return name

    def _forget(self, name: str) -> None:
        self._named.discard(name)
        self.sessions.reset(name)
