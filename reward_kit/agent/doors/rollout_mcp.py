"""The door for MCP clients (streamable HTTP); the only module of the door that imports ``mcp``.

Stateless: the bearer token of a request says whose rollout it is, so that clients need no session and those
of every protocol version are served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from reward_kit.agent.doors.app import MAX_BODY
from reward_kit.agent.tools.mcp_format import mcp_result, mcp_tools

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.context import ServerRequestContext
    from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams

    from reward_kit.agent.doors.admission import Admission


def rollout_mcp(admitted: Callable[[str | None], Admission | None]) -> StreamableHTTPSessionManager:
    """An MCP server whose tools are those of the rollout that a request's token belongs to.

    ``manager.run()`` must be entered before ``manager.handle_request`` (ASGI) is called, with requests that
    ``admitted`` has let in.
    """

    def admission(context: ServerRequestContext[Any]) -> Admission:
        found = admitted(context.request.headers.get("authorization")) if context.request else None
        if found is None:
            raise LookupError("the rollout is over")  # between the door's check and this one
        return found

    async def list_tools(
        context: ServerRequestContext[Any], _params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return mcp_tools(admission(context).rollout.tools)

    async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        answer = await admission(context).call(params.name, params.arguments or {})
        return mcp_result(answer.result, answer.status, stopped=answer.stopped)

    server = Server("reward-kit rollout", on_list_tools=list_tools, on_call_tool=call_tool)
    return StreamableHTTPSessionManager(
        server, json_response=True, stateless=True, max_request_body_size=MAX_BODY
    )
