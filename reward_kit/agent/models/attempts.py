"""The retry loop of a model call."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from reward_kit.agent.base.network import LONGEST_WAIT
from reward_kit.agent.models.limiter import Call
from reward_kit.errors import ModelError, ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reward_kit.agent.base.types import Completion
    from reward_kit.agent.models.caller import Caller
    from reward_kit.agent.models.limiter import Limiter

    Attempt = Callable[[], Awaitable[Completion | ModelError]]

BAD_REQUEST = frozenset({400, 422})

_random = random.SystemRandom()


async def ask(
    attempt: Attempt,
    *,
    retries: int,
    backoff: float,
    limiter: Limiter | None = None,
    size: int = 0,
    caller: Caller | None = None,
) -> Completion:
    """The answer of the first successful attempt, with the seconds of all; raises ``ModelError``.

    An attempt returns its error, because this loop decides if it is raised: one that may pass is raised after
    ``retries`` further attempts. Each attempt goes through the ``limiter``, which knows how other calls fare:
    one that failed for a limit or an outage is no retry (unless ``retries`` is 0). A bad request is a
    ``ModelSetupError`` as long as the limiter has seen no answer. ``size`` is the number of characters of the
    request, where ``limiter.wants_size``.
    """
    call = Call(size, caller)
    loop = asyncio.get_running_loop()
    began = loop.time()
    made = 0
    while isinstance(answer := await _attempted(limiter, call, attempt), ModelError):
        excused = limiter is not None and limiter.failed(call, answer)
        if not answer.retryable or (made >= retries and not (excused and retries)):
            raise answer if limiter is None or limiter.proven else _for_all(answer)
        if not excused:
            asked = (answer.retry_after or 0.0) if limiter is None else 0.0
            await asyncio.sleep(min(LONGEST_WAIT, asked + _random.uniform(0.0, backoff * 2**made)))
            made += 1
    if limiter is not None:
        limiter.answered(call, answer)
    answer.waited = call.waited
    answer.seconds = loop.time() - began - call.waited
    return answer


def _for_all(fault: ModelError) -> ModelError:
    """A bad request before any call has been answered: the set-up is wrong."""
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


async def _attempted(limiter: Limiter | None, call: Call, attempt: Attempt) -> Completion | ModelError:
    """One attempt, once the limiter lets it through; it ends early if the provider is given up."""
    if limiter is None:
        return await attempt()
    await limiter.enter(call)
    call.attempt = asyncio.ensure_future(attempt())
    try:
        if limiter.is_trying(call):
            with call.caller.held():
                return await call.attempt
        return await call.attempt
    except asyncio.CancelledError:
        limiter.cancelled(call)
        if limiter.given_up is not None and call.attempt.cancelled():
            raise limiter.given_up from None
        raise
    except BaseException:
        limiter.cancelled(call)
        raise
    finally:
        call.attempt = None
