"""Network: waiting times between attempts, and the sockets of servers that a person starts."""

from __future__ import annotations

import random
import socket

from reward_kit.errors import RewardKitError

LOOPBACK = "127.0.0.1"

LONGEST_WAIT = 60.0
"""Seconds; nothing waits longer for its next attempt, whatever a server asks."""

RETRYABLE_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
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

_random = random.SystemRandom()


def backoff(attempt: int, *, first: float = 1.0, jitter: float = 0.5, asked: float = 0.0) -> float:
    """Seconds to wait after the failed attempt number ``attempt`` (from 1).

    ``first`` seconds, doubled with each attempt, of which up to the share ``jitter`` is left out at random;
    at least the ``asked`` seconds that a server wants. ``LONGEST_WAIT`` at most.
    """
    seconds = min(LONGEST_WAIT, first * 2.0 ** min(attempt - 1, 30)) * _random.uniform(1.0 - jitter, 1.0)
    return min(LONGEST_WAIT, max(seconds, asked))


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on ``host`` and ``port``; raises ``RewardKitError`` if it cannot."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _unavailable(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise _unavailable(host, port, error) from error
    return listener


def _unavailable(host: str, port: int, error: OSError) -> RewardKitError:
    return RewardKitError(
        f"cannot listen on {host} port {port}: {error.strerror or error}",
        remedy="Choose another with --port." if host == LOOPBACK else "Choose another with --host or --port.",
    )
