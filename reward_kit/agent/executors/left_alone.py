"""Ending a process that nobody listens to any more, even where its Python stands still."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress

from reward_kit.agent.own_pipes import keep_from_children

MOST_FILES = 256
"""A process that has just begun has no descriptor with a higher number."""


def end_when_left_alone(given: int, grace: float) -> None:
    """Have this process ended ``grace`` seconds after nobody holds the other end of the pipe ``given``.

    Code in C, a regular expression that goes back and forth for instance, may keep Python's lock for ever, so
    that no thread of the process could do it: another process does. Call it before there are threads.
    """
    if not hasattr(os, "fork"):
        return
    process = os.getpid()
    alive, kept = os.pipe()  # never closed: the system does it when this process ends
    between = os.fork()
    if between:
        keep_from_children(kept)
        os.close(alive)
        os.waitpid(between, 0)
        return
    try:
        if os.fork() == 0:  # a child of this process's child: tools wait for children of their own alone
            os.close(kept)
            _watch(process, given, alive, grace)
    finally:
        os._exit(0)


def _watch(process: int, given: int, alive: int, grace: float) -> None:
    for number in {*range(MOST_FILES)} - {given, alive}:
        with suppress(OSError):
            os.close(number)
    both = select.poll()
    for end in (given, alive):
        both.register(end, 0)  # heeds nothing but that the other end is closed
    both.poll()
    both.unregister(given)
    deadline = time.monotonic() + grace
    while (left := deadline - time.monotonic()) > 0:
        if both.poll(left * 1000):
            return
    os.kill(process, signal.SIGKILL)
