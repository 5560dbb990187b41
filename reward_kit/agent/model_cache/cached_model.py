"""Models whose answers are kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from reward_kit.agent.model_cache.answer_store import AnswerStore
from reward_kit.agent.model_cache.request_key import RequestKeys, public_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from pathlib import Path

    from reward_kit.agent.completion import Completion, Message, Model
    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.rollout import Role

FOLDER = ".cache"
"""In the output directory; no row may have this id."""


class CachedModel:
    """A model whose answers are kept; errors are not.

    ``for_rollout`` gives the view that a rollout asks: there each call has its place, so that no two
    rollouts, and no two calls of a rollout, share an answer. Asked directly, the same question gets the same
    answer.
    """

    def __init__(self, model: Model, store: AnswerStore, *, role: str = "") -> None:
        """``role`` tells the calls of agent and user apart. ``model`` must have an ``identity()``."""
        self.name = model.name
        self._model = model
        self._store = store
        self._role = role
        self._identity: dict[str, Any] | None = None

    def identity(self) -> dict[str, Any]:
        """What decides the model's answers besides the conversation, without secrets."""
        if self._identity is None:
            stated: dict[str, Any] = self._model.identity()  # type: ignore[attr-defined]  # an optional extra
            self._identity = public_identity(stated)
        return self._identity

    def keys(self) -> RequestKeys:
        """What names the answers to one conversation's calls."""
        return RequestKeys(self.identity())

    def for_rollout(self, index: int, attempt: int) -> Model:
        """The model as one attempt at a rollout asks it."""
        return _OfRollout(self, (self._role, index, attempt))

    async def open(self) -> None:
        """Open the model itself, where it has to be."""
        opening = getattr(self._model, "open", None)
        if opening is not None:
            await opening()

    async def close(self) -> None:
        """Close the model itself, where it has to be."""
        closing = getattr(self._model, "close", None)
        if closing is not None:
            await closing()

    async def complete(
        self,
        messages: list[Message],
        *,
        tools: list[dict[str, Any]] | None = None,
        seed: int | None = None,
        parallel_tool_calls: bool = True,
        place: tuple[Hashable, ...] = (),
        keys: RequestKeys | None = None,
    ) -> Completion:
        """The kept answer to this call, else the model's, which is kept from now on; raises ``ModelError``.

        ``place`` tells calls apart that are the same in everything else; ``keys`` remember the conversation.
        """
        options: dict[str, Any] = {"tools": tools, "seed": seed, "parallel_tool_calls": parallel_tool_calls}
        key = (keys or self.keys()).key(messages, **options, place=place)
        kept = self._store.get(key)
        if kept is not None:
            return kept
        completion = await self._model.complete(messages, **options)
        return await asyncio.to_thread(self._store.add, key, completion)


class _OfRollout:
    """Counts the calls of one attempt at a rollout."""

    def __init__(self, model: CachedModel, place: tuple[Hashable, ...]) -> None:
        self.name = model.name
        self._model = model
        self._place = place
        self._keys = model.keys()
        self._calls = 0

    async def complete(
        self,
        messages: list[Message],
        *,
        tools: list[dict[str, Any]] | None = None,
        seed: int | None = None,
        parallel_tool_calls: bool = True,
    ) -> Completion:
        position = self._calls
        self._calls += 1
        return await self._model.complete(
            messages,
            tools=tools,
            seed=seed,
            parallel_tool_calls=parallel_tool_calls,
            place=(*self._place, position),
            keys=self._keys,
        )


def cached_models(
    models: Mapping[Role, Model], config: EvaluationConfig, output_dir: Path, *, warn: Callable[[str], None]
) -> dict[Role, Model]:
    """The models with their answers kept, if ``config.cache`` says so; ``config.clear_cache`` comes first."""
    store = AnswerStore(output_dir / FOLDER, warn=warn)
    if config.clear_cache:
        store.clear()
    if not config.cache:
        return dict(models)
    cached: dict[Role, Model] = {}
    for role, model in models.items():
        if hasattr(model, "identity"):
            cached[role] = CachedModel(model, store, role=role)
        else:
            warn(f"--cache: answers of {model.name} are not kept, since it has no identity()")
            cached[role] = model
    return cached


def models_of_rollout(models: Mapping[Role, Model], index: int, attempt: int) -> dict[Role, Model]:
    """The models as one attempt at a rollout asks them."""
    views: dict[Role, Model] = {}
    for role, model in models.items():
        view = getattr(model, "for_rollout", None)
        views[role] = model if view is None else view(index, attempt)
    return views
