"""Requests to a rollout's tools, as an ASGI application: authorization, paths, and the calls themselves."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from reward_kit.agent.base.history import parse_arguments
from reward_kit.agent.rollout.rollout import RolloutStopped, episode_of
from reward_kit.agent.servers.access import foreign_origin, is_json, received

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.types import Receive, Scope, Send

    from reward_kit.agent.rollout.rollout import Rollout

    Admitted = Callable[[str | None], "Admission | None"]

MAX_KEY = 256
"""Characters of an ``Idempotency-Key``."""
MAX_BODY = 10 * 1024 * 1024
"""Bytes of a request's body."""

_NO_MCP = "MCP needs the package mcp in the environment of reward-kit: pip install 'reward-kit[mcp]'"


class KeyReusedError(Exception):
    """An idempotency key came with another call than its first one."""


class _Keyed(NamedTuple):
    name: str
    arguments: dict[str, Any] | str
    answer: asyncio.Task[dict[str, Any]]


@dataclass(slots=True, eq=False)
class Admission:
    """A rollout that may be acted on from outside.

    Each call runs to its end in its own task, also if its client hangs up; ``Rollout`` ends it early when the
    rollout is over. ``on_stop`` is called for each answer that says so.
    """

    rollout: Rollout
    on_stop: Callable[[], None] | None = None
    _running: set[asyncio.Task[dict[str, Any]]] = field(default_factory=set)
    _keyed: dict[str, _Keyed] = field(default_factory=dict)

    async def call(
        self, name: str, arguments: dict[str, Any] | str, key: str | None = None
    ) -> dict[str, Any]:
        """Make the call, or return the answer that the call with this ``key`` had.

        The answer has ``result`` (the text for a model), ``status`` (as ``ToolResult``) and ``stopped`` (the
        stop reason, or None): set if the call was the last one, or was not made (``refused``) because it came
        after the end. Raises ``KeyReusedError`` if ``key`` belongs to another call.
        """
        known = self._keyed.get(key) if key is not None else None
        if known is not None and known[:2] != (name, arguments):
            raise KeyReusedError
        task = known.answer if known is not None else asyncio.ensure_future(self._made(name, arguments))
        if known is None:
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            if key is not None:
                self._keyed[key] = _Keyed(name, arguments, task)
        answer = await asyncio.shield(task)
        if answer["stopped"] is not None and self.on_stop is not None:
            self.on_stop()
        return answer

    async def cancel(self) -> None:
        """End the calls that are still running."""
        running = set(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def _made(self, name: str, arguments: dict[str, Any] | str) -> dict[str, Any]:
        calls = episode_of(self.rollout).tool_calls
        before = calls[-1] if calls else None
        try:
            await self.rollout.call_tool(name, arguments)
        except RolloutStopped:
            pass  # over before the call (nothing recorded), or with it (a terminal tool, another call's end)
        except asyncio.CancelledError:
            pass  # the end of the rollout or of the endpoint; the call is recorded as interrupted
        stopped = self.rollout.stop_reason
        # A call that was made is recorded last: nothing is awaited between its record and this line. A call
        # that
        # was refused was so before anything was awaited, so no other call can be recorded in between either.
        if not calls or calls[-1] is before:
            text = f"Error: not run, the conversation is over ({stopped}). Make no more calls."
            return {"result": text, "status": "refused", "stopped": stopped}
        return {"result": calls[-1].content, "status": calls[-1].status, "stopped": stopped}


class EndpointApp:
    """Answers requests with the token of a rollout that is being played; ``mcp`` is None without the SDK."""

    def __init__(self, admitted: Admitted, mcp: StreamableHTTPSessionManager | None) -> None:
        self._admitted = admitted
        self._mcp = mcp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        foreign = foreign_origin(request.headers)
        admission = self._admitted(request.headers.get("authorization"))
        if foreign is not None:
            answer = _fault(403, foreign)
        elif admission is None:
            fault = "no running rollout has this token; send 'Authorization: Bearer <token>'"
            answer = _fault(401, fault, {"WWW-Authenticate": "Bearer"})
        elif scope["path"] != "/mcp":
            answer = await _answer(request, scope["path"], admission)
        elif self._mcp is None:
            answer = _fault(501, _NO_MCP)
        else:
            whole = await received(receive, MAX_BODY)
            if whole is not None:  # the client is still there
                await self._mcp.handle_request(scope, whole, send)
            return
        await answer(scope, receive, send)


async def _answer(request: Request, path: str, admission: Admission) -> Response:
    name = path.removeprefix("/tools/") if path.startswith("/tools/") else ""
    if not name and path not in ("/tools", "/rollout"):
        return _fault(404, "there are GET /tools, POST /tools/{name}, GET /rollout and /mcp")
    expected = "POST" if name else "GET"
    if request.method != expected:
        return _fault(405, f"{path} answers {expected}", {"Allow": expected})
    if name:
        return await _call(request, name, admission)
    return _json(admission.rollout.tools if path == "/tools" else _state(admission.rollout))


def _state(rollout: Rollout) -> dict[str, Any]:
    return {
        "id": rollout.id,
        "row_id": rollout.row_id,
        "index": rollout.index,
        "seed": rollout.seed,
        "turn": rollout.turns,
        "steps": rollout.steps,
        "max_steps": rollout.max_steps,
        "messages": rollout.messages,
        "stopped": rollout.stop_reason,
    }


async def _call(request: Request, name: str, admission: Admission) -> Response:
    key = request.headers.get("idempotency-key")
    if key is not None and len(key) > MAX_KEY:
        return _fault(400, f"the Idempotency-Key is longer than {MAX_KEY} characters")
    try:
        body = await _body(request)
    except ClientDisconnect:
        return Response(status_code=400)  # nobody reads it; nothing was run
    if body is None:
        return _fault(413, f"the body is longer than {MAX_BODY} bytes")
    if body and not is_json(request.headers):
        return _fault(415, "send the arguments as JSON, with 'Content-Type: application/json'")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        return _fault(400, f"the body is not UTF-8: {error.reason} at byte {error.start}")
    if parse_arguments(text) is None:
        return _fault(400, "the body is not a JSON object with the tool's arguments")
    try:
        return _json(await admission.call(name, text, key))
    except KeyReusedError:
        return _fault(409, "this Idempotency-Key belongs to another call of the rollout")


async def _body(request: Request) -> bytes | None:
    """The request's body; None if it is too long.

    The rest of a long body is read and dropped for a while: a client that is still sending when the
    connection closes would see that in place of the answer.
    """
    body = bytearray()
    length = 0
    async for chunk in request.stream():
        length += len(chunk)
        if length <= MAX_BODY:
            body += chunk
        elif length > 10 * MAX_BODY:
            break
    return bytes(body) if length <= MAX_BODY else None


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    # Escaped to ASCII, so that text which is not valid Unicode can be sent as well.
    return Response(json.dumps(body, default=str), status, headers, media_type="application/json")


def _fault(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    return _json({"detail": detail}, status, headers)


def mcp_sessions(admitted: Admitted) -> StreamableHTTPSessionManager | None:
    """The MCP side of the endpoint: the tools of the rollout that a request's token belongs to.

    Stateless, because the token names the rollout: clients need no session, and those of every protocol
    version are served. None if the package ``mcp`` is not installed.
    """
    try:
        from mcp.server.lowlevel import Server
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from reward_kit.agent.servers.mcp_server import mcp_result, mcp_tools
    except ImportError:
        return None

    def admission(context: Any) -> Admission:
        found = admitted(context.request.headers.get("authorization"))
        if found is None:
            raise LookupError("the rollout is over")  # it ended after the application's check
        return found

    async def list_tools(context: Any, _params: Any) -> Any:
        return mcp_tools(admission(context).rollout.tools)

    async def call_tool(context: Any, params: Any) -> Any:
        answer = await admission(context).call(params.name, params.arguments or {})
        return mcp_result(answer["result"], answer["status"], stopped=answer["stopped"])

    server = Server("reward-kit rollout", on_list_tools=list_tools, on_call_tool=call_tool)
    return StreamableHTTPSessionManager(
        server, json_response=True, stateless=True, max_request_body_size=MAX_BODY
    )
