"""For which rollout a model is asked."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: one ``conversation``, in all its attempts; those of the same ``task`` may share a fault."""

    conversation: Hashable = field(default_factory=object)
    task: Hashable = field(default_factory=object)


_current: ContextVar[Caller | None] = ContextVar("caller", default=None)


@contextmanager
def asking(caller: Caller) -> Iterator[None]:
    """What is asked in this block, also by tasks that are begun in it, ``caller`` asks."""
    token = _current.set(caller)
    try:
        yield
    finally:
        _current.reset(token)


def current_caller() -> Caller:
    """Who asks here; somebody else each time where nothing says it."""
    return _current.get() or Caller()
