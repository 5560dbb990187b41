"""Tools as MCP servers: those of a registry with a database per session, and those of running rollouts."""

from __future__ import annotations

import contextlib
import gc
import uuid
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
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
from starlette.datastructures import Headers

from reward_kit.agent.base.text import encodable
from reward_kit.agent.base.versions import versions
from reward_kit.agent.servers.requests import with_whole_bodies
from reward_kit.agent.servers.sessions import MAX_SESSIONS, Sessions, TooManySessionsError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from mcp.server.context import HandlerResult, ServerRequestContext
    from mcp_types import CallToolRequestParams, PaginatedRequestParams
    from starlette.types import Receive, Scope, Send

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.servers.endpoint import Admission
    from reward_kit.agent.tools.registry import ToolRegistry

    Context = ServerRequestContext[Any]

STOPPED = "reward-kit/stopped"
"""Key in a result's ``_meta``: the reason why the rollout is over."""


def _listed(openai_tools: Iterable[dict[str, Any]]) -> ListToolsResult:
    functions = [{**tool["function"]} for tool in openai_tools]
    return ListToolsResult(tools=[Tool(input_schema=one.pop("parameters"), **one) for one in functions])


def _result(content: str, status: str, *, stopped: str | None = None) -> CallToolResult:
    meta = {STOPPED: stopped} if stopped else None
    return CallToolResult(content=[TextContent(text=encodable(content))], is_error=status != "ok", _meta=meta)


class McpServer:
    """The tools that a registry has now as a ``server`` of the SDK, on the data of ``task`` or the seed.

    A session is a connection on stdio; over HTTP it begins with the protocol's handshake. The newest protocol
    has no sessions over HTTP, so the server asks its clients to fall back to the handshake. The databases of
    the ``sessions`` are closed when the last connection ends.
    """

    def __init__(self, registry: ToolRegistry, task: Task | None = None) -> None:
        self.sessions = Sessions(registry, MAX_SESSIONS, task)
        self.server: Server[str] = Server(
            registry.name,
            version=versions()["reward-kit"],
            instructions=registry.description,
            lifespan=self._lifespan,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        self._sdk_discover: Any = self.server.get_request_handler("server/discover")
        self.server.add_request_handler("server/discover", RequestParams, self._discover)
        self._registry = registry
        self._running = 0
        self._named: set[str] = set()
        self._ended: deque[str] = deque()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _server: Server[str]) -> AsyncIterator[str]:
        """Begin and end the session of a connection; over HTTP, one serves all sessions and is unused."""
        name = uuid.uuid4().hex
        self._running += 1
        try:
            yield name
        finally:
            self.sessions.reset(name)
            self._running -= 1
            if not self._running:
                self.sessions.close()

    async def _discover(self, context: Context, params: RequestParams) -> HandlerResult:
        """Answer the newest protocol's greeting, if the connection is a session."""
        if context.request is not None:
            raise MCPError(METHOD_NOT_FOUND, "this server keeps sessions, which begin with initialize")
        answer: HandlerResult = await self._sdk_discover.handler(context, params)
        return answer

    async def _list_tools(self, _context: Context, _params: PaginatedRequestParams | None) -> ListToolsResult:
        return _listed(self._registry.get_openai_tools())

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        name, arguments = params.name, params.arguments or {}
        try:
            try:
                result = await self.sessions.call(self._session(context), name, arguments)
            except TooManySessionsError:
                gc.collect()  # what the SDK leaves of ended sessions refers to itself
                result = await self.sessions.call(self._session(context), name, arguments)
        except TooManySessionsError as error:
            return _result(f"Error: {error.fault}; end one that is no longer needed", "failed")
        return _result(result.content, result.status)

    def _session(self, context: Context) -> str:
        while self._ended:
            ended = self._ended.popleft()
            self._named.discard(ended)
            self.sessions.reset(ended)
        if context.request is None:
            return str(context.lifespan_context)
        name: str | None = context.request.headers.get("mcp-session-id")
        if name is None:
            raise MCPError(INVALID_REQUEST, "each session has its own database: begin one with initialize")
        handshake = context.session.client_params
        if name not in self._named and handshake is not None:
            self._named.add(name)
            # The SDK has no public hook for the end of a session, but drops the client's handshake with it.
            weakref.finalize(handshake, self._ended.append, name).atexit = False
        return name


class RolloutMcp:
    """ASGI application: the tools of the rollout that a request's token belongs to.

    Stateless, because the token names the rollout: clients need no session, and those of every protocol
    version are served.
    """

    def __init__(self, admission: Callable[[Headers], Admission], max_body: int) -> None:
        self._admission = admission
        server: Server[Any] = Server(
            "reward-kit rollout", on_list_tools=self._list_tools, on_call_tool=self._call_tool
        )
        self._manager = StreamableHTTPSessionManager(
            server, json_response=True, stateless=True, max_request_body_size=max_body
        )
        self._app = with_whole_bodies(self._manager.handle_request, max_body)

    def lifespan(self, _app: object) -> contextlib.AbstractAsyncContextManager[None]:
        """Run the SDK's tasks."""
        return self._manager.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._admission(Headers(scope=scope))
        await self._app(scope, receive, send)

    async def _list_tools(self, context: Any, _params: object) -> ListToolsResult:
        return _listed(self._admission(context.request.headers).rollout.tools)

    async def _call_tool(self, context: Any, params: CallToolRequestParams) -> CallToolResult:
        answer = await self._admission(context.request.headers).call(params.name, params.arguments or {})
        return _result(answer["result"], answer["status"], stopped=answer["stopped"])
