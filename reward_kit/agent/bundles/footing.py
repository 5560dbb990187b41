"""What every step of a run stands on, put back where a tool or a reward has broken it.

``ground`` does so once, at the end of a run; this does so after each call, for what others need meanwhile.
Only what cannot work is put back: another stream or function that does its work is the bundle's own affair.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import os
import random
import signal
import sys
import sysconfig
import threading
import time
import traceback
import uuid
from _signal import getsignal  # type: ignore[import-not-found]  # the one of signal makes enums: 3 us
from operator import itemgetter
from os import getpid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.bundles.ground import end_if_forked, reopen_streams
from reward_kit.agent.bundles.own_signals import own_handler
from reward_kit.agent.bundles.umask import put_back_umask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType


def _tells_time(function: Callable[[], Any]) -> bool:
    return isinstance(function(), float)


def _writes(function: Callable[[int, bytes], int]) -> bool:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        return function(nowhere, b"1") == 1
    finally:
        os.close(nowhere)


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
        "environ": lambda variables: callable(variables.get),
        "getpid": lambda function: function() == getpid(),
        "stat": lambda function: function(os.devnull) is not None,
        "urandom": lambda function: len(function(1)) == 1,
        "write": _writes,
        **dict.fromkeys(("close", "fsync", "fstat", "link", "listdir", "makedirs", "mkdir", "rename")),
        **dict.fromkeys(("replace", "rmdir", "scandir", "unlink")),
    },
    os.path: dict.fromkeys(("basename", "dirname", "exists", "isdir", "isfile", "join")),
    random: {"Random": lambda kind: 0 <= kind(0).random() < 1},
    sys: {"excepthook": None},
    threading: dict.fromkeys(("excepthook", "Event", "Lock", "Thread", "current_thread", "main_thread")),
    time: {**dict.fromkeys(("time", "perf_counter", "monotonic"), _tells_time), "sleep": None},
    traceback: dict.fromkeys(("extract_tb", "format_exception", "format_exception_only")),
    uuid: {"uuid4": lambda function: len(function().hex) == 32},
    asyncio: dict.fromkeys(
        (
            *("CancelledError", "Event", "Future", "Lock", "Semaphore", "Task", "all_tasks", "create_task"),
            *("current_task", "ensure_future", "gather", "get_running_loop", "shield", "sleep", "to_thread"),
            *("wait", "wait_for"),
        )
    ),
}
"""By name how to see that another in its place does its work; None where being callable has to do."""
_LANGUAGE = (
    *("abs", "all", "any", "bool", "bytearray", "bytes", "callable", "chr", "classmethod", "dict", "divmod"),
    *("enumerate", "filter", "float", "format", "frozenset", "getattr", "hasattr", "hash", "id", "int"),
    *("isinstance", "issubclass", "iter", "len", "list", "map", "max", "min", "next", "object", "ord"),
    *("property", "range", "repr", "reversed", "round", "set", "setattr", "slice", "sorted", "str", "sum"),
    *("super", "tuple", "type", "vars", "zip", "BaseException", "Exception", "KeyError", "OSError"),
    *("RuntimeError", "TypeError", "ValueError"),
)
"""Those of ``builtins`` that nobody has a good reason to replace: put back whatever stands there."""
_BUILTINS = vars(builtins)
_LANGUAGE_KEPT = {name: _BUILTINS[name] for name in _LANGUAGE}
_FUNCTIONS = [
    (f"{module.__name__}.{name}", vars(module), name, getattr(module, name), works)
    for module, names in _NEEDED.items()
    for name, works in names.items()
]


def _look(names: dict[str, Any], needed: Iterable[str]) -> tuple[Any, ...]:
    """How to take in all the needed names of a module at once, and what stands there."""
    look = itemgetter(*needed, "__name__", "__doc__")  # of a single name it gives no tuple
    return look, names, look(names)


_LOOKS = [_look(_BUILTINS, _LANGUAGE), *(_look(vars(module), names) for module, names in _NEEDED.items())]
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MAIN_THREAD = threading.main_thread().ident
_MODULES = sys.modules
_INSTALLED = {*sysconfig.get_paths().values(), str(Path(__file__).parents[3])}
_IMPORTERS = ("_frozen_importlib", "_frozen_importlib_external", "zipimport")
_SEARCHED: dict[str, list[Any]] = {
    "path": [
        path for path in sys.path if path in _INSTALLED or path.startswith(sysconfig.get_path("stdlib"))
    ],
    "meta_path": [finder for finder in sys.meta_path if getattr(finder, "__module__", "") in _IMPORTERS],
    "path_hooks": [hook for hook in sys.path_hooks if getattr(hook, "__module__", "") in _IMPORTERS],
}
"""By what Python finds its own modules and those that are installed, by the name in ``sys``."""
_searched: list[list[Any]] = [[*sys.path], [*sys.meta_path], [*sys.path_hooks]]
"""All of it, when it was last found whole."""
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
        # a copy is made at once; in the midst of a list of items others may be collected, and threads import
        _seen = {name: module for name, module in _MODULES.copy().items() if _is_whole(module)}
    handlers = (getsignal(signal.SIGINT), getsignal(signal.SIGTERM))
    return Footing(getpid(), sys.getrecursionlimit(), (sys.stdout, sys.stderr), handlers, _alarm())


def last_called() -> str | None:
    """The tool or reward that was called last in this process."""
    return f"after {_called[0]} was called" if _called[0] else None


def put_back(before: Footing) -> list[str]:
    """Put back what was broken since ``before``; returns its names.

    A child process that was forked since ends here, before it needs what other threads held when it was made:
    that stays locked in it for ever.
    """
    end_if_forked(before.process)
    broken = [] if _are_as_they_were() else _put_back_functions()
    if sys.modules is not _MODULES or len(_MODULES) < len(_seen):
        broken += _put_back_modules()
    if not _is_searched():
        broken += _put_back_search()
    if sys.getrecursionlimit() < before.recursion_limit:
        sys.setrecursionlimit(before.recursion_limit)
        broken.append("the recursion limit")
    if not before.alarm and _alarm():
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        broken.append("the alarm clock")
    if put_back_umask():
        broken.append("the umask")
    broken += reopen_streams(before.streams)
    if threading.get_ident() == _MAIN_THREAD:
        for number, handler in zip(_SIGNALS, before.handlers, strict=True):
            if callable(handler) and getsignal(number) is not handler:
                broken += _put_back_handler(number, handler)
    return broken


def _put_back_handler(number: signal.Signals, before: Any) -> list[str]:
    """Put back the run's own, or one that was there ``before`` a call where none is now."""
    own, present = own_handler(number), getsignal(number)
    if present is own or (own is None and callable(present)):
        return []
    signal.signal(number, own or before)
    return [f"the handler of {number.name}"]


