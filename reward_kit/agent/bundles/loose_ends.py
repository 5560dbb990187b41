"""What tasks and threads raise that a bundle's code has started and nobody waits for, in one line each."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from reward_kit.agent.cut_text import tamed
from reward_kit.agent.faults import fault_line, is_of_foreign_code
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

_told: set[str] = set()


def tell_of_task(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle what an event loop has to say, as ``loop.set_exception_handler`` takes it."""
    error = context.get("exception")
    if isinstance(error, asyncio.CancelledError):
        return  # a gather() that nobody waits for, cancelled
    if "future" not in context or error is None or not tell("a task", error):
        loop.default_exception_handler(context)


@contextmanager
def threads_told_in_one_line() -> Iterator[None]:
    """What threads raise meanwhile is told in one line."""
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is None or not tell("a thread", args.exc_value):
            before(args)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before


def tell(who: str, error: BaseException) -> bool:
    """Whether it is told: each fault once, and that a rollout was over already not at all."""
    from reward_kit.agent.rollout import RolloutStopped

    if isinstance(error, RolloutStopped):
        return True
    if not isinstance(error, RewardKitError) and not is_of_foreign_code(error):
        return False
    line = f"warning: {who} that nobody waits for failed: {fault_line(error)}"
    logger.debug("%s", line, exc_info=error)
    if line not in _told and sys.stderr is not None:
        _told.add(line)
        sys.stderr.write(f"{tamed(line)}\n")  # in one piece: others may write as well
    return True
