"""What goes wrong between here and an endpoint, in the words that ``llm_errors`` understands."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class UnreachableError(Exception):
    """No connection, or one that broke off before the answer was whole."""

    def __init__(self) -> None:
        super().__init__("Connection error.")


class HTTPStatusError(Exception):
    """An answer with a status that is no success."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        fault = _stated(body)
        self.status_code = status
        self.litellm_response_headers = headers
        self.code = fault.get("code")
        super().__init__(fault.get("message") or body.decode(errors="replace"))


def _stated(body: bytes) -> dict[str, Any]:
    """The error object that OpenAI's protocol sends."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    if isinstance(error, dict):
        return error
    return {"message": str(error)}
