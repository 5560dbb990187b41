"""From the errors of LiteLLM to ``ModelError``: what a person reads, and whether asking again may help."""

from __future__ import annotations

import email.utils
import os
import re
import time
from typing import Any

from reward_kit.errors import ModelError, ModelInputError, ModelSetupError

RETRYABLE_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
LONGEST_TEXT = 300

_PREFIX = re.compile(r"^(?:(?:litellm\.)?\w*(?:Error|Timeout|Exception)\b(?: Error)?(?::| -)\s*)+")
_SECRET_NAME = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)(?:_|$)", re.IGNORECASE)
_SECRET_LOOK = re.compile(r"\b(?:sk|pk|rk|gsk|xai|fw|hf)[-_][\w\-.*]{6,}|\bAIza[\w-]{20,}|(?<=Bearer )\S+")
_QUOTA = re.compile(
    r"insufficient_quota|exceeded your current quota|credit balance is too low", re.IGNORECASE
)
_REFUSED_INPUT = re.compile(
    r"context_length_exceeded|maximum context length|context window|prompt is too long|"
    r"content_policy|content management policy|content_filter|safety system",
    re.IGNORECASE,
)


def model_error(
    error: BaseException, *, model: str, provider: str, address: str | None, timeout: float
) -> ModelError:
    """What ``error``, raised while ``model`` of ``provider`` (at ``address``) was asked, means for a person.

    ``timeout`` is the limit in seconds that the attempt had.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}
    raw = f"{getattr(error, 'code', None) or ''} {error} {error.__context__ or ''}"
    status = _status(error, kinds)
    text = redact(_short(str(error)))
    place = f"model {model} ({provider})"
    if "ContextWindowExceededError" in kinds or "ContentPolicyViolationError" in kinds or status == 413:
        return ModelInputError(f"refuses the conversation: {text}", place=place, status=status)
    if status in (400, 422) and _REFUSED_INPUT.search(raw):
        return ModelInputError(f"refuses the conversation: {text}", place=place, status=status)
    setup = _setup_fault(status, raw, provider)
    if setup is not None:
        fault, remedy = setup
        return ModelSetupError(f"{fault}: {text}", place=place, remedy=remedy, status=status)
    if status is None and kinds & {"Timeout", "APITimeoutError", "TimeoutError"}:
        return ModelError(f"no answer within {timeout:g} s", place=place, retryable=True)
    return _other_fault(error, kinds, status, text, place, address)


def _setup_fault(status: int | None, raw: str, provider: str) -> tuple[str, str] | None:
    """Fault and remedy where every further call would be refused as well."""
    variable = f"{provider.upper()}_API_KEY"
    key = f"the key in {variable}" if variable in os.environ else "the provider's key"
    if status == 401:
        return "the provider refuses the key (HTTP 401)", f"Check {key}."
    if status == 403:
        return "the provider denies access (HTTP 403)", f"Check what {key} may use."
    if status == 404:
        return "the provider does not know it (HTTP 404)", "Check the model's name and the server's address."
    if status == 402 or (status == 429 and _QUOTA.search(raw)):
        return f"the provider's quota is used up (HTTP {status})", "Check the account's plan and billing."
    return None


def _other_fault(
    error: BaseException, kinds: set[str], status: int | None, text: str, place: str, address: str | None
) -> ModelError:
    if "connection error" in text.lower() or "Connect" in str(error.__context__):
        where = address or "the provider"
        remedy = f"Check that a server is running at {address}." if address else "Check the network."
        return ModelError(f"cannot connect to {where}", place=place, remedy=remedy, retryable=True)
    if status is None:
        fault = f"the answer cannot be read: {text or type(error).__name__}"
        return ModelError(fault, place=place, retryable="UnsupportedParamsError" not in kinds)
    retryable = status in RETRYABLE_STATUS
    fault = f"HTTP {status}: {text}" if text else f"HTTP {status}"
    retry_after = _retry_after(error) if retryable else None
    return ModelError(fault, place=place, status=status, retryable=retryable, retry_after=retry_after)


def redact(text: str) -> str:
    """``text`` without anything that is, or looks like, a key from the environment."""
    for name, value in os.environ.items():
        if len(value) >= 8 and _SECRET_NAME.search(name):
            text = text.replace(value, "[hidden]")
    return _SECRET_LOOK.sub("[hidden]", text)


def _status(error: BaseException, kinds: set[str]) -> int | None:
    """The HTTP status that really came: LiteLLM makes one up for broken answers and connections."""
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        return None
    made_up = kinds & {"InternalServerError", "APIConnectionError", "Timeout"}
    return None if made_up and not _headers(error) else status


def _headers(error: BaseException) -> Any:
    headers = getattr(error, "litellm_response_headers", None)
    return headers or getattr(getattr(error, "response", None), "headers", None) or {}


def _retry_after(error: BaseException) -> float | None:
    """Seconds that the provider asks to wait, from ``Retry-After`` as a number or an HTTP date."""
    value = _headers(error).get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _short(text: str) -> str:
    text = text.partition("Traceback (most recent call last)")[0]  # what LiteLLM adds of its own
    text = _PREFIX.sub("", " ".join(text.split()))
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
