"""The error for a run that is broken off by what is neither an error of this package nor a person's wish."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import warnings
from contextlib import contextmanager, suppress
from os import getpid
from typing import TYPE_CHECKING, NoReturn

from reward_kit.agent.bundles.footing import last_called
from reward_kit.agent.bundles.ground import INTERRUPTED, end_process
from reward_kit.agent.bundles.loose_ends import threads_told_in_one_line
from reward_kit.agent.faults import fault_line
from reward_kit.errors import BundleError, RewardKitError

if TYPE_CHECKING:
    from collections.abc import Iterator

REMEDY = (
    "Tools, rewards and agents must leave what is not theirs alone: --debug shows where it broke, "
    "--workers 2 has such code cost its own rollout alone."
)


def broken_off(error: BaseException | None) -> BundleError:
    """What to raise for ``error``; None where the tasks of the evaluation were cancelled."""
    if error is None or isinstance(error, asyncio.CancelledError):
        fault = "code of the bundle or of the agent cancelled the tasks that the evaluation runs in"
    else:
        fault = f"the evaluation was broken off: {fault_line(error)}"
    return BundleError(fault, place=last_called(), remedy=REMEDY)


@contextmanager
def kept_process() -> Iterator[None]:
    """Around the run of a command: its end is its own.

    ``os._exit`` raises ``SystemExit`` meanwhile: an evaluation that ended so, with exit code 0, would pass
    for done. Whatever else ends it is told as an error with a place. Finders of modules that are gone are put
    back; those that came stay, but behind, since Python's own defer to some that libraries bring along.
    """
    finders, leave, process = list(sys.meta_path), os._exit, getpid()

    def refuse_to_leave(status: int) -> NoReturn:
        if getpid() != process:
            leave(status)
        raise SystemExit(f"os._exit({status!r})")

    os._exit = refuse_to_leave
    try:
        with _told_in_one_line(), threads_told_in_one_line():
            yield
    finally:
        os._exit = leave
        sys.meta_path[:] = {id(finder): finder for finder in [*finders, *sys.meta_path]}.values()


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    """Whatever ends it is told as an error with a place.

    What Python has to say of the ruins (tasks that nobody ends any more) is kept to itself.
    """
    try:
        yield
    except KeyboardInterrupt:
        _end_at_once_if_interrupted_again()
        raise
    except (RewardKitError, SystemExit, GeneratorExit, BrokenPipeError):
        raise
    except BaseException as error:
        sys.unraisablehook = lambda _: None
        warnings.simplefilter("ignore")
        logging.getLogger("asyncio").disabled = True
        raise broken_off(error) from error


def _end_at_once_if_interrupted_again() -> None:
    """A second Ctrl-C would come in the midst of Python's own leaving, which shows a traceback."""
    with suppress(ValueError):  # only the main thread can handle signals
        signal.signal(signal.SIGINT, lambda *_: end_process(INTERRUPTED))
