"""Where an OpenAI-compatible server is, and whether it is one that asks for no key."""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit

from reward_kit.errors import ModelSetupError


def needs_no_key(provider: str, api_base: str | None = None) -> bool:
    """Whether an OpenAI-compatible server on this machine or network is asked, and no key is set for it."""
    if provider != "openai" or os.environ.get("OPENAI_API_KEY"):
        return False
    return _is_local(api_base or base_from_environment(provider) or "")


def base_from_environment(provider: str) -> str | None:
    """The address that the environment gives for an OpenAI-compatible server."""
    if provider != "openai":
        return None
    return os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE")


def check_address(provider: str, api_base: str | None, *, place: str) -> None:
    """Raise ``ModelSetupError`` for a server's address that is no URL, wherever it was given."""
    variable = f"{provider.upper()}_API_BASE"
    address = api_base or base_from_environment(provider) or os.environ.get(variable)
    if address and not address.lower().startswith(("http://", "https://")):
        account, at, rest = address.rpartition("@")
        shown = f"***@{rest}" if at and account else address
        raise ModelSetupError(
            f"the server's address {shown!r} has no http:// or https://",
            place=place,
            remedy=f"Write http://{shown}, for example." if "://" not in address else None,
        )


def _is_local(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return bool(host) and ("." not in host or host.endswith((".local", ".internal", ".localhost")))
