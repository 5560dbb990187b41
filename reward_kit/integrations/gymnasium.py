"""A Gymnasium environment: one row of a bundle, with its simulated user.

    env = BundleEnv("my_task", row="lend.1", models={"user": model})
    text, info = env.reset(seed=1)
    text, reward, terminated, truncated, info = env.step('{"name": "lend_book", "arguments": {"book_id": 3}}')

An action is a tool call, a JSON object with ``name`` and ``arguments``, or else a reply to the user. An
observation is the tool's result or the user's next line; what is wrong with a call, such as a missing
argument, is the result. The reward comes with the end. A rollout to leave out (see ``Episode.lesson``) ends
*truncated*, with a reward of 0 and ``info["reward"]`` None; ``info["reason"]`` says why.
"""

from __future__ import annotations

import json
import string
from typing import Any

from reward_kit.agent import TaskBundle
from reward_kit.agent.base.files import undone_by
from reward_kit.agent.base.history import parse_arguments
from reward_kit.integrations.playing import Play, not_installed

try:
    import gymnasium
except ImportError as error:
    not_installed("Gymnasium", "gymnasium", error)

__all__ = ["BundleEnv"]


class BundleEnv(gymnasium.Env[str, str]):
    """``row`` is an id or a position in the dataset; ``options`` are those of ``TaskBundle.episode``."""

    def __init__(self, bundle: str, row: str | int = 0, **options: Any) -> None:
        characters = frozenset(string.printable)
        self.observation_space = gymnasium.spaces.Text(1_000_000, min_length=0, charset=characters)
        self.action_space = gymnasium.spaces.Text(1_000_000, charset=characters)
        self._row, self._options = row, options
        self._play: Play | None = None
        self._bundle = TaskBundle.load(bundle, mode=options.pop("mode", None))
        with undone_by(self._bundle.close):
            Play(self._bundle, row, **options).close()  # a row that cannot be played is refused here

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        if self._play is not None:
            self._play.close()
        rng_seed = int(self.np_random.integers(2**31))
        self._play = play = Play(self._bundle, self._row, seed=rng_seed, **self._options)
        line = play.start_sync()
        episode = play.episode
        first = line or next((m["content"] for m in reversed(episode.messages) if m["role"] == "user"), "")
        return first, {"messages": list(episode.messages), "tools": episode.tools}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._play is None:
            raise gymnasium.error.ResetNeeded("Call reset() before step().")
        call = _tool_call(action)
        text = self._play.say_sync(action) if call is None else self._play.call_sync(*call)
        if not self._play.episode.is_over:
            return text or "", 0.0, False, False, {}
        reward, reason = self._play.episode.lesson_sync()
        info = {"reward": reward, "reason": reason}
        return text or "", reward or 0.0, reward is not None, reward is None, info

    def close(self) -> None:
        if self._play is not None:
            self._play.close()
        self._bundle.close()


def _tool_call(action: str) -> tuple[str, str] | None:
    """The call that an action asks for, its arguments as JSON; None for a reply."""
    call = parse_arguments(action)
    if call is None or not call.keys() & {"name", "arguments"}:
        return None
    arguments = call.get("arguments", {})
    return str(call.get("name", "")), arguments if isinstance(arguments, str) else json.dumps(arguments)
