"""Why there is no connection to a server, and whether waiting may mend that."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECTION_LOST = frozenset(
    {
        "ServerDisconnectedError",
        "ClientPayloadError",
        "RemoteProtocolError",
        "ReadError",
        "ConnectionResetError",
    }
)
"""What aiohttp and httpx raise where a server hangs up."""
DEEPEST = 10
"""Causes of an error that are looked at."""
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"})
"""What OpenSSL calls an answer that is no TLS."""


@dataclass(frozen=True, slots=True)
class Reason:
    """``text`` completes "cannot connect to ..."; ``lasting``: no waiting mends it."""

    text: str
    remedy: str | None = None
    lasting: bool = False


def hung_up(error: BaseException) -> bool:
    """Whether a connection was made and broke off."""
    return any(type(cause).__name__ in CONNECTION_LOST for cause in _causes(error))


def reason_of(error: BaseException) -> Reason | None:
    """The reason that is found among the causes of ``error``; None where there is none to tell."""
    for cause in _causes(error):
        if type(cause) in _TLS_ERRORS or isinstance(cause, (socket.gaierror, ConnectionError)):
            return _reason(cause)
    return None


_TLS_ERRORS = (ssl.SSLError, ssl.SSLCertVerificationError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""By their exact types: those of aiohttp inherit from them, and their texts name the host once more."""


def _reason(cause: BaseException) -> Reason:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Reason(
            f"its certificate cannot be verified: {cause.verify_message}",
            "If you trust it, let SSL_CERT_FILE name a file with the certificate that it was signed with.",
            lasting=True,
        )
    if isinstance(cause, ssl.SSLError):
        name = (cause.reason or "").replace("_", " ").lower()
        if cause.reason in _NO_TLS:
            return Reason(
                f"it does not speak TLS there ({name})",
                "Write http:// in its address, perhaps.",
                lasting=True,
            )
        return Reason(f"no TLS connection ({name})" if name else "no TLS connection")
    if isinstance(cause, socket.gaierror):
        text = (cause.strerror or "the name is not known").lower()
        return Reason(text, "Check the server's name, and the network.")
    return Reason("connection refused" if isinstance(cause, ConnectionRefusedError) else "connection lost")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(DEEPEST):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__
