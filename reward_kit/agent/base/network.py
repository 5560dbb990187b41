"""Network: waiting times between attempts, and the sockets of servers on this machine."""

from __future__ import annotations

import email.utils
import math
import random
import re
import socket
import time
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reward_kit.agent.base.types import Usage

LOOPBACK = "127.0.0.1"

LONGEST_WAIT = 60.0
"""Seconds; nothing waits longer for its next attempt, whatever a server asks."""

RETRYABLE_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, *range(520, 525), 529, 530})
"""HTTP statuses that a later attempt may not meet again."""

CONNECTION_LOST = frozenset(
    {
        "ServerDisconnectedError",
        "ClientPayloadError",
        "RemoteProtocolError",
        "ReadError",
        "ConnectionResetError",
    }
)
"""Names of the exceptions of aiohttp and httpx for a server that hangs up."""

LONGEST_CHAIN = 10
"""Errors that led to one another and are looked at; foreign code may have made a ring of them."""

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[dhms])")
_UNIX_SECONDS = 1e9
"""From here on a bare number is a point in time (2001 and later), not a number of seconds."""
_UNIX_MILLISECONDS = 1e12
LONGEST_NAMED = 366 * 86400.0
"""Seconds; a later reset is read as one in a year."""
LONGEST_TEXT_OF_A_TIME = 100
"""Characters; a longer text is no time."""

_random = random.SystemRandom()


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and those behind it: clients wrap the errors of others, also ``from None``."""
    for _ in range(LONGEST_CHAIN):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def backoff(attempt: int, *, first: float = 1.0, jitter: float = 0.5, asked: float = 0.0) -> float:
    """Seconds to wait after the failed attempt number ``attempt`` (from 1).

    ``first`` seconds, doubled with each attempt, of which up to the share ``jitter`` is left out at random;
    at least the ``asked`` seconds that a server wants. ``LONGEST_WAIT`` at most.
    """
    seconds = min(LONGEST_WAIT, first * 2.0 ** min(attempt - 1, 30)) * _random.uniform(1.0 - jitter, 1.0)
    return min(LONGEST_WAIT, max(seconds, asked))


def retry_after(headers: Mapping[str, Any]) -> float | None:
    """Seconds that a server asks to wait; looking up a name in ``headers`` must ignore its case.

    ``retry-after-ms`` is more precise than ``retry-after``, which is a number or an HTTP date; some write
    Unix time or a duration there.
    """
    precise = seconds_until(f"{headers.get('retry-after-ms')}ms")
    return seconds_until(str(headers.get("retry-after"))) if precise is None else precise


QUOTAS = (
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests", "requests"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset", "requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens", "all"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset", "all"),
    ("anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset", "input"),
    ("anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset", "output"),
)
LONGEST_RESET = 60.0
"""Seconds; a quota that is reset later is ignored, since some gateways repeat fixed numbers."""


class Quota(NamedTuple):
    """``left`` requests, or tokens of the ``kind`` all, input or output, until a reset in ``seconds``."""

    left: int
    seconds: float
    kind: str = "requests"

    def suffices(self, last: Usage | None, others: int) -> bool:
        """True for as many tokens as the ``last`` call used, or for a request besides ``others``."""
        if self.kind == "requests":
            return self.left > others
        if last is None:
            return self.left >= 1
        counts = {"input": last.input_tokens, "output": last.output_tokens}
        return self.left >= max(1, counts.get(self.kind, last.input_tokens + last.output_tokens))


def quotas(headers: Mapping[str, Any]) -> Iterator[Quota]:
    """The quotas of which the headers say both how much is left and until when."""
    for remaining, reset, kind in QUOTAS:
        if remaining not in headers:  # the usual case
            continue
        try:
            left = int(float(headers[remaining]))
            seconds = seconds_until(str(headers[reset]))
        except (LookupError, TypeError, ValueError, OverflowError):
            continue
        if seconds is not None and seconds <= LONGEST_RESET:
            yield Quota(left, seconds, kind)


def seconds_until(text: str) -> float | None:
    """Seconds until a reset: ``6m0s``, ``7.66s``, a number, Unix time, an RFC 3339 or HTTP date.

    From 0 to ``LONGEST_NAMED``; None for any other text.
    """
    text = text.strip()
    if len(text) > LONGEST_TEXT_OF_A_TIME:
        return None
    parts = _PART.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    else:
        try:
            seconds = float(text)
        except ValueError:
            seconds = _date(text) - time.time()
        if seconds >= _UNIX_MILLISECONDS:
            seconds = seconds / 1000.0 - time.time()
        elif seconds >= _UNIX_SECONDS:
            seconds -= time.time()
    return min(LONGEST_NAMED, max(0.0, seconds)) if math.isfinite(seconds) else None


def _date(text: str) -> float:
    """Unix time of a date; NaN for any other text."""
    for read in (datetime.fromisoformat, email.utils.parsedate_to_datetime):
        with suppress(TypeError, ValueError, LookupError, OverflowError, OSError):
            return read(text).timestamp()
    return math.nan


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on ``host`` and ``port``; raises ``RewardKitError`` if it cannot."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        dual = family is socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address[:2], family=family, backlog=128, dualstack_ipv6=dual)
    except OSError as error:
        why = str(error.strerror or error).partition(" (while")[0]  # what follows repeats the address
        raise RewardKitError(
            f"cannot listen on {host} port {port}: {why}",
            remedy=f"Choose another with {'--port' if host == LOOPBACK else '--host or --port'}.",
        ) from error


def address_of(host: str, listener: socket.socket) -> str:
    """The address of a server that a person has started on ``host``, for people to open."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
