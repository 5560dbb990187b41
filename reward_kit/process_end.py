"""The end of a process in which other people's code has run: Python might wait for it for ever."""

from __future__ import annotations

import atexit
import gc
import io
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

GRACE = 3.0
"""Seconds that threads of other people's code have to end after the work is done."""
GRACE_AT_EXIT = 30.0
"""Seconds that what was registered with ``atexit`` has: libraries send there what they have gathered."""


def end_in_time(code: int, tell: Callable[[str], None]) -> None:
    """See to it that the process, which is about to end, does so with ``code``; ``tell`` is given warnings.

    Python waits for threads that are no daemons, and for what they register with ``atexit``, for ever if need
    be.
    """
    left = [thread for thread in threading.enumerate() if not thread.daemon]
    left.remove(threading.main_thread())

    def end() -> None:
        if left:
            time.sleep(GRACE)
            names = ", ".join(thread.name for thread in left if thread.is_alive())
            tell(f"Warning: threads are left behind that did not end: {names}")
            threading.Thread(target=leave, name="leave", daemon=True).start()
            atexit._run_exitfuncs()  # noqa: SLF001 - temporary folders are removed there, os._exit would not
            os._exit(code)
        leave()

    def leave() -> None:
        time.sleep(GRACE_AT_EXIT)
        tell("Warning: what was registered with atexit did not end")
        os._exit(code)

    threading.Thread(target=end, name="end", daemon=True).start()


def leave_memory_to_the_system() -> None:
    """Spare Python its last looks for garbage: a tenth of a second, and a whole one where LiteLLM is loaded.

    Objects in cycles are then not finalised any more; files among them would lose what is not written yet.
    """
    for found in gc.get_objects():
        if issubclass(type(found), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            with suppress(Exception):
                found.flush()
    gc.freeze()
