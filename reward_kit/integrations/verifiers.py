"""A bundle as a verifiers 0.4 taskset, with a harness that plays it with its simulated users.

Write a module ``my_env.py``, and name it to verifiers::

    from reward_kit.integrations.verifiers import bundle_env

    BundleTaskset, BundleHarness = bundle_env("my_task", models={"user": model})
    __all__ = ["BundleHarness", "BundleTaskset"]

    eval --env.taskset.id my_env --env.agent.harness.id my_env

The harness runs in verifiers' own process. Calls of the agent's model go through its endpoint and are in the
trace; those of the user's model are not. A rollout to leave out (see ``Episode.lesson``) raises in the
reward, so that its trace has an error and no reward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from reward_kit.integrations.playing import Play, not_installed, opened, shown_line

try:
    import httpx
    import verifiers.v1 as vf
    from verifiers.v1.errors import TaskError
except ImportError as error:
    not_installed("verifiers", "'verifiers>=0.4'", error)

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["bundle_env"]

CALL_SECONDS = 600.0


def bundle_env(dataset: str, **options: Any) -> tuple[type[vf.Taskset], type[vf.Harness]]:
    """Return the taskset and the harness of a bundle; the ``options`` are those of ``TaskBundle.episode``.

    Raises ``UsageError`` for a row that cannot be played.
    """
    bundle = opened(dataset, options)
    plays: dict[str, Play] = {}
    """The running rollouts, by the id of their trace."""

    class RowTask(vf.Task):
        @vf.reward
        async def solved(self, trace: vf.Trace) -> float:
            reward, reason = await plays.pop(trace.id).lesson()
            if reward is None:
                raise TaskError(reason)
            return reward

    class BundleTaskset(vf.Taskset[RowTask]):
        def load(self) -> Iterable[RowTask]:
            for one in bundle.tasks:
                yield RowTask(vf.TaskData(name=one.row.id, prompt=shown_line(one)))

    class BundleHarness(vf.Harness[vf.HarnessConfig]):
        APPENDS_SYSTEM_PROMPT = True
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
            play = plays[trace.id] = Play(bundle, str(data.name), seed=crc32(trace.id.encode()), **options)
            headers = {"Authorization": f"Bearer {secret}"}
            async with httpx.AsyncClient(base_url=endpoint, headers=headers, timeout=CALL_SECONDS) as client:
                await play.start()
                while play.step():
                    body = {
                        "model": ctx.model,
                        "messages": play.episode.messages,
                        "tools": play.episode.tools,
                    }
                    answer = (await client.post("/chat/completions", json=body)).raise_for_status().json()
                    await play.act(answer["choices"][0]["message"])
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")

        async def cleanup(self, trace: vf.Trace, runtime: Any) -> None:
            if (play := plays.pop(trace.id, None)) is not None:  # its reward was never asked for
                play.close()

    return BundleTaskset, BundleHarness
