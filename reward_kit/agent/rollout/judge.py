"""Calling a task's reward: ``evaluate(messages=…, db=…, **row fields, gold_db=…, rollout=…)``.

To judge a conversation and a database without an evaluation::

    with TaskBundle.load("seat_task") as bundle:
        result = await judge(bundle.tasks[0], messages, db)
        print(result.score, result.reason)
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from dataclasses import replace
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from reward_kit.agent.base.deadline import CANCELLATION_GRACE
from reward_kit.agent.base.network import CONNECTION_LOST, RETRYABLE_STATUS, backoff, retry_after
from reward_kit.agent.base.pending import MissingAwaitError
from reward_kit.agent.base.places import fault_line, place_of
from reward_kit.agent.base.strict_json import copied
from reward_kit.agent.base.text import encodable
from reward_kit.agent.base.types import UNJUDGED_STOPS, Usage, check_number
from reward_kit.agent.base.worker_thread import in_thread
from reward_kit.agent.rollout.reward_result import checked_result, is_result_error, result_fault
from reward_kit.errors import RewardError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from reward_kit.agent.base.types import Message
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.database import Database
    from reward_kit.agent.rollout.episode import Episode
    from reward_kit.models import EvaluateResult, RewardOutput

T = TypeVar("T")

LONGEST_CHAIN = 10
"""Errors that led to one another and are looked at; foreign code may have made a ring of them."""


async def judge(
    task: Task,
    messages: Sequence[Message],
    db: Database,
    *,
    gold_db: Database | None = None,
    rollout: Any = None,
    timeout: float | None = 300.0,
) -> EvaluateResult | RewardOutput:
    """The reward of ``task`` for a conversation and the database that it left behind.

    ``gold_db`` is the state that the row's actions lead to, if the reward compares with it; several calls may
    share it. A ``def`` reward runs in a thread and gets read-only views with sync methods, an ``async def``
    reward the async ones. It gets copies of the messages and the row's fields, and only the arguments it
    names unless it takes ``**kwargs``. ``timeout`` is in seconds.

    Raises ``RewardError`` if it raises, takes too long, or returns something else than a valid finite score.
    """
    reward = task.reward
    is_async = takes_async_faces(reward)
    gold = None if gold_db is None else gold_db.reader()

    def given() -> dict[str, Any]:
        return {
            **copied(task.row.reward_fields()),
            "messages": copied(list(messages)),
            "db": _view(db, is_async=is_async),
            "gold_db": None if gold is None else _view(gold, is_async=is_async),
            "rollout": rollout,
        }

    try:
        return await call_reward(reward, given, timeout=timeout)
    finally:
        if gold is not None:
            gold.close()


def judge_sync(
    task: Task, messages: Sequence[Message], db: Database, **options: Any
) -> EvaluateResult | RewardOutput:
    """As ``judge``, for code without an event loop."""
    return run_sync(judge(task, messages, db, **options))


async def judge_episode(episode: Episode, gold_database: Database | None) -> EvaluateResult | RewardOutput:
    """The reward of an episode that is over; what the reward's own model calls cost is counted in it."""

    async def once() -> EvaluateResult | RewardOutput:
        shown = JudgedRollout(episode)
        try:
            return await judge(
                episode.task,
                episode.messages,
                episode.database,
                gold_db=gold_database,
                rollout=shown,
                timeout=episode.limits.reward_timeout,
            )
        finally:
            shown.hand_over_usage()

    return await judged_with_retries(once, episode.limits.reward_retries)


async def judged(
    episode: Episode, gold_database: Database | None
) -> tuple[EvaluateResult | RewardOutput | None, str | None]:
    """The result of the reward, or the error; None and None if the reward is not asked."""
    if episode.stop_reason in UNJUDGED_STOPS:
        return None, None
    try:
        return await judge_episode(episode, gold_database), None
    except RewardError as error:
        return None, str(error)


