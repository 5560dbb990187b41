"""Secrets: recognised by name and value, and hidden in texts that are shown or stored.

A secret is a key of a model, the value of a variable whose name says so (``SHOP_API_KEY``) if it looks
random, or a password in an address. It is found in its encodings: in JSON, URLs and HTML. Values of fewer
than ``SHORTEST_STORED`` characters are hidden only in what is shown; data with such a text stay as they are.
"""

from __future__ import annotations

import base64
import functools
import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

HIDDEN = "[hidden]"
REDACTED = "***"
"""The value of a setting that is not stored."""
LONGEST_LABEL = 200
SHORTEST = 8
"""Characters; shorter texts are no keys, and would be found in ordinary words."""
SHORTEST_STORED = 16
"""Characters of a variable's value that is hidden in stored texts."""

_PASSWORDS = r"pass(?:word|wd|phrase)|(?<![a-z])pass|(?:_|pg)pwd"
_SECRET_NAME = re.compile(
    rf"(?:{_PASSWORDS}|token|secret|api_?key|authorization|webhook(?:_ur[il])?"
    r"|(?<![a-z])(?:key(?:_id)?|credentials?|cookie|signature|pat|jwt|auth))$|^x_auth"
)
_PASSWORD_NAME = re.compile(rf"(?:{_PASSWORDS}|secret)$")
_COUNTED_NAME = re.compile(r"per_token$|^(?:bos|eos|pad|stop|end|sep|unk|mask)_token$")
_HEADERS = re.compile(r"headers?$", re.IGNORECASE)
_SECRET_LOOK = re.compile(
    r"\bg?sk[-_][\w\-.*]{6,}|\b(?:pk|rk|xai|fw|hf)[-_](?=\S*\d)[\w\-.*]{12,}|\bAIza[\w-]{20,}"
    r"|(?<=Bearer )(?![a-z]{1,7}[.,;:!?]?(?:\s|$))\S+|(?<=Basic )(?![A-Z]?[a-z_-]+(?![\w+/=-]))[\w+/=-]{8,}"
)
_PASSWORD_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@\"']*@")
_ACCOUNT = re.compile(r"://([^/\s\"']+)@")
_PASSWORD_SETTING = re.compile(r"\b(?:password|pwd)\s*=\s*([^\s;&\"']+)", re.IGNORECASE)
_FACT = re.compile(
    r"[\d\W_TZ]+|[a-z][\w+.-]*://[^@]*"  # a number or date, an address
    r"|(?:~|\.{1,2})?(?:/[\w .@-]+){2,}/?|[a-z]:\\.*"  # a path
    r"|[\w /.-]+\.[a-z]{2,5}(?::\d+)?(?:/[\w./-]*)?",  # a file, a host
    re.IGNORECASE,
)
_WORD = re.compile(r"(?!.*[bcdfghjklmnpqrstvwxz]{5})[^\W\d_]*\d{0,2}", re.IGNORECASE)


class _Secret(NamedTuple):
    """A value, the name and length of its variable, the longest text in it that no encoding changes."""

    value: str
    name: str
    core: str
    is_stored: bool


_of_models: set[str] = set()


def is_secret_name(name: str) -> bool:
    """True if the last word of a setting's, header's or variable's name says secret, as in ``api_key``."""
    words = _words(name)
    return _SECRET_NAME.search(words) is not None and _COUNTED_NAME.search(words) is None


def _words(name: str) -> str:
    """``apiKey``, ``Api-Key`` and ``API_KEY_2`` as ``api_key``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|-", "_", name).lower().rstrip("_0123456789")


def redact(text: str, secrets: Collection[str] = ()) -> str:
    """A message without ``secrets``, secrets that are known, and texts that look like keys or passwords."""
    text = hide(text, is_shown=True)
    for secret in secrets:
        text = _without(text, secret)
    return _SECRET_LOOK.sub(HIDDEN, _PASSWORD_IN_ADDRESS.sub(f"{HIDDEN}@", text))


def hide(text: str, found: set[str] | None = None, *, is_shown: bool = False) -> str:
    """``text`` without the secrets that are known; also JSON, which stays valid.

    ``found`` gets the names of those that were in it. A text that ``is_shown`` and never read
    back has short secrets hidden, too.
    """
    for secret in known_secrets():
        # one search for all encodings of all secrets takes 100 times longer than these
        if secret.core in text and (is_shown or secret.is_stored):
            before, text = text, _without(text, secret.value)
            if found is not None and text != before:
                found.add(secret.name)
    return text


def hide_bytes(text: bytes) -> bytes:
    """``hide`` for an encoded text."""
    if not known_secrets():
        return text
    return hide(text.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def keep_secrets(secrets: frozenset[str]) -> frozenset[str]:
    """Have secrets of a model's settings hidden from now on; returns them."""
    _of_models.update(secret for secret in secrets if not _is_plain(secret))
    return secrets


def known_secrets() -> tuple[_Secret, ...]:
    """The secrets in the environment and of models, the longest first: one may hold another."""
    undecoded: dict[Any, Any] = vars(os.environ)["_data"]  # reading each by its name takes 10 times longer
    if undecoded != _last[0] or _of_models != _last[1]:
        variables, of_models = dict(undecoded), frozenset(_of_models)
        _last[:] = variables, of_models, _found_in(variables, of_models)
    secrets: tuple[_Secret, ...] = _last[2]
    return secrets


