"""What a reward may see of the rollout that it judges: copies, so that it changes no record."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reward_kit.agent.bundles.task import Task
from reward_kit.agent.completion import Usage, check_number
from reward_kit.agent.history import encodable
from reward_kit.agent.rollout import Rollout
from reward_kit.agent.strict_json import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reward_kit.agent.calls import ModelCall, ToolCall
    from reward_kit.agent.completion import Completion
    from reward_kit.agent.database import Database
    from reward_kit.agent.history import History


class ShownRollout(Rollout):
    """What a reward holds of its rollout: the same names, and behind each what the rollout had there.

    What can be changed is a copy, made when it is first asked for; most rewards ask for none of it.
    """

    def __init__(self, played: Rollout) -> None:
        self.__dict__.update(
            {name: value for name, value in played.__dict__.items() if name not in _COPIES},
            _played=played,
            _asked=[],
        )

    async def complete(self, *_: Any, **__: Any) -> Completion:
        """Refused: agent and user have been asked all that they are."""
        raise TypeError(
            "a reward asks models with a client of its own, and counts that with rollout.count_usage()"
        )

    def count_usage(self, usage: Usage, *, model: str, seconds: float = 0.0, **_: Any) -> None:
        """Count a model call of the reward's: its tokens and cost, as those of the role ``judge``."""
        counted = _checked(usage)
        check_number("seconds", seconds)
        self.usage.setdefault("judge", Usage()).add(counted)
        self._asked.append({"usage": counted, "model": encodable(str(model)), "seconds": seconds})

    def hand_over_usage(self) -> None:
        """Count in the rollout itself what the reward has counted: once, when it has been called."""
        while self._asked:
            self._played.count_usage(role="judge", **self._asked.pop(0))

    def __getattr__(self, name: str) -> Any:
        if name not in _COPIES:
            raise AttributeError(f"a rollout has no attribute {name!r}")
        value = self.__dict__[name] = _COPIES[name](getattr(self._played, name))
        return value


def _checked(usage: object) -> Usage:
    """A copy, at least one call; ``TypeError`` for what would spoil the sums of all rollouts."""
    if not isinstance(usage, Usage):
        raise TypeError(f"count_usage() takes a Usage, not a {type(usage).__name__}")
    usage.check()
    return replace(usage, calls=usage.calls or 1)


def _history_copied(history: History) -> History:
    shown = copy.copy(history)
    shown.messages = copied(history.messages)
    shown.lines = list(history.lines)
    return shown


def _database_shown(database: Database) -> Database:
    return type(database)(database.content, writable=False)


def _tool_calls_copied(calls: list[ToolCall]) -> list[ToolCall]:
    return [replace(call, arguments=copied(call.arguments), changes=copied(call.changes)) for call in calls]


def _model_calls_copied(calls: list[ModelCall]) -> list[ModelCall]:
    return [replace(call, usage=replace(call.usage)) for call in calls]


_COPIES: Mapping[str, Callable[[Any], Any]] = {
    "history": _history_copied,
    "task": Task.copied,
    "database": _database_shown,
    "tool_calls": _tool_calls_copied,
    "model_calls": _model_calls_copied,
    "tool_faults": list,
    "models": dict,
    "usage": lambda usages: {role: replace(usage) for role, usage in usages.items()},
}
