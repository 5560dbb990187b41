"""Keys and passwords, removed from every text that is shown or written."""

from __future__ import annotations

import base64
import functools
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

HIDDEN = "[hidden]"
REDACTED = "***"
"""The value of a setting that is not stored."""
LONGEST_LABEL = 200
SHORTEST = 8
"""Characters; shorter texts are no keys, and would be found in ordinary words."""

_ALLOWS = r"(?:key|token|secret|password|passwd|credentials?|authorization|cookie|signature)"
_SECRET_NAME = re.compile(rf"(?:{_ALLOWS}|key[-_]?id)(?:[-_]?\d+)?$|^(?:x-)?auth", re.IGNORECASE)
_COUNTED_NAME = re.compile(r"per_token$|^(?:bos|eos|pad|stop|end|sep|unk|mask)_token$", re.IGNORECASE)
_PERHAPS_SECRET_NAME = re.compile(rf"{_SECRET_NAME.pattern}|{_ALLOWS}_", re.IGNORECASE)
_SECRET_LOOK = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|fw|hf)[-_][\w\-.*]{6,}|\bAIza[\w-]{20,}|(?<=Bearer )\S+|(?<=Basic )[\w+/=-]{8,}"
)
_PASSWORD_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@\"']*@")
_HEADERS = re.compile(r"headers?$", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """True if a setting, header or variable of this name allows calls, such as ``api_key``."""
    return _SECRET_NAME.search(name) is not None and _COUNTED_NAME.search(name) is None


def redact(text: str, secrets: Collection[str] = ()) -> str:
    """``text`` without ``secrets``, secrets of the environment, passwords in addresses, and texts that look
    like keys.
    """
    text = hide(text, (*environment_secrets(), *secrets))
    return _SECRET_LOOK.sub(HIDDEN, _PASSWORD_IN_ADDRESS.sub(f"{HIDDEN}@", text))


def environment_secrets() -> tuple[str, ...]:
    """The secrets in the environment, the longest first: one may hold another."""
    return _of_environment(tuple(os.environ.items()))


def hide(text: str, secrets: Collection[str]) -> str:
    """``text`` without ``secrets``."""
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, HIDDEN)
    return text


def hide_in_json(text: str, secrets: Collection[str]) -> str:
    """JSON text without ``secrets`` in its strings; names of members stay."""
    if not any(form in text for secret in secrets for form in _encoded(secret)):
        return text
    return json.dumps(_hidden(json.loads(text), secrets), ensure_ascii=False)


@functools.lru_cache(maxsize=256)
def _encoded(secret: str) -> frozenset[str]:
    return frozenset(json.dumps(secret, ensure_ascii=is_ascii)[1:-1] for is_ascii in (False, True))


def _hidden(value: Any, secrets: Collection[str]) -> Any:
    if isinstance(value, str):
        return hide(value, secrets)
    if isinstance(value, list):
        return [_hidden(inner, secrets) for inner in value]
    if isinstance(value, dict):
        return {name: _hidden(inner, secrets) for name, inner in value.items()}
    return value


@functools.lru_cache(maxsize=256)
def label(text: str, secrets: frozenset[str] = frozenset()) -> str:
    """A name given by somebody else, such as the model that a server says has answered: redacted, and at
    most ``LONGEST_LABEL`` characters.
    """
    return redact(text, secrets)[:LONGEST_LABEL]


def without_password(value: str) -> str:
    """An address without the user and password in it; any other text as it is."""
    return _PASSWORD_IN_ADDRESS.sub("***@", value)


def public_address(value: str) -> str:
    """An address without user, password and query; any other text as it is."""
    parts = urlsplit(value)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if "://" in value else value


def redacted(value: Any) -> Any:
    """Copy JSON values with secrets replaced by ``***``.

    Secrets are everything under a name such as ``api_key``, authorization headers, and accounts in addresses.
    """
    if isinstance(value, Mapping):
        return {
            name: REDACTED if is_secret_name(str(name)) else redacted(inner) for name, inner in value.items()
        }
    if isinstance(value, str):
        return REDACTED if value.startswith(("Bearer ", "Basic ")) else without_password(value)
    if isinstance(value, list | tuple):
        return [redacted(inner) for inner in value]
    return value


def secrets_in(value: Any) -> frozenset[str]:
    """The secrets in the settings of a model: values of names such as ``api_key``, all headers, and
    passwords in addresses.
    """
    return frozenset(secret for secret in _found(value, secret=False) if len(secret) >= SHORTEST)


def _found(value: Any, *, secret: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            named = _PERHAPS_SECRET_NAME.search(str(name)) and not _COUNTED_NAME.search(str(name))
            yield from _found(inner, secret=secret or bool(named) or _HEADERS.search(str(name)) is not None)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _found(inner, secret=secret)
    elif isinstance(value, str):
        if secret:
            yield value
            yield value.rpartition(" ")[2]  # of "Bearer key" the key alone
        yield from _of_address(value)


def _of_address(value: str) -> Iterator[str]:
    """The password in an address: as written, decoded, and as clients send it."""
    if "://" not in value or "@" not in value:
        return
    account = urlsplit(value).netloc.rpartition("@")[0]
    user, _, password = account.partition(":")
    if not account:
        return
    yield from (account, password, unquote(password))
    yield base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()


@functools.lru_cache(maxsize=4)
def _of_environment(variables: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    found = set()
    for name, value in variables:
        if _PERHAPS_SECRET_NAME.search(name):
            found.add(value)
        elif "://" in value:
            found.update(_of_address(value))
    return tuple(sorted((one for one in found if len(one) >= SHORTEST), key=len, reverse=True))
