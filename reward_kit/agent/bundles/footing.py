"""What every step of a run stands on, put back where a tool or a reward has broken it.

``ground`` does so once, at the end of a run; this does so after each call, for what others need meanwhile.
Only what cannot work is put back: another stream or function that does its work is the bundle's own affair.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import os
import signal
import sys
import threading
import time
from _signal import getsignal  # type: ignore[import-not-found]  # the one of signal makes enums: 3 us
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.bundles.ground import end_if_forked, reopen_streams

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def _tells_time(function: Callable[[], Any]) -> bool:
    return isinstance(function(), float)


def _opens(function: Callable[[str, int], int]) -> bool:
    os.close(function(os.devnull, os.O_RDONLY))
    return True


_NEEDED: dict[ModuleType, dict[str, Callable[[Any], Any] | None]] = {
    builtins: {
        "open": lambda function: function(os.devnull).close() is None,
        "print": None,
        "__import__": lambda function: function("sys") is sys,
    },
    json: {
        "dumps": lambda function: function([]) == "[]",
        "loads": lambda function: function("[]") == [],
    },
    os: {
        "open": _opens,
        **dict.fromkeys(("close", "fsync", "replace", "write")),
    },
    sys: {"excepthook": None},
    threading: {"excepthook": None},
    time: {**dict.fromkeys(("time", "perf_counter", "monotonic"), _tells_time), "sleep": None},
    asyncio: dict.fromkeys(
        ("current_task", "ensure_future", "gather", "get_running_loop", "shield", "sleep", "wait", "wait_for")
    ),
}
"""By name how to see that another in its place does its work; None where being callable has to do."""
_FUNCTIONS = [
    (module, name, getattr(module, name), works)
    for module, names in _NEEDED.items()
    for name, works in names.items()
]
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MODULES = sys.modules
_OURS = frozenset({*sys.stdlib_module_names, "reward_kit"})
_seen: dict[str, Any] = {}
"""The modules that were there before a call,"""
_looked_at = 0
"""of so many: some may be in the midst of their import."""
_called: list[str] = [""]


class Footing(NamedTuple):
    """How it was before a call."""

    process: int
    recursion_limit: int
    streams: tuple[Any, Any]
    handlers: tuple[Any, ...]
    alarm: float


def footing(called: str) -> Footing:
    """How it is now, before ``called``, a tool or a reward; empty before an import."""
    global _seen, _looked_at
    _called[0] = called
    if len(_MODULES) != _looked_at:
        _looked_at = len(_MODULES)
        _seen = {name: module for name, module in list(_MODULES.items()) if _is_whole(module)}
    handlers = tuple(getsignal(number) for number in _SIGNALS)
    return Footing(os.getpid(), sys.getrecursionlimit(), (sys.stdout, sys.stderr), handlers, _alarm())


def last_called() -> str | None:
    """The tool or reward that was called last in this process."""
    return f"after {_called[0]} was called" if _called[0] else None


def put_back(before: Footing) -> list[str]:
    """Put back what was broken since ``before``; returns its names.

    A child process that was forked since ends here, before it needs what other threads held when it was made:
    that stays locked in it for ever.
    """
    end_if_forked(before.process)
    broken = []
    if sys.modules is not _MODULES or len(_MODULES) < len(_seen):
        broken += _put_back_modules()
    for module, name, function, works in _FUNCTIONS:
        present = getattr(module, name, None)
        if present is not function and not _does_its_work(present, works):
            setattr(module, name, function)
            broken.append(f"{module.__name__}.{name}")
    if sys.getrecursionlimit() < before.recursion_limit:
        sys.setrecursionlimit(before.recursion_limit)
        broken.append("the recursion limit")
    if not before.alarm and _alarm():
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        broken.append("the alarm clock")
    broken += reopen_streams(before.streams)
    if threading.current_thread() is threading.main_thread():
        for number, handler in zip(_SIGNALS, before.handlers, strict=True):
            if callable(handler) and not callable(getsignal(number)):
                signal.signal(number, handler)
                broken.append(f"the handler of {number.name}")
    return broken


def _alarm() -> float:
    """Seconds until the process gets SIGALRM, which ends it; 0 for never."""
    return signal.getitimer(signal.ITIMER_REAL)[0] if sys.platform != "win32" else 0.0


def _does_its_work(function: Any, works: Callable[[Any], Any] | None) -> bool:
    if works is None:
        return callable(function)
    try:
        return bool(works(function))
    except Exception:  # noqa: BLE001 - foreign code
        return False


def _is_whole(module: Any) -> bool:
    """Whether it is imported to its end; another thread may be at it, and may fail."""
    return not getattr(getattr(module, "__spec__", None), "_initializing", False)


def _put_back_modules() -> list[str]:
    """Put back modules of Python and of this package that are gone, or were imported anew since: there is but
    one ``sys``. Others are the bundle's own affair.
    """
    is_another = sys.modules is not _MODULES
    sys.modules = _MODULES
    ours = {name: module for name, module in _seen.items() if name.partition(".")[0] in _OURS}
    replaced = [name for name, module in ours.items() if _MODULES.get(name) is not module]
    if not is_another and not replaced:
        return []
    _MODULES.update(ours)
    for name, module in _seen.items():
        _MODULES.setdefault(name, module)
    return ["sys.modules"]
