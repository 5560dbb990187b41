"""A bundle for OpenEnv's harness rollouts, with its simulated users: also those of TRL's asynchronous GRPO.

    sessions = BundleSessions("my_task", models={"user": model})
    session = sessions.create("lend.1", seed=1)
    result = TalkingHarness().run_white_box(model_step, session, limits)
    session.verify(result.messages).env_reward

``model_step`` is the trainer's: it samples each turn of the agent and keeps its tokens. A rollout to leave
out (see ``Episode.lesson``) has the reward None, and the reason in the metrics.
"""

from __future__ import annotations

import json
from typing import Any

from reward_kit.agent.base.worker_thread import run_sync
from reward_kit.integrations.playing import Play, assistant_message, not_installed, opened

try:
    from openenv.core.env_server.mcp_types import Tool
    from openenv.core.harness import (
        HarnessAdapter,
        HarnessRolloutResult,
        HarnessRunLimits,
        ModelStep,
        ResourceSession,
        ResourceSessionFactory,
        ToolResult,
        ToolTraceEntry,
        VerifyResult,
    )

    ResourceSessionFactory[Any]  # releases before 0.10 have another harness
except (ImportError, TypeError) as error:
    not_installed("OpenEnv", "'openenv>=0.10'", error)

__all__ = ["BundleSession", "BundleSessions", "TalkingHarness"]


class BundleSession(ResourceSession):
    """One rollout; ``play`` is its episode."""

    def __init__(self, play: Play) -> None:
        self.play = play

    def initial_messages(self) -> list[dict[str, Any]]:
        return list(self.play.episode.messages)

    def list_tools(self) -> list[Tool]:
        functions = [tool["function"] for tool in self.play.episode.tools]
        return [
            Tool(name=one["name"], description=one.get("description") or "", input_schema=one["parameters"])
            for one in functions
        ]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        content = self.play.call_sync(name, arguments)
        return ToolResult(data=content, done=self.play.episode.is_over)

    def verify(self, transcript: list[dict[str, Any]], final_state: Any = None) -> VerifyResult:
        reward, reason = self.play.episode.lesson_sync()
        return VerifyResult(env_reward=reward, done=True, metrics={"reason": reason})

    def close(self) -> None:
        self.play.close()


class BundleSessions(ResourceSessionFactory[BundleSession]):
    """Opens a session for each rollout; the ``options`` are those of ``TaskBundle.episode``.

    Raises ``UsageError`` for a row that cannot be played.
    """

    def __init__(self, dataset: str, **options: Any) -> None:
        self.bundle, self.options = opened(dataset, options), options

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> BundleSession:
        """Open the row ``task``: its id, or the prompt of a dataset whose last message is the id."""
        row = task if isinstance(task, str) else task[-1]["content"]
        play = Play(self.bundle, row, seed=seed or 0, **self.options)
        play.start_sync()
        return BundleSession(play)


class TalkingHarness(HarnessAdapter):
    """The loop of agent, tools and user. Limits count model calls; a rollout at one is over and judged."""

    def run_white_box(
        self, model_step: ModelStep, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        limits, result = limits or HarnessRunLimits(), HarnessRolloutResult()
        play: Play = session.play  # a BundleSession
        made = 0
        for _ in range(limits.max_turns):
            if not play.step():
                break
            answer = model_step(list(play.episode.messages), session.list_tools(), limits.sampling).response
            most = limits.max_tool_calls_per_turn if play.episode.parallel_tool_calls else 1
            wanted = [(one.id, one.name, json.dumps(one.args)) for one in answer.tool_calls[:most]]
            calls = wanted if (total := limits.max_total_tool_calls) is None else wanted[: total - made]
            made += len(calls)
            if calls or not wanted:
                run_sync(play.act(assistant_message(answer.content, calls)))
            if len(calls) < len(wanted):
                break
        result.done, result.metrics["truncated"] = play.episode.is_over, not play.episode.is_over
        play.episode.stop("max_steps", "the limits of the harness")
        for call in (one for one in play.episode.tool_calls if one.by == "agent"):
            arguments = call.arguments if isinstance(call.arguments, dict) else {}
            result.tool_trace.append(ToolTraceEntry(call.name, arguments, ToolResult(data=call.content)))
        result.messages = list(play.episode.messages)
        result.metrics["tool_calls"] = len(result.tool_trace)
        return result

    def run_black_box(
        self, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        raise NotImplementedError("The trainer samples each turn: use run_white_box.")
