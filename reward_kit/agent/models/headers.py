"""Rate limits and waiting times in the headers of a provider's answers."""

from __future__ import annotations

import email.utils
import math
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reward_kit.agent.base.types import Usage

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|us|µs|ns|d|h|m|s))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|d|h|m|s)")
_UNIX_SECONDS = 1e9
"""From here on a bare number is a point in time (2001 and later), not a number of seconds."""
_UNIX_MILLISECONDS = 1e12

QUOTAS = (
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests", "requests"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset", "requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens", "all"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset", "all"),
    ("anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset", "input"),
    ("anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset", "output"),
)
LONGEST_QUOTA = 60.0
"""Seconds for which no call is made because nothing is left; more may be left by then."""


@dataclass(frozen=True, slots=True)
class Quota:
    """``left`` requests, or tokens of the ``kind`` all, input or output, until a reset in ``seconds``."""

    left: int
    seconds: float
    kind: str = "requests"

    def suffices(self, usage: Usage | None) -> bool:
        """True if as many are left as the last call used; at least one."""
        if usage is None or self.kind == "requests":
            return self.left >= 1
        counts = {"input": usage.input_tokens, "output": usage.output_tokens}
        return self.left >= max(1, counts.get(self.kind, usage.input_tokens + usage.output_tokens))


def retry_after(headers: Mapping[str, Any]) -> float | None:
    """Seconds that the provider asks to wait; looking up a name in ``headers`` must ignore its case.

    ``retry-after-ms`` is more precise than ``retry-after``, which is a number or an HTTP date; some write
    Unix time or a duration there.
    """
    with suppress(TypeError, ValueError):
        seconds = float(headers.get("retry-after-ms", "")) / 1000.0
        if math.isfinite(seconds):
            return max(0.0, seconds)
    value = headers.get("retry-after")
    return None if value is None else seconds_until(str(value))


def quotas(headers: Mapping[str, Any]) -> list[Quota]:
    """The quotas of which the headers say both how much is left and until when."""
    found = []
    for remaining, reset, kind in QUOTAS:
        left = headers.get(remaining)
        if left is not None:
            found.append(_quota(left, headers.get(reset), kind))
    return [quota for quota in found if quota is not None]


class TrustedQuotas:
    """Reads quotas and forgets kinds that turn out to mean nothing: some gateways repeat fixed numbers.

    A kind is no longer trusted once it said that nothing is left for longer than ``LONGEST_QUOTA``, and a
    call that was made before that time was over has been answered.
    """

    def __init__(self) -> None:
        self._empty: dict[str, tuple[float, float]] = {}
        self._ignored: set[str] = set()

    def read(self, headers: Mapping[str, Any], usage: Usage | None, now: float) -> list[Quota]:
        """The quotas in ``headers`` that are trusted; ``usage`` is that of the last call."""
        found = []
        for quota in quotas(headers):
            if quota.suffices(usage):
                self._empty.pop(quota.kind, None)
            elif quota.seconds > LONGEST_QUOTA:
                self._empty.setdefault(quota.kind, (now, now + quota.seconds))
            if quota.kind not in self._ignored:
                found.append(quota)
        return found

    def answered(self, sent: float, now: float) -> None:
        """Take in that a call ``sent`` then has a good answer."""
        for kind, (said, until) in list(self._empty.items()):
            if sent > said:
                del self._empty[kind]
                if now < until:
                    self._ignored.add(kind)


def _quota(left: Any, reset: Any, kind: str) -> Quota | None:
    try:
        count = int(float(left))
    except (ValueError, OverflowError):
        return None
    seconds = seconds_until(str(reset)) if reset is not None else None
    return None if seconds is None else Quota(count, seconds, kind)


def seconds_until(text: str) -> float | None:
    """Seconds until a reset: ``6m0s``, ``7.66s``, a number, Unix time, an RFC 3339 or HTTP date."""
    text = text.strip()
    if _DURATION.fullmatch(text):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    try:
        number = float(text)
    except ValueError:
        seconds = _until_date(text)
        return None if math.isnan(seconds) else max(0.0, seconds)
    if not math.isfinite(number):
        return None
    if number >= _UNIX_MILLISECONDS:
        number = number / 1000.0 - time.time()
    elif number >= _UNIX_SECONDS:
        number -= time.time()
    return max(0.0, number)


def _until_date(text: str) -> float:
    """Seconds until a date; NaN for any other text."""
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
        return math.nan