class JudgedRollout:
    """A finished rollout as its reward sees it, with the attributes of a ``RolloutRecord``.

    ``row``, ``gold``, ``outputs``, ``messages``, ``tool_calls``, ``model_calls`` and ``usage`` are copies,
    made when they are first asked for; most rewards ask for none of them.
    """

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._counted: list[dict[str, Any]] = []
        for name in ("id", "index", "seed", "steps", "max_steps", "turns", "stop_reason", "stop_detail"):
            setattr(self, name, getattr(episode, name))
        self.row_id = episode.row.id
        self.lines = list(episode.lines)

    def __getattr__(self, name: str) -> Any:
        if name not in _COPIES:
            raise AttributeError(f"a rollout has no attribute {name!r} for its reward")
        value = self.__dict__[name] = _COPIES[name](self._episode)
        return value

    def count_usage(self, usage: Usage, *, model: str, seconds: float = 0.0, **_: Any) -> None:
        """Count a model call of the reward's: its tokens and cost, as those of the role ``judge``.

        Raises ``TypeError`` for numbers that are negative or not finite.
        """
        if not isinstance(usage, Usage):
            raise TypeError(f"count_usage() takes a Usage, not a {type(usage).__name__}")
        usage.check()
        check_number("seconds", seconds)
        counted = replace(usage, calls=usage.calls or 1)
        self.usage.setdefault("judge", Usage()).add(counted)
        self._counted.append({"usage": counted, "model": encodable(str(model)), "seconds": seconds})

    def complete(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: agent and user are not asked any more."""
        raise TypeError(
            "a reward asks models with a client of its own, and counts that with rollout.count_usage()"
        )

    def hand_over_usage(self) -> None:
        """Count in the episode what the reward has counted, once it has been called."""
        while self._counted:
            self._episode.count_usage(role="judge", **self._counted.pop(0))


_COPIES: dict[str, Callable[[Episode], Any]] = {
    "row": lambda episode: episode.row.copied(),
    "gold": lambda episode: list(episode.row.copied().actions or ()),
    "outputs": lambda episode: list(episode.row.outputs or ()),
    "messages": lambda episode: copied(episode.messages),
    "tool_calls": lambda episode: [
        replace(call, arguments=copied(call.arguments), changes=copied(call.changes))
        for call in episode.tool_calls
    ],
    "model_calls": lambda episode: [replace(call, usage=replace(call.usage)) for call in episode.model_calls],
    "usage": lambda episode: {role: replace(usage) for role, usage in episode.usage.items()},
}


def takes_async_faces(reward: Callable[..., Any]) -> bool:
    """True for an ``async def`` reward, which gets the async views of the databases."""
    inner = inspect.unwrap(reward)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)


def names_argument(reward: Callable[..., Any], name: str) -> bool:
    """True if the reward has a parameter of this name."""
    return name in inspect.signature(reward).parameters


def _view(database: Database, *, is_async: bool) -> Any:
    return database.read_only_async() if is_async else database.read_only()


async def call_reward(
    reward: Callable[..., Any], given: Callable[[], dict[str, Any]], *, timeout: float | None = None
) -> EvaluateResult | RewardOutput:
    """Call a reward with those of the ``given()`` arguments that it takes; raises as ``judge``.

    It runs in a task of its own, so that a reward that swallows its cancellation holds up nobody for longer
    than ``CANCELLATION_GRACE``.
    """
    place = place_of(reward)
    running = asyncio.ensure_future(_outcome(reward, given, place))
    running.add_done_callback(_retrieved)
    try:
        done, _ = await asyncio.wait({running}, timeout=timeout)
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait({running}, timeout=CANCELLATION_GRACE)
    if not done:
        raise RewardError(f"took longer than {timeout:g} s", place=place)
    if running.cancelled():
        raise RewardError("cancelled the task that it runs in (CancelledError)", place=place)
    return running.result()


def _retrieved(task: asyncio.Future[Any]) -> None:
    """Keep asyncio from reporting the error of a task that nobody waits for any more."""
    if not task.cancelled():
        task.exception()


_REMEDIES = {"NoResultFound": "Where there may be no row, ask with scalar() or first(): it gives None then."}
"""By the class of what the reward raised."""


async def _outcome(
    reward: Callable[..., Any], given: Callable[[], dict[str, Any]], place: str
) -> EvaluateResult | RewardOutput:
    arguments = _accepted(reward, given(), place)
    call = partial(reward, **arguments)
    try:
        result = call() if takes_async_faces(reward) else await in_thread(call)
        if inspect.isawaitable(result):
            result = await result
        for argument in arguments.values():
            log = getattr(argument, "pending_log", None)
            if log is not None:
                log.check()
    except MissingAwaitError as error:
        raise RewardError(error.fault, place=error.place or place, remedy=error.remedy) from None
    except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # the border to the reward's code
        cause = error.__context__
        fault = result_fault(cause) if isinstance(error, ValueError) and is_result_error(cause) else None
        raise RewardError(
            fault or f"raised {fault_line(error)}", place=place, remedy=_REMEDIES.get(type(error).__name__)
        ) from error
    try:
        return checked_result(result, place)
    except RewardError:
        raise
    except Exception as error:  # the result's class is the reward's code, too
        fault = f"returned a result that cannot be read: {fault_line(error)}"
        raise RewardError(fault, place=place) from error


@lru_cache(maxsize=256)
def _parameters(reward: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(reward).parameters)


def _accepted(reward: Callable[..., Any], given: dict[str, Any], place: str) -> dict[str, Any]:
    """The given arguments that the reward takes; ``RewardError`` if it needs one that is not given."""
    is_hashable = getattr(reward, "__hash__", None) is not None
    parameters = _parameters(reward) if is_hashable else _parameters.__wrapped__(reward)
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and (name not in given or parameter.kind is parameter.POSITIONAL_ONLY)
    ]
    if missing:
        raise RewardError(
            f"needs {', '.join(missing)}, which the row does not give",
            place=place,
            remedy="Add the field to the row, or give the parameter a default.",
        )
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return given
    return {name: value for name, value in given.items() if name in parameters}


async def judged_with_retries(judging: Callable[[], Awaitable[T]], retries: int) -> T:
    """The result of ``judging()``, called up to ``retries`` more times after errors that may pass.

    Between the calls lie one, two, four and so on seconds (up to half of it less, at random), or what the
    server asked for, a minute at most. Raises the last ``RewardError``, and at once one that does not pass.
    """
    for attempt in range(1, retries + 1):
        try:
            return await judging()
        except RewardError as error:
            causes = _causes(error)
            if not any(map(_may_pass, causes)):
                raise
            asked = max((_asked_pause(cause) for cause in causes), default=0.0)
            pause = backoff(attempt, asked=asked)
        await asyncio.sleep(pause)
    return await judging()


def _causes(error: BaseException) -> list[BaseException]:
    """The reward's exception and its causes: clients wrap the errors of others."""
    found: list[BaseException] = []
    waiting = [error.__cause__]
    while waiting and len(found) < LONGEST_CHAIN:
        inner = waiting.pop(0)
        if inner is None:
            continue
        found.append(inner)
        # also where it is hidden (`from None`), as httpx does with what the connection raised
        waiting.append(inner.__context__ if inner.__cause__ is None else inner.__cause__)
        waiting += [one for one in getattr(inner, "exceptions", ()) if isinstance(one, BaseException)]
    return found


def _may_pass(error: BaseException) -> bool:
    """True if a connection was lost, or if the answer (of any client) says to come again."""
    if isinstance(error, ConnectionError | TimeoutError | asyncio.TimeoutError):
        return True
    if any(kind.__name__ in CONNECTION_LOST for kind in type(error).__mro__):
        return True
    for holder, name in (
        (error, "status_code"),
        (error, "status"),
        (getattr(error, "response", None), "status_code"),
        (error, "code"),
    ):
        status = getattr(holder, name, None)
        if isinstance(status, int):
            return status in RETRYABLE_STATUS
    return False


def _asked_pause(error: BaseException) -> float:
    """Seconds to wait that the answer asks for; 0 if it does not."""
    headers = getattr(getattr(error, "response", None), "headers", None) or getattr(error, "headers", None)
    try:
        return retry_after(headers or {}) or 0.0
    except (TypeError, ValueError, AttributeError):  # whatever a client keeps under this name
        return 0.0


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on an event loop in a thread of this package and wait for its result."""
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="reward-kit-sync").start()
    return loop
