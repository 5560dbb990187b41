"""Who may call the tools over HTTP: clients on this machine, and those that send the token."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
from typing import TYPE_CHECKING

from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Receive, Scope, Send

_IN_PROCESS = frozenset({"testclient"})
"""What Starlette's test client, which has no address, calls itself."""


class LocalOrTrusted:
    """ASGI middleware: lets requests with the token of the environment variable through.

    Where it is not set, requests from this machine pass and all others are refused (403): who starts a server
    on another address without a token would let everybody in. A proxy on this machine counts as this machine.
    ``open_paths`` are answered to anybody.
    """

    def __init__(self, app: ASGIApp, *, variable: str, open_paths: Collection[str] = ()) -> None:
        self._app = app
        self._variable = variable
        self._open = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        from starlette.responses import JSONResponse

        status, detail = refusal
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
        await JSONResponse({"detail": detail}, status, headers)(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason, or None where the request may pass."""
        if scope["path"] in self._open:
            return None
        token = token_of(self._variable)
        if token is not None:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if hmac.compare_digest(given, f"Bearer {token}".encode()):
                return None
            return 401, f"send the bearer token of {self._variable}"
        client = scope.get("client")
        if client is None or client[0] in _IN_PROCESS or is_loopback(client[0]):
            return None
        return 403, f"only this machine may call; set {self._variable} on the server to let others in"


def token_of(variable: str) -> str | None:
    """The token that the environment variable holds; raises ``RewardKitError`` where it is none."""
    token = os.environ.get(variable, "").strip()
    if token and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise RewardKitError(f"{variable} has characters that no token has", remedy="Use visible ASCII.")
    return token or None


def is_loopback(host: str) -> bool:
    """Whether an address is one of this machine alone."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
