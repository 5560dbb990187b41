"""Errors of an exchange with an endpoint, in the form that ``models.errors`` reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

if TYPE_CHECKING:
    from collections.abc import Mapping


class UnreachableError(Exception):
    """No connection, or one that broke off before the answer was whole."""

    def __init__(self) -> None:
        super().__init__("Connection error.")


class HTTPStatusError(Exception):
    """An answer with a status that is no success; ``body`` is its text."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        fault = _stated(body)
        self.status_code = status
        self.litellm_response_headers = headers
        self.code = fault.get("code")
        self.body = body.decode(errors="replace")
        super().__init__(fault.get("message") or self.body)


def _stated(body: bytes) -> dict[str, Any]:
    """The error object that OpenAI's protocol sends; Google puts it into a list."""
    try:
        answer = json.loads(body)
        error = (answer[0] if isinstance(answer, list) else answer)["error"]
    except (ValueError, LookupError, TypeError):
        return {}
    if isinstance(error, dict):
        return error
    return {"message": str(error)}


class RedirectError(Exception):
    """An answer that sends the conversation and the key elsewhere, which is not followed."""

    def __init__(self, status: int, url: str, location: str) -> None:
        target = urljoin(url, location).partition("?")[0]
        super().__init__(f"HTTP {status}: it redirects to {target}, which is not followed")


class StatedError(Exception):
    """An answer with a status of success that holds an error, as aggregators of providers send them.

    ``status_code`` is the number that it names, if it does.
    """

    def __init__(self, error: Any) -> None:
        stated = error if isinstance(error, dict) else {"message": error}
        code = stated.get("code")
        self.code = code
        self.status_code = code if isinstance(code, int) and not isinstance(code, bool) else None
        super().__init__(str(stated.get("message") or "it says no more than that there was an error"))


def stated_error(answer: Any) -> StatedError | None:
    """The error in an answer's JSON, or in the only choice that it holds."""
    if not isinstance(answer, dict):
        return None
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    for holder in (answer, choice):
        error = holder.get("error") if isinstance(holder, dict) else None
        if isinstance(error, dict):
            error = error if error.get("message") or error.get("code") else None
        if error:
            return StatedError(error)
    return None
