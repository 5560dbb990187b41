"""Calling a task's reward on a finished rollout."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from reward_kit.agent.bundles.awaits import Awaits
from reward_kit.agent.bundles.footing import footing, put_back
from reward_kit.agent.bundles.loop_guard import guarded_task, loop_kept_running
from reward_kit.agent.bundles.unawaited import MissingAwaitError
from reward_kit.agent.cut_text import cut
from reward_kit.agent.faults import class_name, fault_line, place_of
from reward_kit.agent.interruption import is_ctrl_c
from reward_kit.agent.limits import CANCELLATION_GRACE
from reward_kit.agent.runs.atomic_file import compact_json
from reward_kit.agent.shown_rollout import ShownRollout
from reward_kit.agent.strict_json import copied
from reward_kit.agent.tools.execution import is_cancelled, is_closed
from reward_kit.agent.worker_thread import Pace, in_thread
from reward_kit.errors import RewardError, RewardKitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeGuard

    from pydantic import ValidationError

    from reward_kit.agent.database import Database
    from reward_kit.agent.rollout import Rollout
    from reward_kit.models import EvaluateResult, RewardOutput


LONGEST_REASON = 300
"""Characters of why a score is not valid, in the error."""
EXPECTED = "expected an EvaluateResult, RewardOutput or a dict with 'score'"


async def judge(
    rollout: Rollout, *, gold_database: Database | None = None, timeout: float | None = None
) -> EvaluateResult | RewardOutput:
    """Call ``evaluate(messages=…, db=…, **row fields, gold_db=…, rollout=…)`` and check what comes back.

    A ``def`` reward runs in a thread of its own, so that one that waits for a network does not hold up other
    rollouts, and holds the sync read-only database; an ``async def`` reward holds the async one. A function
    gets only the arguments it names, unless it takes ``**kwargs``. ``gold_database`` may be that of many
    rollouts: each reward reads it over a connection of its own. Raises ``RewardError`` if it raises, returns
    something else than a finite score, or one that is not valid by its own account, or takes longer than
    ``timeout`` seconds.
    """
    reward = rollout.task.reward
    is_async = takes_async_faces(reward)
    gold = None if gold_database is None else gold_database.reader()
    shown = ShownRollout(rollout)

    def given() -> dict[str, Any]:
        return {
            **copied(rollout.row.reward_fields()),
            "messages": copied(rollout.messages),
            "db": _face(rollout.database, is_async=is_async),
            "gold_db": None if gold is None else _face(gold, is_async=is_async),
            "rollout": shown,
        }

    try:
        return await call_reward(reward, given, timeout=timeout)
    finally:
        shown.hand_over_usage()
        if gold is not None:
            gold.close()


def takes_async_faces(reward: Callable[..., Any]) -> bool:
    """Whether the reward is an ``async def``, which holds the async faces of the databases."""
    inner = inspect.unwrap(reward)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)


def import_for(rewards: Iterable[Callable[..., Any]]) -> None:
    """Import what queries of ``def`` rewards answer with.

    That takes long, and in the midst of rollouts some tool may just have broken what imports need.
    """
    for reward in rewards:
        code = getattr(inspect.unwrap(reward), "__code__", None)
        if "execute" in getattr(code, "co_names", ()) and not takes_async_faces(reward):
            import reward_kit.agent.database.sqlalchemy_result  # noqa: F401

            return


def names_argument(reward: Callable[..., Any], name: str) -> bool:
    """Whether the reward has a parameter of this name."""
    return name in _known(reward).parameters


async def call_reward(
    reward: Callable[..., Any], given: Callable[[], dict[str, Any]], *, timeout: float | None = None
) -> EvaluateResult | RewardOutput:
    """Call a reward with those of the ``given()`` arguments that it takes.

    They are asked for when its turn has come: of many rollouts that end together, one has its arguments in
    memory. Raises ``RewardError`` as ``judge``.
    """
    is_async, known = takes_async_faces(reward), _known(reward)
    with loop_kept_running():
        raised: list[BaseException] = []
        running = guarded_task(_outcome(reward, given, None if is_async else known.pace, raised))
    try:
        done, _ = await asyncio.wait({running}, timeout=timeout)
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait({running}, timeout=CANCELLATION_GRACE)
    if not done:
        raise RewardError(f"took longer than {timeout:g} s", place=known.place)
    for error in raised:
        raise error if isinstance(error, _ToldError) else _raised(error, known.place)
    if running.cancelled():
        raise RewardError("cancelled the task that it runs in (CancelledError)", place=known.place)
    result: EvaluateResult | RewardOutput = running.result()
    return result


class _ToldError(RewardError):
    """What is wrong is told already."""


class _UnfitError(_ToldError):
    """What the reward returned is no result."""


_REMEDIES = {"NoResultFound": "Where there may be no row, ask with scalar() or first(): it gives None then."}
"""By the class of what the reward raised."""


def _raised(error: BaseException, place: str) -> RewardError:
    """What to raise where the reward raised ``error``; its ``__str__`` is the reward's own code."""
    if isinstance(error, MissingAwaitError):
        return _ToldError(error.fault, place=error.place or place, remedy=error.remedy)
    context = error.__context__
    fault = _unfit(context) if isinstance(error, ValueError) and _is_of_result(context) else None
    remedy = _REMEDIES.get(class_name(error))
    told = _ToldError(fault or f"raised {fault_line(error)}", place=place, remedy=remedy)
    told.__cause__ = error
    return told


