"""Calling a task's reward: ``evaluate(messages=…, db=…, **row fields, gold_db=…, rollout=…)``."""

from __future__ import annotations

import asyncio
import inspect
import math
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from reward_kit.agent.base.deadline import OutOfTimeError, TimeLimit, bounded
from reward_kit.agent.base.encoding import copied, plain
from reward_kit.agent.base.network import CONNECTION_LOST, RETRYABLE_STATUS, backoff, chain, retry_after
from reward_kit.agent.base.places import MissingAwaitError, PendingLog, ends_task, fault_line, place_of
from reward_kit.agent.base.text import cut
from reward_kit.agent.base.worker_thread import in_thread
from reward_kit.agent.database import ReadOnlyDatabase
from reward_kit.errors import RewardError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractContextManager

    from reward_kit.agent.database import Database
    from reward_kit.models import EvaluateResult, RewardOutput

T = TypeVar("T")

LONGEST_REASON = 300
"""Characters of why a score is not valid, in the error."""
EXPECTED = "expected an EvaluateResult, RewardOutput or a dict with 'score'"


class _Signature(NamedTuple):
    """Facts about a reward: the place where it was written, and its parameters."""

    place: str
    is_async: bool
    names: frozenset[str]
    needed: frozenset[str]
    takes_all: bool


@lru_cache(maxsize=256)
def _signature_of(reward: Callable[..., Any]) -> _Signature:
    inner = inspect.unwrap(reward)
    parameters = inspect.signature(reward).parameters
    kinds = [one.kind for one in parameters.values()]
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    required = [one for one in parameters.values() if one.default is one.empty and one.kind not in variable]
    return _Signature(
        place=place_of(reward),
        is_async=inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__),
        names=frozenset(parameters),
        needed=frozenset([one.name for one in required]),
        takes_all=inspect.Parameter.VAR_KEYWORD in kinds,
    )


def takes_async_faces(reward: Callable[..., Any]) -> bool:
    """True for an ``async def`` reward, which gets the async views of the databases."""
    return _signature_of(reward).is_async


def names_argument(reward: Callable[..., Any], name: str) -> bool:
    """True if the reward has a parameter of this name."""
    return name in _signature_of(reward).names


def view_for(reward: Callable[..., Any], database: Database | None, fault: str | None = None) -> Any:
    """The read-only view that a reward gets of a database: an ``async def`` reward the async one."""
    if fault is not None:
        return UnknownDatabase(fault)
    if database is None:
        return None
    return database.read_only_async() if takes_async_faces(reward) else database.read_only()


class UnknownDatabase(ReadOnlyDatabase):
    """A ``gold_db`` that is not known because of a ``fault``: every use by a reward raises it."""

    pending_log = None

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def __getattr__(self, name: str) -> Any:
        raise RewardError(f"gold_db is not known, because of {self._fault}", remedy="Correct the action.")


async def call_reward(
    reward: Callable[..., Any],
    given: Mapping[str, Any],
    *,
    timeout: float | None = None,
    watched: AbstractContextManager[None] | None = None,
) -> EvaluateResult | RewardOutput:
    """Call a reward with copies of those ``given`` arguments that it takes; raises as ``judge``."""
    signature = _signature_of(reward)
    place = signature.place
    if missing := signature.needed - given.keys():
        raise RewardError(
            f"needs {', '.join(sorted(missing))}, which the row does not give",
            place=place,
            remedy="Add the field to the row, or give the parameter a default.",
        )
    taken = given if signature.takes_all else {name: given[name] for name in given if name in signature.names}
    try:
        call = partial(_with_copies, reward, taken)
        log = PendingLog()
        for view in map(taken.get, ("db", "gold_db")):
            if view is not None and hasattr(view, "pending_log"):
                view.pending_log = log
        with log:
            if signature.is_async:
                result = await _in_own_task(call(), timeout, watched)
            else:
                with TimeLimit(timeout):
                    result = await in_thread(call)
                if inspect.isawaitable(result):  # a plain wrapper around an async function
                    result = await _in_own_task(result, timeout, watched)
        log.check()
        return checked_result(result, place)
    except OutOfTimeError:
        raise RewardError(f"took longer than {timeout:g} s", place=place) from None
    except MissingAwaitError as error:
        raise RewardError(error.fault, place=error.place or place, remedy=error.remedy) from None
    except RewardError:
        raise
    except BaseException as error:  # the border to the reward's code
        if ends_task(error):
            raise
        if isinstance(error, asyncio.CancelledError):
            raise RewardError("cancelled the task that it runs in (CancelledError)", place=place) from error
        fault = _result_fault(error.__context__) if isinstance(error, ValueError) else None
        remedy = "Where there may be no row, ask with scalar() or first(): it gives None then."
        raise RewardError(
            fault or f"raised {fault_line(error)}",
            place=place,
            remedy=remedy if type(error).__name__ == "NoResultFound" else None,
        ) from error


def _with_copies(reward: Callable[..., T], given: Mapping[str, Any]) -> T:
    """Call ``reward``; copies are made no sooner, since many rollouts may wait for a thread."""
    views = {name: given[name] for name in ("db", "gold_db", "rollout") if name in given}
    return reward(**copied({name: given[name] for name in given if name not in views}), **views)