def _is_searched() -> bool:
    """Whether imports look where they did; a bundle may have them look elsewhere as well."""
    try:
        if [sys.path, sys.meta_path, sys.path_hooks] == _searched:
            return True
        for name, entries in _SEARCHED.items():
            present = getattr(sys, name)
            if present.__class__ is not list:
                return False
            for entry in entries:
                if entry not in present:
                    return False
        _searched[:] = [[*sys.path], [*sys.meta_path], [*sys.path_hooks]]
    except:  # noqa: E722 - it is gone, or foreign code was compared
        return False
    return True


def _put_back_search() -> list[str]:
    broken = []
    for name, entries in zip(_SEARCHED, _searched, strict=True):
        present = getattr(sys, name, None)
        kept = present if isinstance(present, list) else []
        if name == "path":
            kept = [entry for entry in kept if isinstance(entry, str)]
        missing = [entry for entry in entries if not any(entry is other or entry == other for other in kept)]
        if missing or kept is not present:
            setattr(sys, name, [*kept, *missing])
            broken.append(f"sys.{name}")
    return broken


def _alarm() -> float:
    """Seconds until the process gets SIGALRM, which ends it; 0 for never."""
    return signal.getitimer(signal.ITIMER_REAL)[0] if sys.platform != "win32" else 0.0


def _are_as_they_were() -> bool:
    try:
        for look, names, values in _LOOKS:
            if look(names) != values:
                return False
    except:  # noqa: E722 - a name is gone, perhaps that of the exception, or foreign code was compared
        return False
    return True


def _put_back_functions() -> list[str]:
    """Put back those of the language, without any of them, and what does not do its work; gives the names."""
    broken = []
    for name, value in _LANGUAGE_KEPT.items():
        if _BUILTINS.get(name) is not value:
            _BUILTINS[name] = value
            broken.append("builtins." + name)
    for full, names, name, function, works in _FUNCTIONS:
        present = names.get(name)
        if present is not function and not _does_its_work(present, works):
            names[name] = function
            broken.append(full)
    return broken


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
