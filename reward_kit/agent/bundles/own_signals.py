"""What this package does on a signal while a run lasts; a process that other code has forked does it not.

Such a process is ended by signals (``multiprocessing`` does so), and has the handlers that it would have if
there were no run.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    _Handler = Callable[[int, FrameType | None], None]


class _Handled(NamedTuple):
    number: signal.Signals
    own: _Handler
    before: Any


_handled: list[_Handled] = []
"""Those of runs that last; the latest, which are in force, at the end."""
_masks: dict[int, set[int]] = {}
"""By threads that fork, the signals that come to nobody there."""


@contextmanager
def signals_handled(handle: Callable[[], None], *numbers: signal.Signals) -> Iterator[None]:
    """Meanwhile ``handle`` is called on these signals. Nothing is done outside of the main thread."""

    def handle_own(_number: int, _frame: FrameType | None) -> None:
        handle()

    kept = len(_handled)
    if threading.current_thread() is threading.main_thread():
        _handled.extend(_Handled(one, handle_own, signal.signal(one, handle_own)) for one in numbers)
    try:
        yield
    finally:
        for number, _, before in reversed(_handled[kept:]):
            _put_in_force(number, before)
        del _handled[kept:]


def own_handler(number: int) -> _Handler | None:
    """What is in force for this signal while a run lasts that minds it."""
    return next((one.own for one in reversed(_handled) if one.number == number), None)


def _hold() -> None:
    """Before a fork: signals to the child wait until it has given up our handlers; some would be lost."""
    if _handled:
        numbers = {one.number for one in _handled}
        _masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)


def _release() -> None:
    mask = _masks.pop(threading.get_ident(), None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _give_up() -> None:
    """In a child: put back what was there before the run, unless other code has put something else there."""
    for number, own, before in reversed(_handled):
        if signal.getsignal(number) is own:
            _put_in_force(number, before)
    _handled.clear()
    _release()


def _put_in_force(number: signal.Signals, handler: Any) -> None:
    signal.signal(number, signal.SIG_DFL if handler is None else handler)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_give_up)