_last: list[Any] = [None, None, ()]
"""Environment, secrets of models, and what was found in them last: that seldom changes."""


def _found_in(undecoded: Mapping[Any, Any], of_models: frozenset[str]) -> tuple[_Secret, ...]:
    found: dict[str, tuple[str, bool]] = {}
    for name, value in (map(os.fsdecode, variable) for variable in undecoded.items()):
        passwords = {*_of_address(value)}
        named = {value, value.rpartition(" ")[2], value.partition(":")[2]} if is_secret_name(name) else set()
        if named and "://" in value:
            path = value.partition("://")[2].partition("/")[2]
            named = {path, path.rpartition("/")[2]} if "webhook" in name.lower() else set()
        elif _PASSWORD_NAME.search(_words(name)):
            passwords |= {part for part in named if part[:1] not in ("/", "~", ".")}
        for part in passwords | named:
            is_long, is_random = len(part) >= SHORTEST_STORED, not _is_plain(part)
            is_phrase = is_long and not _FACT.fullmatch(part)
            if len(part) >= SHORTEST and (is_random or is_phrase or part in passwords):
                found.setdefault(part, (f"{name} ({len(value)} characters)", is_random and is_long))
    for value in of_models:
        found[value] = found.get(value, ("a model's setting", True))[0], True
    longest_first = sorted(found.items(), key=lambda item: -len(item[0]))
    return tuple(
        _Secret(value, name, max(re.findall(r"[A-Za-z0-9]*", value), key=len), is_stored)
        for value, (name, is_stored) in longest_first
    )


def _is_plain(value: str) -> bool:
    """True for a number, a place or words: nothing that looks random."""
    return _FACT.fullmatch(value) is not None or all(map(_WORD.fullmatch, re.split(r"[\W_]+", value)))


def _without(text: str, secret: str) -> str:
    return _pattern(secret).sub(_replacement, text) if secret else text


@functools.lru_cache(maxsize=256)
def _pattern(secret: str) -> re.Pattern[str]:
    return re.compile("".join(map(_encodings, secret)))


def _encodings(character: str) -> str:
    """A character as it is, in JSON (also in JSON within JSON), in a URL, in HTML."""
    if character.isascii() and character.isalnum():
        return character
    code = ord(character)
    percent = "".join(f"%(?:25)?{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
    plain = r"(?:\\\\)+|\\" if character == "\\" else rf"\\*{re.escape(character)}"
    named = {
        "\n": r"\\+n|",
        "\t": r"\\+t|",
        " ": r"\+|",
        "&": "&amp;|",
        "<": "&lt;|",
        ">": "&gt;|",
        '"': "&quot;|",
    }
    return rf"(?:{named.get(character, '')}(?i:{percent}|\\+u{code:04x}|&\#0*{code};|&\#x{code:x};)|{plain})"


def _replacement(found: re.Match[str]) -> str:
    """``HIDDEN``, after the rest of an escape (``\\n``) in which the match begins: JSON stays valid."""
    before = found.string[max(0, found.start() - 100) : found.start()]
    if (len(before) - len(before.rstrip("\\"))) % 2 and found[0][0] in "bfnrtu":
        return found[0][: 5 if found[0][0] == "u" else 1] + HIDDEN
    return HIDDEN


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


def redacted(value: Any, secrets: Collection[str] | None = None) -> Any:
    """Copy JSON values with secrets replaced by ``***``.

    Secrets are everything under a name such as ``api_key``, all of ``secrets_in``, and accounts in addresses.
    """
    secrets = secrets_in(value) if secrets is None else secrets
    if isinstance(value, Mapping):
        return {
            name: REDACTED if is_secret_name(str(name)) else redacted(inner, secrets)
            for name, inner in value.items()
        }
    if isinstance(value, str):
        is_secret = value in secrets or value.startswith(("Bearer ", "Basic "))
        return REDACTED if is_secret else without_password(value)
    if isinstance(value, list | tuple):
        return [redacted(inner, secrets) for inner in value]
    return value


def secrets_in(value: Any) -> frozenset[str]:
    """The secrets in the settings of a model: values of names such as ``api_key``, all headers, and
    passwords in addresses.
    """
    return frozenset(secret for secret in _found(value, secret=False) if len(secret) >= SHORTEST)


def _found(value: Any, *, secret: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            named = is_secret_name(str(name)) or _HEADERS.search(str(name)) is not None
            yield from _found(inner, secret=secret or named)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _found(inner, secret=secret)
    elif isinstance(value, str):
        if secret:
            yield value
            yield value.rpartition(" ")[2]  # of "Bearer key" the key alone
        yield from _of_address(value)


def _of_address(value: str) -> Iterator[str]:
    """The password in an address or connection string: as written, decoded, and as clients send it."""
    yield from _PASSWORD_SETTING.findall(value)
    for account in _ACCOUNT.findall(value):
        user, _, password = account.partition(":")
        yield from (password or user, unquote(password or user))
        yield base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
