"""Errors of model calls as ``ModelError``: their words for a person, and if another attempt may help."""

from __future__ import annotations

import re
import socket
import ssl
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.network import CONNECTION_LOST, RETRYABLE_STATUS, chain, retry_after, seconds_until
from reward_kit.agent.base.redaction import public_address, redact, without_password
from reward_kit.agent.base.text import cut
from reward_kit.agent.models.providers import key_variables, proxy_of
from reward_kit.errors import ModelError, ModelInputError, ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Collection

    from reward_kit.agent.models.calls import Request

LONGEST_TEXT = 300

_SEED = re.compile(r"\bseed\b", re.IGNORECASE)
_NO_SEED = "Send no seed: --model-arg seed=null, or --user-model-arg seed=null for the simulated user."
_PREFIX = re.compile(r"^(?:(?:litellm\.)?\w*(?:Error|Timeout|Exception)\b(?: Error)?(?::| -)\s*)+")


def model_error(
    error: BaseException, request: Request, *, timeout: float, secrets: Collection[str] = ()
) -> ModelError:
    """The ``ModelError`` for an ``error`` of a ``request``.

    ``timeout`` is the limit in seconds that the attempt had; ``secrets`` are kept out of the text.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}
    behind = {type(cause).__name__: cause for cause in chain(error)}
    unread = None if "HTTPStatusError" in behind else behind.get("JSONDecodeError")
    raw = f"{getattr(error, 'code', None) or ''} {error} {error.__context__ or ''}"
    status = _status(error, kinds) if unread is None else None
    # redacted before it is cut: half of a key would not be recognised; LiteLLM adds tracebacks
    said = redact(str(getattr(unread, "doc", error)), secrets)
    said = said.partition("Traceback (most recent call last)")[0]
    text = cut(_PREFIX.sub("", " ".join(said.split())), LONGEST_TEXT)
    place = f"model {request.model} ({request.provider})"
    setting = _OF_A_SETTING.search(raw) if status in (400, 422) else None
    if setting is not None and 2 * int(setting[1] or 1) >= int(setting[2] or 1):  # most of the context
        remedy = _NO_SEED if _SEED.search(raw) else "Check --model-arg and the model's documentation."
        return ModelSetupError(f"refuses a setting: {text}", place=place, remedy=remedy, status=status)
    refused = kinds & {"ContextWindowExceededError", "ContentPolicyViolationError"} or status == 413
    if refused or refuses_input(status, raw):
        return ModelInputError(f"refuses the conversation: {text}", place=place, status=status)
    raw += f" {getattr(error, 'body', None) or ''}"  # for what it says of limits beside its message
    called, *kind = request.called or [request.address or ""]
    proxy = proxy_of(called)
    url = public_address(called) + (f", through {proxy}" if proxy else "")
    answers: Any = (getattr(cause, "response", None) for cause in behind.values())
    moved = [one for one in answers if getattr(one, "status_code", 0) in range(300, 400)]
    if "RedirectError" in kinds or moved:
        if moved:  # LiteLLM's clients say something else of each
            found = next((one.headers["location"] for one in moved if "location" in one.headers), "elsewhere")
            target = cut(redact(found.partition("?")[0], secrets), LONGEST_TEXT)
            text = f"HTTP {moved[0].status_code}: it redirects to {target}, which is not followed"
        remedy = "Name the final address with --model-arg api_base=... if you trust it."
        return ModelSetupError(text, place=place, remedy=remedy)
    lasting = _LASTING.get(402 if status in (400, 403, 429) and quota_used_up(raw) else status or 0)
    if lasting is not None:
        fault, remedy = lasting
        names, is_set = key_variables(request.provider)
        key = f"the key in {', '.join(names)}" if is_set else f"the provider's key ({names[0]} is not set)"
        at = f" at {url}" if status in (403, 404) and url else ""
        fault = f"{fault} (HTTP {status}{at}): {text}"
        return ModelSetupError(fault, place=place, remedy=remedy.format(key=key), status=status)
    if status is None and kinds & {"Timeout", "APITimeoutError", "TimeoutError"}:
        return ModelError(f"no answer within {timeout:g} s", place=place, retryable=True, no_answer="time")
    if unread is not None:
        fault = f"the answer is not JSON ({', '.join([*kind, f'from {url}'])}): {text or 'it is empty'}"
        return ModelError(fault, place=place, retryable=True)
    if garbled := next(filter(None, map(behind.get, _GARBLED)), None):
        said = cut(redact(" ".join(str(getattr(garbled, "message", garbled)).split()), secrets), LONGEST_TEXT)
        return ModelError(f"{url} sent an answer that is no valid HTTP: {said}", place=place, retryable=True)
    if "connection error" in text.lower() or "Connect" in str(error.__context__):
        address = without_password(request.address or public_address(called))
        return _no_connection(error, place, address, proxy)
    if status is None:
        about = f" ({', '.join([*kind, f'from {url}'])})" if kind else ""
        fault = f"the answer cannot be read{about}: {text or type(error).__name__}"
        return ModelError(fault, place=place, retryable="UnsupportedParamsError" not in kinds)
    retryable = status in RETRYABLE_STATUS
    fault = f"HTTP {status}: {text}" if text else f"HTTP {status}"
    wait = retry_after(headers_of(error)) if retryable else None
    if wait is None and status in (429, 503):
        wait = named_wait(raw)
    return ModelError(fault, place=place, status=status, retryable=retryable, retry_after=wait)


def cannot_be_read(fault: ModelError) -> bool:
    """True if an answer came that is no chat completion, which may be the set-up's fault."""
    return type(fault) is ModelError and fault.status is None and fault.no_answer is None