async def _in_own_task(
    work: Awaitable[T], timeout: float | None, watched: AbstractContextManager[None] | None
) -> T:
    """The result of a reward's own coroutine; abandoned if it ignores its cancellation."""

    async def outcome() -> T:
        with watched or nullcontext():
            return await work

    task, in_time = await bounded(outcome(), timeout)
    if not in_time:
        raise OutOfTimeError
    return task.result()


# --- the result: a finite score, valid by its own account, that JSON can hold


def checked_result(result: Any, place: str) -> EvaluateResult | RewardOutput:
    """The result of the reward at ``place``; raises ``RewardError`` if it is no valid result."""
    from reward_kit.models import EvaluateResult, RewardOutput

    is_plain = False
    if isinstance(result, dict):
        try:
            result = EvaluateResult.model_validate(result)
            is_plain = not (result.metrics or result.step_outputs)  # pydantic has checked the rest
        except ValueError as error:
            raise RewardError(_result_fault(error) or str(error), place=place) from None
    if not isinstance(result, EvaluateResult | RewardOutput):
        raise RewardError(f"returned {_shown(result)}, {EXPECTED}", place=place)
    score: Any = result.score
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise RewardError(f"returned the score {_shown(score)}, not a finite number", place=place)
    if score.__class__ is not float:
        result.score = float(score)
    numbers = [(f"the metric {name!r}", metric.score) for name, metric in result.metrics.items()]
    steps = getattr(result, "step_outputs", None) or ()
    numbers += [(f"the base_reward of step {one.step_index!r}", one.base_reward) for one in steps]
    for name, number in numbers:
        if not math.isfinite(number):
            remedy = "Leave it out where there is none: means are over the rollouts that have it."
            raise RewardError(f"returned {name} of {number}, not a finite number", place=place, remedy=remedy)
    if isinstance(result, EvaluateResult) and (result.error or not result.is_score_valid):
        why = " ".join((result.error or result.reason or "").split())
        reason = f": {cut(why, LONGEST_REASON)}" if why else ""
        raise RewardError(f"says that its score is not valid{reason}", place=place)
    try:
        if not is_plain:
            plain(_dumped(result))
    except (TypeError, ValueError, RecursionError) as error:
        fault = f"returned a result that cannot be written as JSON: {type(error).__name__}: {error}"
        raise RewardError(fault, place=place) from None
    return result


def plain_result(result: EvaluateResult | RewardOutput) -> dict[str, Any]:
    """The object that a reward returned, as JSON values."""
    returned: dict[str, Any] = plain(_dumped(result), strict=False)
    return returned


def _dumped(result: EvaluateResult | RewardOutput) -> dict[str, Any]:
    from reward_kit.models import RewardOutput

    return result.to_dict() if isinstance(result, RewardOutput) else result.model_dump()


def _result_fault(error: BaseException | None) -> str | None:
    """One line on the faults of a result, or of its fields; None for any other error."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError) or error.title != "EvaluateResult":
        return None
    faults = []
    for fault in error.errors(include_url=False, include_context=False):
        field = ".".join(map(str, fault["loc"]))
        if not field or (field == "score" and fault["type"] == "missing"):
            return f"returned {_shown(fault['input'])}, {EXPECTED}"
        found = "missing" if fault["type"] == "missing" else f"{_shown(fault['input'])}: {fault['msg']}"
        faults.append(f"{field!r} is {found}")
    return f"returned a dict that is no result: {'; '.join(faults)}"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # its own code raises, or it is a number of too many digits
        text = object.__repr__(value)
    return "None" if value is None else f"{cut(text, 80)} ({type(value).__name__})"


# --- repeated calls


async def judged_with_retries(judging: Callable[[], Awaitable[T]], retries: int) -> T:
    """The result of ``judging()``, called up to ``retries`` more times after errors that may pass.

    Between the calls lie one, two, four and so on seconds (up to half of it less, at random), or what the
    server asked for, a minute at most. Raises the last ``RewardError``, and at once one that does not pass.
    """
    for attempt in range(1, retries + 1):
        try:
            return await judging()
        except RewardError as error:
            behind = list(chain(error.__cause__))
            if not any(map(_may_pass, behind)):
                raise
            pause = backoff(attempt, asked=max(map(_asked_pause, behind)))
        await asyncio.sleep(pause)
    return await judging()


def _may_pass(error: BaseException) -> bool:
    """True if a connection was lost, or if the answer (of any client) says to come again."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if any(kind.__name__ in CONNECTION_LOST for kind in type(error).__mro__):
        return True
    holders = ((error, "status_code"), (error, "status"), (_response(error), "status_code"), (error, "code"))
    statuses = (getattr(holder, name, None) for holder, name in holders)
    return next((status for status in statuses if isinstance(status, int)), None) in RETRYABLE_STATUS


def _asked_pause(error: BaseException) -> float:
    """Seconds to wait that the answer asks for; 0 if it does not."""
    headers = getattr(_response(error), "headers", None) or getattr(error, "headers", None)
    try:
        return retry_after(headers or {}) or 0.0
    except (TypeError, ValueError, AttributeError):  # whatever a client keeps under this name
        return 0.0


def _response(error: BaseException) -> Any:
    return getattr(error, "response", None)
