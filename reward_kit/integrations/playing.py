"""``Play``: an episode as the frameworks need it, which ends where an episode raises."""

from __future__ import annotations

import inspect
import json
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, NoReturn

from reward_kit.agent.base.files import undone_by
from reward_kit.agent.base.types import RolloutStopped, openai_call
from reward_kit.agent.base.worker_thread import sync_twin
from reward_kit.agent.bundles.bundle import TaskBundle
from reward_kit.agent.bundles.task import task_of
from reward_kit.agent.players.names import FROM_PROMPT, user_of
from reward_kit.agent.rollout.calls import run_calls
from reward_kit.agent.rollout.episode import Episode
from reward_kit.agent.rollout.lesson import EndedByUser
from reward_kit.errors import AgentError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reward_kit.agent.bundles.task import Task

OVER = "The conversation is over."
_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}


def not_installed(framework: str, package: str, error: Exception) -> NoReturn:
    """Raise the error for a framework that cannot be imported."""
    raise ImportError(f"{framework} is not installed: pip install {package}") from error


def shown_line(task: Task) -> str:
    """Return the last line of the user that a row has, for frameworks that show one."""
    lines = [message["content"] for message in task.row.agent_messages if message["role"] == "user"]
    return str(lines[-1]) if lines else "(the simulated user speaks first)"


class Play:
    """One rollout of a bundle's ``row`` (its id, position or task).

    ``user`` and ``models`` are those of ``TaskBundle.episode``. Limits, a failing user and calls after the
    end end the episode and raise nothing. Raises ``UsageError`` for a row that cannot be played: it has a
    simulated user and no model for it.
    """

    def __init__(self, bundle: TaskBundle, row: str | int | Task, *, seed: int = 0, **options: Any) -> None:
        task = task_of(bundle, row)
        self.talks = has_user(task, options)
        if not self.talks:
            options = {**options, "user": None}
        self.episode = Episode.of(bundle, task, rng_seed=seed, **options)

    def fork(self, seed: int | None = None) -> Play:
        """Return an independent copy; see ``Episode.fork``."""
        twin = copy(self)
        twin.episode = self.episode.fork(seed)
        return twin

    async def start(self) -> str | None:
        """Return the first line if the user speaks first, else None."""
        with EndedByUser(self.episode):
            return await self.episode.start()
        return None

    async def call(self, name: str, arguments: dict[str, Any] | str, call_id: str | None = None) -> str:
        """Return the result of a tool as the model sees it."""
        try:
            return (await self.episode.call(name, arguments, call_id=call_id)).content
        except RolloutStopped:
            return OVER

    async def say(self, reply: str | dict[str, Any]) -> str | None:
        """Return the user's next line; None if the episode is over."""
        try:
            with suppress(RolloutStopped), EndedByUser(self.episode):
                return await self.episode.say(reply)
        except AgentError as error:
            self.episode.stop("agent_error", str(error))
        return None

    def step(self) -> bool:
        """Count a call of the agent's model that is about to be made; False if the episode is over."""
        try:
            self.episode.step()
        except RolloutStopped:
            return False
        return True

    async def act(self, message: dict[str, Any]) -> None:
        """Do what an assistant message of the agent's model asks: run its tool calls, or say its text."""
        if not message.get("tool_calls"):
            await self.say(message)
            return
        with suppress(RolloutStopped):
            await run_calls(self.episode, message)

    async def lesson(self) -> tuple[float | None, str]:
        """Return the reward, None for a rollout to leave out, and a short reason; close the episode."""
        try:
            return await self.episode.lesson()
        finally:
            self.close()

    start_sync, call_sync, say_sync = sync_twin(start), sync_twin(call), sync_twin(say)

    def close(self) -> None:
        """Close the episode. May be called again."""
        self.episode.close()


def assistant_message(text: str, calls: Iterable[tuple[str, str, str]] = ()) -> dict[str, Any]:
    """A message in the OpenAI format, with the ids, names and arguments (JSON) of tool calls."""
    made = [openai_call(*one) for one in calls]
    return {"role": "assistant", "content": text, **({"tool_calls": made} if made else {})}


def opened(dataset: str, options: dict[str, Any]) -> TaskBundle:
    """Open a bundle; raises ``UsageError`` if one of its rows cannot be played with these options."""
    bundle = TaskBundle.load(dataset, mode=options.pop("mode", None))
    with undone_by(bundle.close):
        for task in bundle.tasks:
            has_user(task, options)
    return bundle


def has_user(task: Task, options: dict[str, Any]) -> bool:
    """Return True if a simulated user plays in the row."""
    asked = options.get("user")
    user = user_of(task.row, "", asked) if asked is None or isinstance(asked, str) else None
    if user in FROM_PROMPT and "user" not in (options.get("models") or {}):
        raise UsageError(
            f"the row has a simulated user ({user}) and no model for it",
            place=task.row.place or task.row.id,
            remedy='Give models={"user": model}, a user=... that needs no model, or user="none".',
        )
    return user != "none"


def _choices(schema: dict[str, Any]) -> str:
    """The values that a text may have, as frameworks read them from the end of a description."""
    enum = schema.get("enum") or [None]
    return f" (choices: {json.dumps(enum)})" if all(isinstance(one, str) for one in enum) else ""


def method_of(tool: dict[str, Any]) -> Any:
    """A method that calls a tool of ``self._play``; its signature and docstring give the tool's schema."""
    properties, required = tool["parameters"].get("properties", {}), tool["parameters"].get("required", [])

    def call(self: Any, **given: Any) -> str:
        arguments = {name: value for name, value in given.items() if value is not None or name in required}
        return str(self._play.call_sync(tool["name"], arguments))

    first = {name: (one.get("anyOf") or [one])[0] for name, one in properties.items()}
    kinds = {name: _TYPES.get(str(one.get("type")), str) for name, one in first.items()}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("self", kind)]
    for name in sorted(properties, key=lambda name: name not in required):
        default = inspect.Parameter.empty if name in required else None
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=kinds[name]))
    lines = [f"    {n}: {one.get('description', n)}{_choices(first[n])}" for n, one in properties.items()]
    call.__name__, call.__annotations__ = tool["name"], {**kinds, "return": str}
    call.__doc__ = "\n".join([tool.get("description", ""), "", "Args:", *lines])
    call.__signature__ = inspect.Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]
    return call
