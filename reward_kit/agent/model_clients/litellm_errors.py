"""From the errors of LiteLLM to ``ModelError``: what a person reads, and whether asking again may help."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from reward_kit.agent.cut_text import cut
from reward_kit.agent.model_clients.connection_faults import hung_up, reason_of
from reward_kit.agent.model_clients.wordings import named_wait, quota_used_up, refuses_input
from reward_kit.agent.providers.headers import retry_after
from reward_kit.agent.redaction import redact, without_password
from reward_kit.errors import ModelError, ModelInputError, ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Collection

RETRYABLE_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
LONGEST_TEXT = 300

_PREFIX = re.compile(r"^(?:(?:litellm\.)?\w*(?:Error|Timeout|Exception)\b(?: Error)?(?::| -)\s*)+")


def model_error(
    error: BaseException,
    *,
    model: str,
    provider: str,
    address: str | None,
    timeout: float,
    secrets: Collection[str] = (),
) -> ModelError:
    """What ``error``, raised while ``model`` of ``provider`` (at ``address``) was asked, means for a person.

    ``timeout`` is the limit in seconds that the attempt had; ``secrets`` are kept out of the text.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}
    raw = f"{getattr(error, 'code', None) or ''} {error} {error.__context__ or ''}"
    status = _status(error, kinds)
    text = _short(redact(str(error), secrets))  # in this order: half of a key would not be recognised
    address = without_password(address) if address else None
    place = f"model {model} ({provider})"
    if "ContextWindowExceededError" in kinds or "ContentPolicyViolationError" in kinds or status == 413:
        return ModelInputError(f"refuses the conversation: {text}", place=place, status=status)
    if refuses_input(status, raw):
        return ModelInputError(f"refuses the conversation: {text}", place=place, status=status)
    raw += f" {getattr(error, 'body', None) or ''}"  # for what it says of limits beside its message
    setup = _setup_fault(status, raw, provider)
    if setup is not None:
        fault, remedy = setup
        return ModelSetupError(f"{fault}: {text}", place=place, remedy=remedy, status=status)
    if status is None and kinds & {"Timeout", "APITimeoutError", "TimeoutError"}:
        return ModelError(f"no answer within {timeout:g} s", place=place, retryable=True, no_answer="time")
    return _other_fault(error, kinds, status, text, place, address, raw)


def _setup_fault(status: int | None, raw: str, provider: str) -> tuple[str, str] | None:
    """Fault and remedy where every further call would be refused as well."""
    variable = f"{provider.upper()}_API_KEY"
    given = os.environ.get(variable)
    key = f"the key in {variable}" if given else f"the provider's key ({variable} is not set)"
    if status == 401:
        return "the provider refuses the key (HTTP 401)", f"Check {key}."
    if status == 403:
        return "the provider denies access (HTTP 403)", f"Check what {key} may use."
    if status == 404:
        return "the provider does not know it (HTTP 404)", "Check the model's name and the server's address."
    if status == 402 or (status == 429 and quota_used_up(raw)):
        return f"the provider's quota is used up (HTTP {status})", "Check the account's plan and billing."
    return None


def _other_fault(
    error: BaseException,
    kinds: set[str],
    status: int | None,
    text: str,
    place: str,
    address: str | None,
    raw: str,
) -> ModelError:
    if "connection error" in text.lower() or "Connect" in str(error.__context__):
        return _no_connection(error, place, address)
    if status is None:
        fault = f"the answer cannot be read: {text or type(error).__name__}"
        return ModelError(fault, place=place, retryable="UnsupportedParamsError" not in kinds)
    retryable = status in RETRYABLE_STATUS
    fault = f"HTTP {status}: {text}" if text else f"HTTP {status}"
    wait = retry_after(headers_of(error)) if retryable else None
    if wait is None and status in (429, 503):
        wait = named_wait(raw)
    return ModelError(fault, place=place, status=status, retryable=retryable, retry_after=wait)


def _no_connection(error: BaseException, place: str, address: str | None) -> ModelError:
    where = address or "the provider"
    if hung_up(error):
        fault = f"{where} closed the connection without a whole answer"
        remedy = "Its log may say why."
        if address and address.startswith("http://"):
            remedy = f"{remedy} If it speaks TLS, write https:// in its address."
        return ModelError(fault, place=place, remedy=remedy, retryable=True, no_answer="broken off")
    reason = reason_of(error)
    fault = f"cannot connect to {where}" + (f": {reason.text}" if reason else "")
    if reason is not None and reason.lasting:
        return ModelSetupError(fault, place=place, remedy=reason.remedy, no_answer="connection")
    remedy = f"Check that a server is running at {address}." if address else "Check the network."
    return ModelError(
        fault,
        place=place,
        remedy=(reason and reason.remedy) or remedy,
        retryable=True,
        no_answer="connection",
    )


def _status(error: BaseException, kinds: set[str]) -> int | None:
    """The HTTP status that really came: LiteLLM makes one up for broken answers and connections, and for
    answers that hold an error without a number.
    """
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        return None
    made_up = kinds & {"InternalServerError", "APIConnectionError", "Timeout"} or (
        status == 422 and "BadRequestError" in kinds
    )
    return None if made_up and not headers_of(error) else status


def headers_of(error: BaseException) -> Any:
    """The headers of the answer that an error stands for; empty where there are none."""
    headers = getattr(error, "litellm_response_headers", None)
    return headers or getattr(getattr(error, "response", None), "headers", None) or {}


def _short(text: str) -> str:
    text = text.partition("Traceback (most recent call last)")[0]  # what LiteLLM adds of its own
    return cut(_PREFIX.sub("", " ".join(text.split())), LONGEST_TEXT)
