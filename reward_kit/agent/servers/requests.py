"""Requests to the servers of this package: who may send them, and their bodies and answers, which are JSON.

Access is by token, or for this machine but not for web pages.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import os
import re
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response

from reward_kit.agent.base.network import LOOPBACK
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

M = TypeVar("M", bound=BaseModel)
MAX_BODY = 1024 * 1024
"""Bytes of a request's body."""
_IN_PROCESS = frozenset({"testclient"})
"""The client address in requests of Starlette's test client, which use no network."""
ASK_FOR_TOKEN = {"WWW-Authenticate": "Bearer"}
"""Headers of a 401."""


class LocalOrTrusted:
    """ASGI middleware that answers requests with the token of the environment variable ``variable``.

    If the variable is not set, only this machine is answered, and no page that a browser on it shows: a
    server on another address without a token would let everybody in. A proxy on this machine counts as this
    machine. ``open_paths`` are answered to everybody.
    """

    def __init__(self, app: ASGIApp, *, variable: str, open_paths: Collection[str] = ()) -> None:
        self._app = app
        self._variable = variable
        self._open = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await refusal(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        if scope["path"] in self._open:
            return None
        headers = Headers(scope=scope)
        if (token := token_of(self._variable)) is not None:
            given = headers.get("authorization", "").encode("latin-1")
            if hmac.compare_digest(given, f"Bearer {token}".encode()):
                return None
            return fault(401, f"send the bearer token of {self._variable}", ASK_FOR_TOKEN)
        client = scope.get("client")
        if client is None or client[0] in _IN_PROCESS:
            return None
        refused = foreign_origin(headers)
        if not is_loopback(client[0]):
            refused = f"only this machine may call; set {self._variable} on the server to let others in"
        return None if refused is None else fault(403, refused)


def foreign_origin(headers: Headers) -> str | None:
    """Return why to refuse a request that a page of another site may have caused; else None.

    Such pages reach this machine by a name that they own (DNS rebinding) or by requests that a browser sends
    without asking first.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    try:
        name = urlsplit(f"//{host}").hostname
        site = None if origin is None else urlsplit(origin).netloc
    except ValueError:
        return "the Host or Origin header is not an address"
    if name is None or not is_loopback(name):
        return f"the Host header names {name or 'nothing'}; call this server as 127.0.0.1 or localhost"
    if site is not None and site != host:
        return f"a page of {origin} may not call this server"
    return None


def token_of(variable: str) -> str | None:
    """Return the token in an environment variable, if set; raises ``RewardKitError`` if malformed."""
    token = os.environ.get(variable, "").strip()
    if token and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise RewardKitError(f"{variable} has characters that no token has", remedy="Use visible ASCII.")
    return token or None


def check_guarded(variable: str, host: str) -> None:
    """Raise ``RewardKitError`` if a server on ``host`` would accept clients without a token."""
    if token_of(variable) is None and not is_loopback(host):
        secret = f"Set {variable} to a secret that clients send as a bearer token"
        fault = f"anybody who reaches {host} could call the tools"
        raise RewardKitError(fault, place="--host", remedy=f"{secret}, or listen on {LOOPBACK}.")


def is_loopback(host: str) -> bool:
    """Return True if an address belongs to this machine alone."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


# -- bodies


def json_answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return ``body`` as a JSON response, in ASCII: text of tools may not be valid Unicode."""
    return Response(json.dumps(body, default=str), status, headers, media_type="application/json")


def fault(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response for a request that was not carried out."""
    return json_answer({"detail": detail}, status, headers)


async def client_gone(_request: Request, _error: Exception) -> Response:
    """Handle ``ClientDisconnect``: nothing ran, and no client reads the answer."""
    return Response(status_code=400)


async def json_text(request: Request, most: int) -> bytes:
    """Return the body of a request, which must be declared as JSON unless it is empty.

    Raises ``HTTPException``: 413 if it is longer than ``most`` bytes, 415 if it is not JSON. Up to ten times
    ``most`` bytes are read all the same, since a client that is still sending misses the answer otherwise.
    """
    body = bytearray()
    length = 0
    async for chunk in request.stream():
        length += len(chunk)
        if length <= most:
            body += chunk
        elif length > 10 * most:
            break
    if length > most:
        raise HTTPException(413, f"the body is longer than {most} bytes")
    if body and not is_json(request.headers):
        raise HTTPException(415, "send the arguments as JSON, with 'Content-Type: application/json'")
    return bytes(body)


def is_json(headers: Headers) -> bool:
    """Return True if a body is declared as JSON, which pages of other sites may not send."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return re.fullmatch(r"application/(json|.*\+json)", kind) is not None


def with_whole_bodies(app: ASGIApp, most: int) -> ASGIApp:
    """Return ``app``, called once a body has arrived; bytes beyond ``most`` are received on demand.

    The MCP SDK logs a traceback for a client that hangs up before.
    """

    async def buffered(scope: Scope, receive: Receive, send: Send) -> None:
        messages: deque[Message] = deque()
        size, more = 0, scope["type"] == "http"
        while more and size <= most:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            messages.append(message)
            size += len(message.get("body", b""))
            more = message.get("more_body", False)

        async def replay() -> Message:
            return messages.popleft() if messages else await receive()

        await app(scope, replay, send)

    return buffered


async def body_of(request: Request, model: type[M], most: int = MAX_BODY) -> M:
    """Return the body of a request, of at most ``most`` bytes; raises ``HTTPException``."""
    try:
        return model.model_validate_json(await json_text(request, most) or b"{}")
    except ValidationError as error:
        raise HTTPException(422, faults(error)) from None


def faults(error: ValidationError) -> str:
    """Return the faults of a body in one line."""
    found = [(".".join(map(str, one["loc"])), one["msg"]) for one in error.errors()]
    return "; ".join(f"{place}: {text}" if place else text for place, text in found)


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a body that ``body_of`` reads."""
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


async def arguments_of(request: Request, most: int = MAX_BODY) -> str:
    """Return the arguments of a call as the model wrote them; raises ``HTTPException``."""
    try:
        return (await json_text(request, most)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise HTTPException(400, f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
