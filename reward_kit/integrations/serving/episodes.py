"""The episodes behind a server, by the id of a session."""

from __future__ import annotations

import asyncio
import re
import secrets
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from reward_kit.agent.base.printing import warn
from reward_kit.agent.base.types import RolloutStopped
from reward_kit.agent.base.worker_thread import in_thread
from reward_kit.agent.bundles.task import task_of
from reward_kit.agent.rollout.calls import answered
from reward_kit.agent.servers.http import SESSION
from reward_kit.agent.servers.sessions import NoSuchRowError, Pool, Session
from reward_kit.errors import RewardKitError, UsageError
from reward_kit.integrations.playing import OVER, Play, has_user

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reward_kit.agent.bundles.bundle import TaskBundle
    from reward_kit.agent.bundles.task import Task

MAX_SESSIONS = 1000
"""Sessions that a server holds at once."""
IDLE = 1800.0
"""Seconds after which a session without requests ends."""
SAY = "say_to_user"
SAY_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": SAY,
        "description": "Say something to the user and hear the answer. The user hears nothing else.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "What to say."}},
            "required": ["text"],
        },
    },
}
"""The tool with which agents speak that can only call tools."""


class NoSuchSessionError(RewardKitError):
    """No session has this id, or it has ended."""


class SessionExistsError(RewardKitError):
    """A session has the id of a copy."""


class Lesson(BaseModel):
    """The reward of a rollout."""

    reward: float | None = Field(description="Null for a rollout to leave out: it says nothing of the agent.")
    failure_kind: str | None = Field(
        description="The reason for a reward of null: user_error, infrastructure_error or reward_error."
    )
    reason: str = Field(description="A short reason; all of it if the server was started with --reasons.")


class Served:
    """The episode of a session, played by one request after the other.

    ``name`` and ``actions`` are for OpenEnv: the name that a client gave the episode, and the number of its
    actions. ``opening`` is the line with which the user began.
    """

    def __init__(self, play: Play, name: str, actions: int = 0) -> None:
        self.play, self.name, self.actions = play, name, actions
        self.opening: str | None = None
        self.lesson: Lesson | None = None
        self.in_turn = asyncio.Lock()

    @property
    def stopped(self) -> str | None:
        """The stop reason; None while the episode runs."""
        return self.play.episode.stop_reason

    async def call(self, name: str, arguments: dict[str, Any] | str) -> dict[str, Any]:
        """Call a tool: its ``result`` (the text for a model), its ``status``, and ``stopped``."""
        return await answered(self.play.episode, name, arguments)

    async def say(self, text: object, *, opens: bool = False) -> dict[str, str]:
        """Say something for an agent that can only call tools: the ``result`` is what it hears.

        With ``opens`` the agent has not seen the ``opening`` yet, which is what it hears first.
        """
        if self.stopped is not None:
            return {"result": OVER, "status": "refused"}
        if opens and self.opening is not None:
            opening, self.opening = self.opening, None
            return {"result": opening, "status": "ok"}
        if isinstance(text, str) and text.strip():
            return {"result": await self.play.say(text) or OVER, "status": "ok"}
        with suppress(RolloutStopped):
            self.play.episode.count_call()
            return {"result": f"Error: {SAY} needs a text.", "status": "invalid_arguments"}
        return {"result": OVER, "status": "refused"}

    def close(self) -> None:
        self.play.close()


class Episodes:
    """Episodes of ``bundle``; ``options`` are those of ``TaskBundle.episode``.

    With ``reasons``, a lesson has the reason of the reward, which may name what was expected.
    """

    def __init__(self, bundle: TaskBundle, *, reasons: bool = False, **options: Any) -> None:
        self.bundle, self.reasons, self._options = bundle, reasons, options
        self._pool: Pool[Served] = Pool(MAX_SESSIONS, _is_spare, IDLE)

    async def reset(self, name: str, row: str | None, seed: int | None, episode: str | None = None) -> Served:
        """Begin an episode in session ``name``, in which the user has spoken first if there is one.

        Without a ``seed`` one is drawn, and without a ``row`` the seed chooses it. Raises ``NoSuchRowError``,
        ``UsageError`` for a row that cannot be played, and ``TooManySessionsError``.
        """
        if re.fullmatch(SESSION, name) is None:
            raise UsageError("the id of a session has up to 64 letters, digits, '.', '_' and '-'")
        tasks = self.bundle.tasks
        seed = secrets.randbits(31) if seed is None else seed
        try:
            task = task_of(self.bundle, seed % len(tasks) if row is None else row)
        except UsageError as error:
            raise NoSuchRowError(error.fault) from error
        play = await self.opened(task, seed)
        session = self._pool.put(name, Served(play, episode or name))
        with session.used() as served:
            async with served.in_turn:
                served.opening = await play.start()
        return served

    async def opened(self, task: Task, seed: int = 0) -> Play:
        """Return a new episode outside any session; raises as ``talks``."""
        self.talks(task)
        return await in_thread(partial(Play, self.bundle, task, seed=seed, **self._options))  # seeds a base

    def talks(self, task: Task) -> bool:
        """Return whether a simulated user plays in the row; ``UsageError`` if there is no model for it."""
        try:
            return has_user(task, self._options)
        except UsageError as error:
            remedy = "Start the server with --user-model, or without users: --user none."
            raise UsageError(error.fault, place=task.row.id, remedy=remedy) from error

    @asynccontextmanager
    async def playing(self, name: str) -> AsyncIterator[Served]:
        """Wait for a session's turn; raises ``NoSuchSessionError``."""
        session = self._pool.get(name)
        if session is None:
            remedy = "Begin one first, with POST /sessions/ID/reset, /reset or /seed_session."
            raise NoSuchSessionError(f"there is no session {name!r}", remedy=remedy)
        with session.used() as served:
            async with served.in_turn:
                yield served

    def fork(self, served: Served, name: str, seed: int | None) -> Served:
        """Begin session ``name`` with a copy of a session's episode; raises ``SessionExistsError``."""
        if self._pool.get(name) is not None:
            remedy = "Choose another id, or delete that session first (DELETE /sessions/ID)."
            raise SessionExistsError(f"there is a session {name!r} already", remedy=remedy)
        try:
            twin = Served(served.play.fork(seed), name, served.actions)
        except RewardKitError as error:  # the user has no fork()
            raise UsageError(error.fault, remedy=error.remedy) from error
        twin.opening = served.opening
        self._pool.put(name, twin)
        return twin

    async def lesson(self, served: Served) -> Lesson:
        """End an episode; its reward, the same at every call."""
        if served.lesson is None:
            trace = served.play.episode.trace
            reward, reason = await served.play.episode.lesson()
            kind = None if reward is not None else reason.partition(":")[0]
            if trace.reward is None:  # a fault of the set-up, perhaps, of which clients are told the kind
                warn(f"a rollout of {trace.row_id} cannot be judged: {reason}")
            if not self.reasons:
                faults = [fault["kind"] for fault in trace.user_faults or ()]
                reason = trace.verdict if kind is None else ", ".join([kind, *faults])
            served.lesson = Lesson(reward=reward, failure_kind=kind, reason=reason)
        return served.lesson

    def drop(self, name: str) -> None:
        """End a session, if there is one of that name."""
        self._pool.drop(name)

    def close(self) -> None:
        self._pool.close()


def _is_spare(_name: str, session: Session[Served]) -> bool:
    return session.held.lesson is not None and not session.users
