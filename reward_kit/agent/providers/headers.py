"""What a provider says of its limits in the headers of its answers."""

from __future__ import annotations

import email.utils
import re
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reward_kit.agent.completion import Usage

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|us|µs|ns|d|h|m|s))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|d|h|m|s)")
_UNIX_SECONDS = 1e9
"""From here on a bare number is a point in time (2001 and later), not a number of seconds."""
_UNIX_MILLISECONDS = 1e12

REQUESTS = (
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
)
TOKENS = (
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens", "all"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset", "all"),
    ("anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset", "input"),
    ("anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset", "output"),
)
_LITELLM_PREFIX = "llm_provider-"


@dataclass(frozen=True, slots=True)
class Quota:
    """So many requests (or tokens, of the ``kind`` all, input or output) are left for ``seconds``."""

    left: int
    seconds: float
    kind: str = "requests"

    def suffices(self, usage: Usage | None) -> bool:
        """Whether as many tokens are left as the last call used; at least one."""
        if usage is None:
            return self.left >= 1
        counts = {"input": usage.input_tokens, "output": usage.output_tokens}
        return self.left >= max(1, counts.get(self.kind, usage.input_tokens + usage.output_tokens))


def retry_after(headers: Mapping[str, Any]) -> float | None:
    """Seconds that the provider asks to wait; ``headers`` must not mind the case of names.

    ``retry-after-ms`` is more precise than ``retry-after``, which is a number or an HTTP date; some write
    Unix time or a duration there.
    """
    milliseconds = headers.get("retry-after-ms")
    if milliseconds is not None:
        try:
            seconds = float(milliseconds) / 1000.0
        except ValueError:
            seconds = float("nan")
        if seconds == seconds and seconds != float("inf"):
            return max(0.0, seconds)
    value = headers.get("retry-after")
    return None if value is None else seconds_until(str(value))


def quotas(headers: Mapping[str, Any]) -> list[Quota]:
    """What is left, where the headers say both how much and until when."""
    found = []
    for remaining, reset in REQUESTS:
        left = headers.get(remaining)
        if left is not None:
            found.append(_quota(left, headers.get(reset), "requests"))
    for remaining, reset, kind in TOKENS:
        left = headers.get(remaining)
        if left is not None:
            found.append(_quota(left, headers.get(reset), kind))
    return [quota for quota in found if quota is not None]


def of_litellm(answer: Any) -> dict[str, Any]:
    """The provider's own headers in an answer or error of LiteLLM, by their names in lower case."""
    hidden = getattr(answer, "_hidden_params", None)
    given = (hidden.get("additional_headers") if isinstance(hidden, dict) else None) or getattr(
        answer, "_response_headers", None
    )
    plain = {}
    for name, value in dict(given or {}).items():
        plain[str(name).lower().removeprefix(_LITELLM_PREFIX)] = value
    return plain


def _quota(left: Any, reset: Any, kind: str) -> Quota | None:
    try:
        count = int(float(left))
    except (ValueError, OverflowError):
        return None
    seconds = seconds_until(str(reset)) if reset is not None else None
    return None if seconds is None else Quota(count, seconds, kind)


def seconds_until(text: str) -> float | None:
    """Seconds that a reset is away: ``6m0s``, ``7.66s``, a number, Unix time, an RFC 3339 or HTTP date."""
    text = text.strip()
    if _DURATION.fullmatch(text):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    try:
        number = float(text)
    except ValueError:
        seconds = _until_date(text)
        return None if seconds != seconds else max(0.0, seconds)
    if number != number or number == float("inf"):
        return None
    if number >= _UNIX_MILLISECONDS:
        number = number / 1000.0 - time.time()
    elif number >= _UNIX_SECONDS:
        number -= time.time()
    return max(0.0, number)


def _until_date(text: str) -> float:
    """Seconds until a date; not a number for anything else."""
    try:
        # Python 3.10 does not know the Z of RFC 3339.
        return datetime.fromisoformat(text.removesuffix("Z") + "+00:00" * text.endswith("Z")).timestamp() - (
            time.time()
        )
    except ValueError:
        pass
    try:
        return email.utils.parsedate_to_datetime(text).timestamp() - time.time()
    except (TypeError, ValueError):
        return float("nan")
