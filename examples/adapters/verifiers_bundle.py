"""A bundle as a verifiers 0.4 taskset, with a harness that plays it in its own process.

    BUNDLE=my_task eval --env.taskset.id verifiers_bundle --env.agent.harness.id verifiers_bundle

The variable BUNDLE names the bundle. A reply without a tool call ends the episode, as there is no user.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import httpx
import verifiers.v1 as vf

from reward_kit.agent import Episode, TaskBundle

__all__ = ["BundleHarness", "BundleTaskset"]

OPENED = TaskBundle.load(os.environ["BUNDLE"])
EPISODES: dict[str, Episode] = {}
"""The running episodes, by the id of their trace."""


class RowTask(vf.Task):
    @vf.reward
    async def solved(self, trace: vf.Trace) -> float:
        with EPISODES.pop(trace.id) as episode:
            return float((await episode.finish()).score)


class BundleTaskset(vf.Taskset[RowTask]):
    def load(self) -> Iterable[RowTask]:
        for one in OPENED.tasks:
            lines = [line["content"] for line in one.row.initial_messages if line["role"] == "user"]
            yield RowTask(vf.TaskData(name=one.row.id, prompt=lines[-1] if lines else None))


class BundleHarness(vf.Harness[vf.HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: vf.Trace,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Any,
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        episode = EPISODES[trace.id] = OPENED.episode(str(data.name))
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(base_url=endpoint, headers=headers, timeout=600) as client:
            going = True
            while going:
                body = {"model": ctx.model, "messages": episode.messages, "tools": episode.tools}
                answer = (await client.post("/chat/completions", json=body)).raise_for_status().json()
                message = answer["choices"][0]["message"]
                if not message.get("tool_calls"):
                    going = await episode.say(message["content"] or "-") is not None
                for call in message.get("tool_calls") or ():
                    made = call["function"]
                    result = await episode.call(made["name"], made["arguments"], call_id=call["id"])
                    going = going and not result.terminal
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
