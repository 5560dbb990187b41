"""A Gymnasium environment: one row of a bundle.

    env = BundleEnv("my_task", row="lend.1")
    text, info = env.reset(seed=1)
    text, reward, terminated, truncated, info = env.step('{"name": "lend_book", "arguments": {"book_id": 3}}')

An action is a tool call as JSON, or else a reply to the user. An observation is the tool's result or the
user's next line; the reward comes with the end.
"""

from __future__ import annotations

import json
import string
from typing import Any

import gymnasium

from reward_kit.agent import Episode, TaskBundle


class BundleEnv(gymnasium.Env[str, str]):
    """``row`` is an id or a position in the dataset; ``options`` are those of ``TaskBundle.episode``."""

    def __init__(self, bundle: str, row: str | int = 0, **options: Any) -> None:
        self.observation_space = gymnasium.spaces.Text(1_000_000, min_length=0, charset=string.printable)
        self.action_space = gymnasium.spaces.Text(1_000_000, charset=string.printable)
        self._bundle = TaskBundle.load(bundle)
        self._row, self._options = row, options
        self._episode: Episode | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        if self._episode is not None:
            self._episode.close()
        rng_seed = int(self.np_random.integers(2**31))
        self._episode = episode = self._bundle.episode(self._row, rng_seed=rng_seed, **self._options)
        line = episode.start_sync()
        first = line or next((m["content"] for m in reversed(episode.messages) if m["role"] == "user"), "")
        return first, {"messages": list(episode.messages), "tools": episode.tools}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        assert self._episode is not None, "call reset() first"
        call = _tool_call(action)
        if call is None:
            line = self._episode.say_sync(action)
            text, ended = line or "", line is None
        else:
            result = self._episode.call_sync(*call)
            text, ended = result.content, result.terminal
        reward = self._episode.finish_sync().score if ended else 0.0
        return text, float(reward), ended, False, {}

    def close(self) -> None:
        if self._episode is not None:
            self._episode.close()
        self._bundle.close()


def _tool_call(action: str) -> tuple[str, dict[str, Any]] | None:
    try:
        call = json.loads(action)
        return call["name"], call["arguments"]
    except (ValueError, TypeError, KeyError):
        return None
