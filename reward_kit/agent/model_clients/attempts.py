"""Asking a model again where that may help."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from reward_kit.agent.deadline import held_up
from reward_kit.agent.providers.caller import current_caller
from reward_kit.agent.providers.visit import Visit
from reward_kit.errors import ModelError, ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reward_kit.agent.completion import Completion
    from reward_kit.agent.providers.gate import Gate

    Attempt = Callable[[], Awaitable[Completion | ModelError]]

BAD_REQUEST = frozenset({400, 422})

LONGEST_WAIT = 60.0
"""Seconds; a provider that asks to wait longer is asked again after this."""

_chance = random.SystemRandom()


async def answered(
    attempt: Attempt, *, retries: int, backoff: float, gate: Gate | None = None, size: int = 0
) -> Completion:
    """What the first successful attempt gives, with the seconds that all took, waiting at the gate apart.

    An attempt returns its fault, because whether to raise it is decided here: one that may pass is raised
    after ``retries`` further attempts. Each attempt goes through the ``gate``, which knows what other calls
    have met: one that failed because nobody should have asked just then is no retry (unless there are
    none at all). A bad request is a ``ModelSetupError`` as long as the gate has seen no answer. ``size`` is
    the number of characters of the request, where the gate wants to know it.
    """
    visit = Visit(size, current_caller())
    loop = asyncio.get_running_loop()
    began = loop.time()
    made = 0
    answer = await _through(gate, visit, attempt)
    while isinstance(answer, ModelError):
        excused = gate is not None and gate.failed(visit, answer)
        if not answer.retryable or (made >= retries and not (excused and retries)):
            raise answer if gate is None or gate.proven else _for_all(answer)
        if not excused:
            asked = answer.retry_after if gate is None else None  # a gate sees to it by itself
            await asyncio.sleep(_wait(made, backoff, asked))
            made += 1
        answer = await _through(gate, visit, attempt)
    if gate is not None:
        gate.left(visit, answer)
    answer.waited = visit.waited
    answer.seconds = loop.time() - began - visit.waited
    return answer


def _for_all(fault: ModelError) -> ModelError:
    """What a fault means where no call has been answered yet: a bad request comes of a wrong set-up."""
    if fault.status not in BAD_REQUEST or type(fault) is not ModelError:
        return fault
    error = ModelSetupError(
        fault.fault,
        place=fault.place,
        remedy="No call has been answered yet: check --model-arg and what the model takes.",
        status=fault.status,
    )
    error.__cause__ = fault
    return error


async def _through(gate: Gate | None, visit: Visit, attempt: Attempt) -> Completion | ModelError:
    """One attempt, once the gate lets it through; one that is cancelled leaves its place to others."""
    if gate is None:
        return await attempt()
    await gate.enter(visit)
    try:
        if gate.is_trying(visit):
            with held_up():
                return await attempt()
        return await attempt()
    except BaseException:
        gate.left(visit)
        raise


def _wait(made: int, backoff: float, retry_after: float | None) -> float:
    """Seconds until the next attempt: exponential backoff, full jitter, plus what the provider asks."""
    spread = _chance.uniform(0.0, backoff * 2**made)
    return min(LONGEST_WAIT, (retry_after or 0.0) + spread)
