"""A bundle for TRL's ``GRPOTrainer``: the environment, the rows of its dataset, the reward.

    parts = BundleParts("my_task", models={"user": model})
    given = {"environment_factory": parts.environment, "reward_funcs": parts.reward}
    trainer = GRPOTrainer(policy, train_dataset=Dataset.from_list(parts.rows), **given)

TRL has no user turn, so the agent speaks to a simulated user with the tool ``say_to_user``; the user's first
line comes from ``reset``. A reply without a tool call ends the rollout. A rollout to leave out (see
``Episode.lesson``) has the reward None, which TRL leaves out. If users play in all rows, the environment has
``get_reward``; ``reward_funcs`` is then not needed, and would count the reward twice.
"""

from __future__ import annotations

from keyword import iskeyword
from typing import Any

from reward_kit.agent.base.files import undone_by
from reward_kit.agent.bundles.bundle import TaskBundle  # noqa: TC001
from reward_kit.compat.integrations.trl import conversation_adapter, create_trl_adapter
from reward_kit.errors import UsageError
from reward_kit.integrations.playing import OVER, Play, method_of, opened

__all__ = ["BundleParts", "conversation_adapter", "create_trl_adapter"]


class BundleParts:
    """``environment`` has a public method for each tool, as TRL reads them; all rows have the same tools.

    ``options`` are those of ``TaskBundle.episode``. Raises ``UsageError`` for a row that cannot be played.
    """

    def __init__(self, dataset: str, **options: Any) -> None:
        self.bundle = bundle = opened(dataset, options)
        plays = [Play(bundle, task, **options) for task in bundle.tasks]
        self.rows = [{"prompt": _prompt(play), "row_id": play.episode.row.id} for play in plays]
        for play in plays:
            play.close()

        class Environment:
            _play: Play
            _seed = 0

            def reset(self, row_id: str, **_: Any) -> str | None:
                if hasattr(self, "_play"):
                    self._play.close()
                self._play = Play(bundle, row_id, seed=self._seed, **options)
                self._seed += 1
                return self._play.start_sync()

        with undone_by(bundle.close):
            tools = _tools_of(bundle)
        for tool in tools:
            setattr(Environment, tool["name"], method_of(tool))
        if any(play.talks for play in plays):
            Environment.say_to_user = _say_to_user  # type: ignore[attr-defined]
        if all(play.talks for play in plays):
            Environment.get_reward = _get_reward  # type: ignore[attr-defined]
        self.environment = Environment

    def reward(self, completions: list[Any], environments: list[Any], **_: Any) -> list[float | None]:
        """Return the reward of each rollout, after the last reply was said in rows without a user."""
        for completion, environment in zip(completions, environments, strict=True):
            play, last = _play_of(environment), completion[-1] if completion else {}
            is_reply = last.get("role") == "assistant" and not last.get("tool_calls")
            if is_reply and last.get("content") and not (play.talks or play.episode.is_over):
                play.say_sync(last["content"])
        return [_get_reward(environment) for environment in environments]


def _prompt(play: Play) -> list[dict[str, Any]]:
    """The messages of a row, with a line for TRL to append the user's first one to."""
    opening = [{"role": "user", "content": ""}] if play.episode.user_opens else []
    return [*play.episode.messages, *opening]


def _get_reward(environment: Any) -> float | None:
    return _play_of(environment).episode.lesson_sync()[0]


def _play_of(environment: Any) -> Play:
    play: Play = vars(environment)["_play"]  # a public attribute could be taken for a tool
    return play


def _say_to_user(self: Any, text: str) -> str:
    """Say something to the user and hear the answer. The user hears nothing else.

    Args:
        text: What to say.
    """
    return self._play.say_sync(text) or OVER


_say_to_user.__name__ = "say_to_user"
del _say_to_user.__annotations__["self"]  # TRL takes an annotated one for a parameter of the tool


def _tools_of(bundle: TaskBundle) -> list[dict[str, Any]]:
    """The tools of all rows; raises ``UsageError`` for any that TRL cannot offer."""
    first, *others = [[one["function"] for one in task.registry.get_openai_tools()] for task in bundle.tasks]
    if any(tools != first for tools in others):
        raise UsageError(
            "the rows have different tools", remedy="Split the dataset: TRL has one environment."
        )
    for tool in first:
        if (name := tool["name"]) in ("reset", "get_reward", "say_to_user"):
            raise UsageError(f"TRL uses the name of the tool {name!r} itself", remedy="Rename the tool.")
        for word in tool["parameters"].get("properties", {}):
            if not word.isidentifier() or iskeyword(word):
                fault = f"the tool {name!r} has a parameter {word!r}, which no Python function can have"
                raise UsageError(fault, remedy="TRL makes a method of each tool: rename it.")
    return first
