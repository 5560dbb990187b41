"""What makes two model calls the same call."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from reward_kit.agent.redaction import is_secret_name

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from reward_kit.agent.completion import Message

FORMAT = "reward-kit.request/1"
"""Changes when calls are made in another way, so that answers to the former ones are not taken for theirs."""

TRANSPORT = frozenset({"timeout", "request_timeout", "stream_timeout", "num_retries", "max_retries"})
"""Settings that decide how long a call may take and how often it is tried, not what is answered."""


def public_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What a model's ``identity()`` says, without secrets and what does not decide its answers."""
    return {name: _without_secrets(value) for name, value in identity.items() if not _left_out(name)}


class RequestKeys:
    """The names under which the answers of one model are kept, from what is sent to it.

    A conversation grows at its end and its tools stay the same: only what is new is written as JSON, which is
    most of the work.
    """

    def __init__(self, identity: Mapping[str, Any]) -> None:
        self._start = hashlib.sha256(_json([FORMAT, identity]))
        self._tools: Any = None
        self._tools_json = _json(None)
        self._seen: list[Message] = []
        self._conversation = self._start.copy()

    def key(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        seed: int | None,
        parallel_tool_calls: bool,
        place: Sequence[Hashable],
    ) -> str:
        """The name of the answer to this call, 64 hex digits.

        ``place`` tells calls apart that send the same: which rollout, which attempt, its how-manieth call.
        """
        digest = self._after(messages).copy()
        digest.update(b"\0" + self._written(tools or None))
        digest.update(b"\0" + _json([len(messages), seed, parallel_tool_calls, place]))
        name: str = digest.hexdigest()
        return name

    def _after(self, messages: Sequence[Message]) -> Any:
        """The digest of the conversation so far."""
        if list(messages[: len(self._seen)]) != self._seen:
            self._seen.clear()
            self._conversation = self._start.copy()
        for message in messages[len(self._seen) :]:
            self._conversation.update(b"\n" + _json(message))
            self._seen.append(copy.deepcopy(message))  # the caller's may change later
        return self._conversation

    def _written(self, tools: Any) -> bytes:
        if tools != self._tools:
            self._tools, self._tools_json = copy.deepcopy(tools), _json(tools)
        return self._tools_json


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=repr).encode()


def _left_out(name: str) -> bool:
    """Whether a setting or header decides whether and how a call may be made, not what is answered."""
    return name in TRANSPORT or is_secret_name(name)


def _without_secrets(value: Any) -> Any:
    """The value without what is secret in it; an address without user, password and query."""
    if isinstance(value, Mapping):
        return public_identity({str(name): inner for name, inner in value.items()})
    if isinstance(value, list | tuple):
        return [_without_secrets(inner) for inner in value]
    if isinstance(value, str) and "://" in value:
        parts = urlsplit(value)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return value