def first_fault(fault: ModelError) -> ModelError:
    """The fault of a run's first call, which the set-up has caused if it cannot pass."""
    if type(fault) is not ModelError or fault.retryable:
        return fault
    subject = "the server's address" if fault.status is None else "--model-arg and the model's documentation"
    remedy = f"No call has been answered yet: check {subject}."
    if _SEED.search(fault.fault) and fault.status is not None:
        remedy = _NO_SEED
    first = ModelSetupError(fault.fault, place=fault.place, remedy=remedy, status=fault.status)
    first.__cause__ = fault
    return first


_OF_A_SETTING = re.compile(
    r"max_\w*tokens\W.{0,40}too large\D*(\d+)\D+(\d+)|unrecognized request argument", re.IGNORECASE
)
_LASTING = {
    401: ("the provider refuses the key", "Check {key}."),
    402: ("the provider's quota is used up", "Check the account's plan and billing."),
    403: ("the provider denies access", "Check what {key} may use."),
    404: ("the provider does not know it", "Check the model's name and the server's address."),
}
"""Fault and remedy by the status of errors that every further call would meet as well."""


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
    """The headers of the answer behind an error; empty without an answer."""
    headers = getattr(error, "litellm_response_headers", None)
    return headers or getattr(getattr(error, "response", None), "headers", None) or {}


# -- words of providers

_POLICY = r"content_policy|content management policy|content_filter|safety system|requires moderation"
_TOO_LONG = (
    r"context_length_exceeded|maximum context length|context window",  # OpenAI, vLLM, llama-cpp-python
    r"prompt is too long|prompt exceeds max length",  # Anthropic, Fireworks; Zhipu
    r"exceeds? (?:the )?context limit|maximum context limit",  # Anthropic, with max_tokens
    r"input tokens exceed the configured limit",  # OpenAI
    r"exceeds the available context size|exceed_context_size_error",  # llama.cpp
    r"longer than the model's context length",  # SGLang
    r"exceeds the (?:model's )?(?:maximum )?context length",  # SGLang, Ollama
    r"longer than the maximum model length|too long to fit into the model",  # vLLM
    r"greater than the context length",  # LM Studio
    r"`inputs` tokens \+ `max_new_tokens` must be|`inputs` must have less than \d+ tokens",  # TGI, Together
    r"too large for model with \d+ maximum context",  # Mistral
    r"too many tokens: |too many input tokens",  # Cohere, Bedrock
    r"input is too long for requested model|prompt tokens \(\d+\) exceed model maximum",  # Bedrock
    r"token count.{0,40}exceeds the (?:maximum number of tokens|limit of \d+)",  # Gemini, Copilot
    r"maximum prompt length is \d+|exceeded model token limit",  # xAI, Kimi
    r"current length is \d+ while limit is \d+",  # Cerebras
    r"range of input length should be",  # DashScope
    r"please reduce the length of the messages",  # Groq
)
_REFUSED_INPUT = re.compile("|".join((*_TOO_LONG, _POLICY)), re.IGNORECASE)
_NEVER_FITS = re.compile(r"request too large for", re.IGNORECASE)
"""OpenAI's words, with the status of a rate limit, for a request with more tokens than the limit."""

