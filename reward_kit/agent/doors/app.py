"""The door over HTTP: who is let in, and what the paths mean.

Written against ASGI with Starlette's requests, without a router: there are three paths.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from reward_kit.agent.doors.admission import MAX_KEY, KeyReusedError
from reward_kit.agent.history import parse_arguments

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from reward_kit.agent.doors.admission import Admission

    Handler = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 10 * 1024 * 1024
"""Bytes of a request's body."""

_TOOL = "/tools/"
_NO_MCP = "MCP needs the package mcp in the environment of reward-kit: pip install 'reward-kit[mcp]'"


class DoorApp:
    """Answers requests that carry a token of a rollout that is being played."""

    def __init__(self, admitted: Callable[[str | None], Admission | None], mcp: Handler | None) -> None:
        self._admitted = admitted
        self._mcp = mcp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        admission = self._admitted(request.headers.get("authorization"))
        path = scope["path"]
        if admission is None:
            answer = _fault(
                401,
                "no rollout that is being played has this token; send 'Authorization: Bearer <token>'",
                {"WWW-Authenticate": "Bearer"},
            )
        elif path == "/mcp" and self._mcp is not None:
            await self._mcp(scope, receive, send)
            return
        elif path == "/mcp":
            answer = _fault(501, _NO_MCP)
        else:
            answer = await _answer(request, path, admission)
        await answer(scope, receive, send)


async def _answer(request: Request, path: str, admission: Admission) -> Response:
    is_call = path.startswith(_TOOL) and len(path) > len(_TOOL)
    if not is_call and path not in ("/tools", "/rollout"):
        return _fault(404, "there are GET /tools, POST /tools/{name}, GET /rollout and /mcp")
    expected = "POST" if is_call else "GET"
    if request.method != expected:
        return _fault(405, f"{path} answers {expected}", {"Allow": expected})
    if path == "/tools":
        return _json(admission.rollout.tools)
    if path == "/rollout":
        return _json(_rollout(admission))
    return await _call(request, path.removeprefix(_TOOL), admission)


def _rollout(admission: Admission) -> dict[str, Any]:
    rollout = admission.rollout
    return {
        "id": rollout.id,
        "row_id": rollout.row.id,
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
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        return _fault(400, f"the body is not UTF-8: {error.reason} at byte {error.start}")
    if parse_arguments(text) is None:
        return _fault(400, f"the body is not a JSON object with the tool's arguments{_why(text)}")
    try:
        answer = await admission.call(name, text, key=key)
    except KeyReusedError:
        return _fault(409, "this Idempotency-Key belongs to another call of the rollout")
    return _json(answer.to_json())


async def _body(request: Request) -> bytes | None:
    """The request's body; None where it is too long, then read on for a while and dropped.

    A client that is still sending when the connection closes would see that instead of the answer.
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


def _why(text: str) -> str:
    try:
        value = json.loads(text)
    except RecursionError:
        return ": it is nested too deeply"
    except ValueError as error:
        return f": {error}"
    return "" if isinstance(value, dict) else f" but {type(value).__name__}"


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    # Escaped to ASCII, so that text which is not valid Unicode can be sent as well.
    return Response(json.dumps(body, default=str), status, headers, media_type="application/json")


def _fault(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    return _json({"detail": detail}, status, headers)
