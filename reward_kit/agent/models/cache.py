"""A cache of model answers (``--cache``): repeating an evaluation calls no model.

It is off by default: several rollouts of a task measure the variation of an agent, which repeated answers
would hide. The answers are in one SQLite file, which several processes may use at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.files import CacheFile
from reward_kit.agent.base.redaction import hide, is_secret_name, public_address
from reward_kit.agent.base.types import Completion, Tokens, Usage
from reward_kit.agent.models.calls import model_of_rollout

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from pathlib import Path

    from reward_kit.agent.base.types import Message, Model, Role
    from reward_kit.agent.models.calls import Caller

logger = logging.getLogger(__name__)

FOLDER = ".cache"
"""In the output directory; no row may have this id."""
FORMAT = "reward-kit.request/1"
"""Changes with the form of requests, so that answers to the former ones are not reused."""
TRANSPORT = frozenset({"timeout", "request_timeout", "stream_timeout", "num_retries", "max_retries"})
"""Settings that affect how a request is sent, not its answer."""


class AnswerStore(CacheFile):
    """The answers in ``folder``, by the key of their request. If they cannot be used, models are called."""

    def __init__(self, folder: Path, *, warn: Callable[[str], None] = logger.warning) -> None:
        table = "answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID"
        told = "the answer cache cannot be used ({}); models are called instead"
        super().__init__(folder / "answers.db", table, told, warn)

    def get(self, key: str) -> Completion | None:
        """Return the stored answer, marked as reused in its usage, or None."""
        found = self.execute("SELECT answer FROM answers WHERE key = ?", (key,))
        if not found:
            return None
        try:
            plain: dict[str, Any] = json.loads(found[0][0])
        except ValueError:  # damaged
            self.execute("DELETE FROM answers WHERE key = ?", (key,))
            return None
        usage = Usage(**plain.pop("usage"))
        usage.reused_calls, usage.reused_cost = usage.calls, usage.cost
        usage.reused_tokens = usage.input_tokens + usage.output_tokens
        if (tokens := plain.pop("tokens", None)) is not None:
            tokens = Tokens(**tokens)
        return Completion(usage=usage, tokens=tokens, **plain)

    def add(self, key: str, completion: Completion) -> Completion:
        """Store an answer and return the stored one.

        It is another's if another process has answered the same call meanwhile, so that both continue with
        the same words; the usage stays that of this call, which was paid for as well.
        """
        plain = asdict(completion)
        del plain["waited"]  # a reused answer does not wait
        try:
            answer = json.dumps(plain)
        except (TypeError, ValueError):  # a field that JSON cannot hold would come back changed
            return completion
        if hide(answer) == answer:
            self.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, answer))
        kept = self.get(key)
        if kept is None:
            return completion
        kept.usage, kept.seconds, kept.waited = completion.usage, completion.seconds, completion.waited
        return kept


class CachedModel:
    """A model with cached answers; errors are not cached. ``model`` must have an ``identity()``.

    Rollouts ask it through ``for_rollout``: every call has a position, so that no two rollouts and no two
    calls of a rollout share an answer. ``role`` separates the calls of agent and user.
    """

    def __init__(self, model: Any, store: AnswerStore, role: Role) -> None:
        self._model = model
        self._store = store
        self._role = role

    def __getattr__(self, name: str) -> Any:
        """The name of the model itself, and its ``open`` and ``close`` if it has them."""
        return getattr(self._model, name)

    @cached_property
    def _identity(self) -> dict[str, Any]:
        return public_identity(self._model.identity())

    def for_rollout(self, caller: Caller) -> Model:
        """The model for one attempt at a rollout."""
        model = model_of_rollout(self._model, caller)
        numbers = itertools.count()

        async def complete(messages: list[Message], **options: Any) -> Completion:
            place = self._role, caller.index, caller.attempt, next(numbers)
            key = request_key(self._identity, messages, place, **options)
            kept = self._store.get(key)
            if kept is not None:
                return kept
            completion = await model.complete(messages, **options)
            return await asyncio.to_thread(self._store.add, key, completion)

        bound: Any = SimpleNamespace(name=model.name, complete=complete)
        return bound  # type: ignore[no-any-return]  # it has what ``Model`` asks for


def cached_models(
    models: Mapping[Role, Model], output_dir: Path, *, warn: Callable[[str], None]
) -> dict[Role, Model]:
    """Wrap the models, so that their answers are stored and reused."""
    store = AnswerStore(output_dir / FOLDER, warn=warn)
    cached: dict[Role, Any] = {}
    for role, model in models.items():
        has_identity = hasattr(model, "identity")
        cached[role] = CachedModel(model, store, role) if has_identity else model
        if not has_identity:
            warn(f"--cache: answers of {model.name} are not cached, since it has no identity()")
    return cached


def request_key(
    identity: Mapping[str, Any],
    messages: list[Message],
    place: tuple[Hashable, ...],
    *,
    tools: list[dict[str, Any]] | None = None,
    seed: int | None = None,
    parallel_tool_calls: bool = True,
) -> str:
    """The key of a request, 64 hex digits.

    ``place`` separates equal requests: role, rollout, attempt and number of the call.
    """
    digest = hashlib.sha256(_json([FORMAT, identity]))
    for message in messages:
        digest.update(b"\n" + _json(message))
    digest.update(b"\0" + _json(tools or None))
    digest.update(b"\0" + _json([len(messages), seed, parallel_tool_calls, place]))
    return digest.hexdigest()


def public_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    """A model's ``identity()`` without secrets, transport settings, and the accounts in addresses."""
    kept = {name: one for name, one in identity.items() if name not in TRANSPORT and not is_secret_name(name)}
    for name in kept.keys() & {"server", "model_args", "extra_headers"}:  # other values are the model's own
        kept[name] = public_identity(kept[name]) if isinstance(kept[name], Mapping) else kept[name]
    ends = ("base", "url", "endpoint", "address")
    addresses = {name for name, one in kept.items() if isinstance(one, str) and name.lower().endswith(ends)}
    return kept | {name: public_address(kept[name]) for name in addresses}


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=repr).encode()