async def _outcome(
    reward: Callable[..., Any],
    given: Callable[[], dict[str, Any]],
    pace: Pace | None,
    raised: list[BaseException],
) -> Any:
    """The result of the reward; ``pace`` is that of a ``def`` reward.

    It runs in a task of its own, which an ``async def`` reward may cancel or keep from ending. What it raises
    is added to ``raised``, which outlasts that: a ``TimeoutError`` of the reward's own is no timeout of ours,
    and a ``SystemExit`` that leaves a task ends the event loop.
    """
    place = _known(reward).place
    task, before = asyncio.current_task(), footing(f"the reward {place}")

    def called() -> Any:
        try:
            returned = call()
        except (Exception, SystemExit) as error:
            put_back(before)
            raise _raised(error, place) from error
        finally:
            put_back(before)  # reading the result imports modules, for instance
        if inspect.isawaitable(returned):
            return returned
        _check(awaits, reward)
        return _read(returned, place)

    try:
        call = functools.partial(reward, **_accepted(reward, given()))
        with Awaits() as awaits:
            result: Any = called() if pace is None else await in_thread(called, pace=pace, in_turn=False)
            if inspect.isawaitable(result):
                try:
                    result = await result
                finally:
                    put_back(before)
                _check(awaits, reward)
                return _read(result, place)
    except BaseException as error:  # the border to the reward's own code
        if _is_ours(error, task):
            raise
        raised.append(error)
        return None
    else:
        return result  # it was read
    finally:
        put_back(before)


def _check(awaits: Awaits, reward: Callable[..., Any]) -> None:
    try:
        awaits.check(reward)
    except RewardKitError as error:
        raise _UnfitError(error.fault, place=error.place, remedy=error.remedy) from None


