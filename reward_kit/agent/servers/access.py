"""Access control of local servers: by token, or to this machine but not to web pages."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
from collections import deque
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_IN_PROCESS = frozenset({"testclient"})
"""The client address in requests of Starlette's test client, which use no network."""


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
            status, detail = refusal
            headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
            await JSONResponse({"detail": detail}, status, headers)(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason, or None if the request may pass."""
        if scope["path"] in self._open:
            return None
        headers = Headers(scope=scope)
        token = token_of(self._variable)
        if token is not None:
            given = headers.get("authorization", "").encode("latin-1")
            if hmac.compare_digest(given, f"Bearer {token}".encode()):
                return None
            return 401, f"send the bearer token of {self._variable}"
        client = scope.get("client")
        if client is None or client[0] in _IN_PROCESS:
            return None
        if not is_loopback(client[0]):
            return 403, f"only this machine may call; set {self._variable} on the server to let others in"
        foreign = foreign_origin(headers)
        return None if foreign is None else (403, foreign)


def foreign_origin(headers: Headers) -> str | None:
    """The reason to refuse a request that a page of another site may have caused; None for any other request.

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


def is_json(headers: Headers) -> bool:
    """Return whether a body is declared as JSON, which pages of other sites cannot send unasked."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


async def received(receive: Receive, most: int) -> Receive | None:
    """A ``receive`` that has the whole body of the request already; None if the client hung up meanwhile.

    A body of more than ``most`` bytes is received on demand from there.
    """
    messages: deque[Message] = deque()
    size, more = 0, True
    while more and size <= most:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        messages.append(message)
        size += len(message.get("body", b""))
        more = message.get("more_body", False)

    async def replay() -> Message:
        return messages.popleft() if messages else await receive()

    return replay


def token_of(variable: str) -> str | None:
    """The token in an environment variable, or None; raises ``RewardKitError`` for a malformed one."""
    token = os.environ.get(variable, "").strip()
    if token and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise RewardKitError(f"{variable} has characters that no token has", remedy="Use visible ASCII.")
    return token or None


def is_loopback(host: str) -> bool:
    """Return whether an address belongs to this machine alone."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