_USED_UP = re.compile(
    r"insufficient_quota|credit balance is too low"  # OpenAI, Anthropic
    r"|insufficient (?:account )?(?:balance|credit)|billing hard limit|used all available credits",
    re.IGNORECASE,
)
_QUOTA = re.compile(r"exceeded your current quota", re.IGNORECASE)
"""Google says so of any limit, and lets the quota's name and the time to wait tell which."""
_OF_A_SHORT_TIME = re.compile(r"quotaId.{0,80}Per(?:Second|Minute)", re.IGNORECASE)
_WAIT = re.compile(r"retryDelay\W{1,8}([\d.]+m?s)|please retry in ((?:[\d.]+(?:ms|h|m|s))+)", re.IGNORECASE)
LONGEST_WAIT_OF_A_LIMIT = 600.0
"""Seconds; a quota that is exceeded for longer is used up."""


def refuses_input(status: int | None, said: str) -> bool:
    """True if the conversation is refused: too long for the model, or against its content policy."""
    if status in (400, 403, 422):
        return _REFUSED_INPUT.search(said) is not None
    return status == 429 and _NEVER_FITS.search(said) is not None


def quota_used_up(said: str) -> bool:
    """True if an error with status 400, 403 or 429 means a quota that is used up for a long time."""
    if _USED_UP.search(said):
        return True
    if not _QUOTA.search(said) or _OF_A_SHORT_TIME.search(said):
        return False
    wait = named_wait(said)
    return wait is None or wait > LONGEST_WAIT_OF_A_LIMIT


def named_wait(said: str) -> float | None:
    """Seconds to wait that an error names in Google's words."""
    times = [seconds_until(first or second) for first, second in _WAIT.findall(said)]
    return max((seconds for seconds in times if seconds is not None), default=None)


# -- connections

_GARBLED = ("HttpProcessingError", "ContentEncodingError", "DecodingError")
"""Names of the exceptions of aiohttp and httpx for an answer that they cannot take apart."""
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"})
"""OpenSSL's names for an answer that is not TLS."""


def _no_connection(error: BaseException, place: str, address: str, proxy: str | None) -> ModelError:
    where = (address or "the provider") + (f" through {proxy}" if proxy else "")
    if any(type(cause).__name__ in CONNECTION_LOST for cause in chain(error)):  # there was one
        fault = f"{where} closed the connection without a whole answer"
        tls = " If it speaks TLS, write https:// in its address." if address.startswith("http://") else ""
        remedy = f"Its log may say why.{tls}"
        return ModelError(fault, place=place, remedy=remedy, retryable=True, no_answer="broken off")
    reason, advice, lasts = next(filter(None, map(_reason, chain(error))), ("", None, False))
    fault = f"cannot connect to {where}{reason}"
    if lasts:
        return ModelSetupError(fault, place=place, remedy=advice, no_answer="connection")
    remedy = advice or (f"Check that a server is running at {address}." if address else "Check the network.")
    if proxy is not None:
        remedy = "Check the proxy, or let NO_PROXY name the server's host."
    return ModelError(fault, place=place, remedy=remedy, retryable=True, no_answer="connection")


def _reason(cause: BaseException) -> tuple[str, str | None, bool] | None:
    """Words that complete "cannot connect to ...", a remedy, and True if waiting does not help."""
    # by their exact types: those of aiohttp inherit from them, and their texts name the host once more
    if type(cause) is ssl.SSLCertVerificationError:
        remedy = "If you trust it, let SSL_CERT_FILE name a file with the certificate that signed it."
        return f": its certificate cannot be verified: {cause.verify_message}", remedy, True
    if type(cause) in (ssl.SSLError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
        code = getattr(cause, "reason", None) or ""
        name = code.replace("_", " ").lower()
        if code in _NO_TLS:
            return f": it does not speak TLS there ({name})", "Write http:// in its address, perhaps.", True
        return f": no TLS connection ({name})" if name else ": no TLS connection", None, False
    if isinstance(cause, socket.gaierror):
        fault = (cause.strerror or "the name is not known").lower()
        return f": {fault}", "Check the server's name, and the network.", False
    if isinstance(cause, ConnectionError):
        return f": connection {'refused' if type(cause) is ConnectionRefusedError else 'lost'}", None, False
    return None
