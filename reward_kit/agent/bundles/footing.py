"""What every step of a run stands on, put back where a tool or a reward has broken it.

``ground`` does so once, at the end of a run; this does so after each call, for what others need meanwhile.
Only what cannot work is put back: another stream or function that does its work is the bundle's own affair.
"""

from __future__ import annotations

import builtins
import json
import os
import signal
import sys
import threading
import time
from _signal import getsignal  # type: ignore[import-not-found]  # the one of signal makes enums: 3 us
from asyncio import get_running_loop
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.bundles.ground import reopen_streams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_NEEDED: dict[ModuleType, tuple[str, ...]] = {
    builtins: ("open", "print"),
    json: ("dumps", "loads"),
    os: ("open", "close", "fsync", "replace", "write"),
    sys: ("excepthook",),
    threading: ("excepthook",),
    time: ("time", "perf_counter", "monotonic", "sleep"),
}
_FUNCTIONS = [(module, name, getattr(module, name)) for module, names in _NEEDED.items() for name in names]
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_playing: ContextVar[bool] = ContextVar("_playing", default=False)


class Footing(NamedTuple):
    """How it was before a call."""

    recursion_limit: int
    streams: tuple[Any, Any]
    handlers: tuple[Any, ...]


def footing() -> Footing:
    """How it is now."""
    handlers = tuple(getsignal(number) for number in _SIGNALS)
    return Footing(sys.getrecursionlimit(), (sys.stdout, sys.stderr), handlers)


def put_back(before: Footing) -> list[str]:
    """Put back what was broken since ``before``; returns its names."""
    broken = []
    for module, name, function in _FUNCTIONS:
        present = getattr(module, name, None)
        if present is not function and not callable(present):
            setattr(module, name, function)
            broken.append(f"{module.__name__}.{name}")
    if sys.getrecursionlimit() < before.recursion_limit:
        sys.setrecursionlimit(before.recursion_limit)
        broken.append("the recursion limit")
    broken += reopen_streams(before.streams)
    if threading.current_thread() is threading.main_thread():
        for number, handler in zip(_SIGNALS, before.handlers, strict=True):
            if callable(handler) and not callable(getsignal(number)):
                signal.signal(number, handler)
                broken.append(f"the handler of {number.name}")
    return broken


@contextmanager
def loop_kept_running() -> Iterator[None]:
    """What is done meanwhile, by this task and those that it starts, cannot stop the event loop."""
    loop: Any = get_running_loop()
    if "stop" not in getattr(loop, "__dict__", {"stop": None}):  # a loop written in C has none
        stop = loop.stop

        def stop_unless_playing() -> None:
            if _playing.get():
                raise RuntimeError("a rollout cannot stop the event loop, which others need")
            stop()

        loop.stop = stop_unless_playing
    token = _playing.set(True)
    try:
        yield
    finally:
        _playing.reset(token)
