"""JSON bodies of requests and answers, as all servers of this package read and write them."""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.datastructures import Headers
    from starlette.requests import Request
    from starlette.types import Message, Receive


def json_answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return ``body`` as a JSON response, in ASCII: text of tools may not be valid Unicode."""
    return Response(json.dumps(body, default=str), status, headers, media_type="application/json")


def fault(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response for a request that was not carried out."""
    return json_answer({"detail": detail}, status, headers)


async def client_gone(_request: Request, _error: Exception) -> Response:
    """Handle ``ClientDisconnect``: nothing ran, and nobody reads the answer."""
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
    """Return whether a body is declared as JSON, which pages of other sites cannot send unasked."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


async def received(receive: Receive, most: int) -> Receive | None:
    """Return a ``receive`` that has the whole body already, or None if the client hung up in it.

    The MCP SDK logs a traceback for such a client. Bytes beyond ``most`` are received on demand.
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
