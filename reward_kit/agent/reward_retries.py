"""Judging again where a reward failed for a reason that passes: a server it asks is busy or not there."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, TypeVar

from reward_kit.agent.schedule import LONGEST_BACKOFF, backoff
from reward_kit.errors import RewardError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

LONGEST_CHAIN = 10
"""Errors that led to one another; foreign code may have made a ring of them."""

_chance = random.SystemRandom()


async def judged_with_retries(judging: Callable[[], Awaitable[T]], retries: int) -> T:
    """What ``judging()`` gives, called up to ``retries`` times more after errors that pass.

    Between them lie seconds: one, two, four and so on (up to half of it less, at random), or what the server
    asked for, a minute at most. Raises the last ``RewardError``, and at once one that does not pass.
    """
    for attempt in range(1, retries + 1):
        try:
            return await judging()
        except RewardError as error:
            faults = _chain(error)
            if not any(map(_passes, faults)):
                raise
            asked = max((_asked_pause(fault) for fault in faults), default=0.0)
            pause = max(backoff(attempt, _chance), min(asked, LONGEST_BACKOFF))
        await asyncio.sleep(pause)
    return await judging()


def _chain(error: BaseException) -> list[BaseException]:
    """What the reward raised, and what that came of: clients put errors of their own over those of others."""
    found: list[BaseException] = []
    waiting = [error.__cause__]
    while waiting and len(found) < LONGEST_CHAIN:
        inner = waiting.pop(0)
        if inner is None:
            continue
        found.append(inner)
        # also where it is hidden (`from None`), as httpx does with what the connection raised
        waiting.append(inner.__context__ if inner.__cause__ is None else inner.__cause__)
        group = _of(inner, "exceptions")
        if isinstance(group, tuple | list):
            waiting += [one for one in group if isinstance(one, BaseException)]
    return found


def _passes(error: BaseException) -> bool:
    """Whether a connection or an answer is missing, or the answer (of whatever client) says to come again."""
    from reward_kit.agent.model_clients.connection_faults import CONNECTION_LOST
    from reward_kit.agent.model_clients.litellm_errors import RETRYABLE_STATUS

    if isinstance(error, ConnectionError | TimeoutError | asyncio.TimeoutError):
        return True
    if any(kind.__name__ in CONNECTION_LOST for kind in type(error).__mro__):
        return True
    answer = _of(error, "response")
    places = ((error, "status_code"), (error, "status"), (error, "code"), (answer, "status_code"))
    statuses = [_of(holder, name) for holder, name in places]
    return any(isinstance(status, int) and status in RETRYABLE_STATUS for status in statuses)


def _asked_pause(error: BaseException) -> float:
    """Seconds to wait that the answer asks for; 0 where it does not."""
    from reward_kit.agent.providers.headers import retry_after

    headers = _of(_of(error, "response"), "headers") or _of(error, "headers")
    try:
        return retry_after(headers) or 0.0
    except Exception:  # noqa: BLE001 - whatever a foreign error holds under this name
        return 0.0


def _of(holder: Any, name: str) -> Any:
    """An attribute of a foreign object; None where it has none."""
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - code of its own
        return None