def _is_ours(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether this is a person's Ctrl-C or the end of the waiting, not something that the reward raised."""
    if isinstance(error, asyncio.CancelledError):
        return is_cancelled()
    if isinstance(error, GeneratorExit):
        return is_closed(task)
    return is_ctrl_c(error)


def _face(database: Database, *, is_async: bool) -> Any:
    return database.read_only_async() if is_async else database.read_only()


class _Known(NamedTuple):
    """What need not be found out at each call of a reward."""

    parameters: dict[str, inspect.Parameter]
    pace: Pace
    place: str
    """Where it was written."""


def _look_at(reward: Callable[..., Any]) -> _Known:
    return _Known(dict(inspect.signature(reward).parameters), Pace(), place_of(reward))


_looked_at: WeakKeyDictionary[Callable[..., Any], _Known] = WeakKeyDictionary()
"""Weak, because a reward holds its module, and all that it has loaded, as long as it is held itself."""


def _known(reward: Callable[..., Any]) -> _Known:
    try:
        known = _looked_at.get(reward)
        if known is None:
            known = _looked_at[reward] = _look_at(reward)
    except TypeError:  # an object of a dataclass that can be called has no hash
        return _look_at(reward)
    return known


def _accepted(reward: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """The given arguments that the reward takes; ``RewardError`` where it needs one that is not given."""
    parameters = _known(reward).parameters
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and (name not in given or parameter.kind is parameter.POSITIONAL_ONLY)
    ]
    if missing:
        raise _ToldError(
            f"needs {', '.join(missing)}, which the row does not give",
            place=place_of(reward),
            remedy="Add the field to the row, or give the parameter a default.",
        )
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return given
    return {name: value for name, value in given.items() if name in parameters}


def _read(result: Any, place: str) -> EvaluateResult | RewardOutput:
    """The result, checked; its class, or that of its score, is the reward's own code too."""
    try:
        return _checked(result, place)
    except _UnfitError:
        raise
    except (Exception, SystemExit) as error:
        raise _UnfitError(
            f"returned a result that cannot be read: {fault_line(error)}", place=place
        ) from error


def _checked(result: Any, place: str) -> EvaluateResult | RewardOutput:
    from pydantic import ValidationError

    from reward_kit.models import EvaluateResult, RewardOutput

    if isinstance(result, EvaluateResult) and type(result).model_dump is not EvaluateResult.model_dump:
        result = result.model_dump()  # by code of the reward's own, which is not to run again elsewhere
    if isinstance(result, dict):
        try:
            result = EvaluateResult.model_validate(result)
        except ValidationError as error:
            raise _UnfitError(_unfit(error), place=place) from error
    if not isinstance(result, EvaluateResult | RewardOutput):
        raise _UnfitError(f"returned {_shown(result)}, {EXPECTED}", place=place)
    if (
        isinstance(result.score, bool)
        or not isinstance(result.score, int | float)
        or not math.isfinite(result.score)
    ):
        raise _UnfitError(f"returned the score {_shown(result.score)}, not a finite number", place=place)
    if type(result.score) is not float:
        result.score = float(result.score)  # of a class of its own, for instance
    checked: EvaluateResult | RewardOutput = result
    for name, number in _further_numbers(checked):
        if not math.isfinite(number):
            raise _UnfitError(
                f"returned {name} of {number}, not a finite number",
                place=place,
                remedy="Leave it out where there is none: means are over the rollouts that have it.",
            )
    if isinstance(checked, EvaluateResult) and (checked.error or not checked.is_score_valid):
        why = " ".join((checked.error or checked.reason or "").split())
        told = f": {cut(why, LONGEST_REASON)}" if why else ""
        raise _UnfitError(f"says that its score is not valid{told}", place=place)
    compact_json(checked.to_dict() if isinstance(checked, RewardOutput) else checked.model_dump())
    return checked


def _further_numbers(result: EvaluateResult | RewardOutput) -> Iterator[tuple[str, float]]:
    for name, metric in result.metrics.items():
        yield f"the metric {name!r}", metric.score
    for step in getattr(result, "step_outputs", None) or ():
        yield f"the base_reward of step {step.step_index!r}", step.base_reward


def _is_of_result(error: BaseException | None) -> TypeGuard[ValidationError]:
    """Whether a result failed its checks: ``reward_function`` raises a ``ValueError`` over it."""
    from pydantic import ValidationError

    return isinstance(error, ValidationError) and error.title == "EvaluateResult"


def _unfit(error: ValidationError) -> str:
    """One line on what is wrong with a result: the whole of it, or which of its fields."""
    faults = []
    for fault in error.errors(include_url=False, include_context=False):
        field = ".".join(map(str, fault["loc"]))
        if not field or (field == "score" and fault["type"] == "missing"):
            return f"returned {_shown(fault['input'])}, {EXPECTED}"
        if fault["type"] == "missing":
            faults.append(f"{field!r} is missing")
        else:
            faults.append(f"{field!r} is {_shown(fault['input'])}: {fault['msg']}")
    return f"returned a dict that is no result: {'; '.join(faults)}"


def _shown(value: Any) -> str:
    if value is None:
        return "None"
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - foreign code as well
        text = f"<repr() failed: {type(error).__name__}>"
    return f"{cut(text, 80)} ({type(value).__name__})"
