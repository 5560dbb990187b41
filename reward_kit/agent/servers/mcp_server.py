"""The tools of a registry as an MCP server, with a database per session."""

from __future__ import annotations

import contextlib
import logging
import uuid
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    CallToolResult,
    ListToolsResult,
    RequestParams,
    TextContent,
    Tool,
)

from reward_kit.agent.base.text import encodable
from reward_kit.agent.servers.sessions import Sessions, TooManySessionsError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from mcp.server.context import HandlerResult, ServerRequestContext
    from mcp_types import CallToolRequestParams, PaginatedRequestParams

    from reward_kit.agent.tools.registry import ToolRegistry

    Context = ServerRequestContext[str]

logger = logging.getLogger(__name__)

MAX_SESSIONS = 256
"""Sessions held at once; those without changes make room for new ones."""
SESSION_HEADER = "mcp-session-id"
STOPPED = "reward-kit/stopped"
"""Key in a result's ``_meta``: the reason why the rollout is over."""


def mcp_tools(openai_tools: Iterable[dict[str, Any]]) -> ListToolsResult:
    """Tools in the format of MCP, with the names, descriptions and schemas that models are offered."""
    functions = [tool["function"] for tool in openai_tools]
    return ListToolsResult(
        tools=[
            Tool(name=f["name"], description=f["description"], input_schema=f["parameters"])
            for f in functions
        ]
    )


def mcp_result(content: str, status: str, *, stopped: str | None = None) -> CallToolResult:
    """The text that a model sees of a call; every status but ``ok`` is a result with ``isError``."""
    return CallToolResult(
        content=[TextContent(text=encodable(content))],
        is_error=status != "ok",
        _meta={STOPPED: stopped} if stopped else None,
    )


@dataclass(frozen=True, slots=True)
class McpServer:
    """The SDK's server and the databases behind it, which are closed when its last connection ends."""

    server: Server[str]
    sessions: Sessions


def build_mcp_server(registry: ToolRegistry) -> McpServer:
    """A server of the tools that ``registry`` has now.

    A session is a connection on stdio; over HTTP it begins with the protocol's handshake. The newest protocol
    has no sessions over HTTP, so the server asks its clients to fall back to the handshake.
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
        self._ended: deque[str] = deque()

    @contextlib.asynccontextmanager
    async def lifespan(self, _server: Server[str]) -> AsyncIterator[str]:
        """The session of a connection; over HTTP, one lifespan serves all sessions unused."""
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
        """The newest protocol's greeting, answered only if the connection is a session."""
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
            return mcp_result(f"Error: {error.fault}; end one that is no longer needed", "failed")
        if result.error:
            logger.warning("tool %r failed\n%s", params.name, result.error)
        return mcp_result(result.content, result.status)

    def _session(self, context: Context) -> str:
        while self._ended:
            self._forget(self._ended.popleft())
        if context.request is None:
            return context.lifespan_context
        name: str | None = context.request.headers.get(SESSION_HEADER)
        if name is None:
            raise MCPError(INVALID_REQUEST, "each session has its own database: begin one with initialize")
        handshake = context.session.client_params
        if name not in self._named and handshake is not None:
            self._named.add(name)
            # The SDK has no public hook for the end of a session, but drops the client's handshake with it.
            weakref.finalize(handshake, self._ended.append, name).atexit = False
        return name

    def _forget(self, name: str) -> None:
        self._named.discard(name)
        self.sessions.reset(name)
