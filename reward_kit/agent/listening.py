"""Where servers listen, and the sockets of those that a person starts."""

from __future__ import annotations

import socket

from reward_kit.errors import RewardKitError

LOOPBACK = "127.0.0.1"


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; ``RewardKitError`` where that cannot be."""
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
