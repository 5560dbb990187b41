"""The task for verifiers 0.4 on its own API: a taskset, an environment with a user, a harness with tools.

It reaches models by HTTP only, through a server of its own in this process; so the stub is another HTTP
server in this process, and each model call passes both. The harness runs its loop in this process, which its
contract permits, on a dict as the stock. Settings: as many episodes at once as asked, no dashboard, no
upload. ``--save no`` plays the episodes without its runner, which always saves.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import verifiers.v1 as vf
from aiohttp import web
from conversation import (
    COUNTER,
    EXPECTED,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    STOCK,
    SYSTEM,
    WISHES,
    next_turn,
    read_stock,
    write_stock,
)
from measuring import measure, parse_arguments
from verifiers.v1.cli.eval.runner import gather_rollouts, run_eval
from verifiers.v1.configs.cli.eval import EvalConfig
from verifiers.v1.utils.loaders import load_environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

__all__ = ["ShopEnv", "ShopHarness", "ShopTaskset"]

ROLLOUTS = 0
"""Tasks of the taskset; set before each run."""
STOCKS: dict[str, dict[int, int]] = {}
"""The stock of each rollout that is played, by the id of its trace."""


def _tool(name: str, description: str, *parameters: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "integer"} for parameter in parameters},
        "required": list(parameters),
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }


TOOLS = [
    _tool("read_item", "Read one item of the stock.", "item_id"),
    _tool("write_item", "Change how many there are of an item.", "item_id", "quantity"),
]
FUNCTIONS = {"read_item": read_stock, "write_item": write_stock}


class ShopTask(vf.Task):
    """One customer."""

    @vf.reward
    async def stock_as_expected(self, trace: vf.Trace) -> float:
        """The reward."""
        return float(STOCKS.pop(trace.id) == EXPECTED)


class ShopTaskset(vf.Taskset[ShopTask]):
    """As many customers as asked."""

    def load(self) -> Iterable[ShopTask]:
        for number in range(ROLLOUTS):
            yield ShopTask(vf.TaskData(name=f"row{number:05}", prompt=WISHES[0], system_prompt=SYSTEM))


class ShopHarness(vf.Harness[vf.HarnessConfig]):
    """A loop over model and tools in this process."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,  # noqa: ARG002 - its signature
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],  # noqa: ARG002
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        system, prompt = self.resolve_prompt(data)
        stock = STOCKS.setdefault(trace.id, dict(STOCK))
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [_as_openai(message) for message in prompt or []]
        headers = {"Authorization": f"Bearer {secret}"}
        while True:
            body = {"model": ctx.model, "messages": messages, "tools": TOOLS}
            answer = await HTTP[0].post(f"{endpoint}/chat/completions", json=body, headers=headers)
            answer.raise_for_status()
            message = answer.json()["choices"][0]["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                return vf.ProgramResult(exit_code=0, stdout="", stderr="")
            for call in message["tool_calls"]:
                function = call["function"]
                result = FUNCTIONS[function["name"]](stock, **json.loads(function["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})


def _as_openai(message: Any) -> dict[str, Any]:
    """A message of its trace in OpenAI's form, for the loop to go on with."""
    found = {"role": message.role, "content": message.content}
    if message.role == "tool":
        found["tool_call_id"] = message.tool_call_id
    if getattr(message, "tool_calls", None):
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return found


class ShopEnvConfig(vf.EnvConfig):
    """One agent."""

    agent: vf.AgentConfig = vf.AgentConfig()


class ShopEnv(vf.Env[ShopEnvConfig]):
    """The user has a second wish after the first reply."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with agents.agent.interaction(task) as shop:
            await shop.turn()
            await shop.turn(WISHES[1])


HTTP: list[httpx.AsyncClient] = []
"""The client of the harness, one for all rollouts."""


@asynccontextmanager
async def answers(delay: float) -> AsyncIterator[int]:
    """Serve the stub's answers; yields the port."""

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        text, call = await next_turn(turn, delay)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if call:
            function = {"name": call[0], "arguments": call[1]}
            message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": function}]
        usage = {
            "prompt_tokens": INPUT_TOKENS,
            "completion_tokens": OUTPUT_TOKENS,
            "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
        }
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if call else "stop"}
        return web.json_response(
            {
                "id": f"answer_{turn}",
                "object": "chat.completion",
                "created": 0,
                "model": "stub",
                "choices": [choice],
                "usage": usage,
            }
        )

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def main() -> None:
    arguments = parse_arguments()
    logging.getLogger("verifiers").setLevel(logging.ERROR)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    sys.modules["with_verifiers_v1"] = sys.modules["__main__"]  # its plugins are found by module name

    async def run(rollouts: int, folder: Path) -> list[vf.Episode]:
        global ROLLOUTS
        ROLLOUTS = rollouts
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        plugin = {"id": "with_verifiers_v1"}
        agent = {"harness": plugin, "runtime": {"type": "subprocess"}}
        env = ShopEnvConfig.model_validate({**plugin, "taskset": plugin, "agent": agent})
        async with answers(arguments.delay) as port, httpx.AsyncClient(timeout=300, limits=limits) as client:
            HTTP[:] = [client]
            config = EvalConfig.model_validate(
                {
                    "env": env.model_dump(),
                    "model": "stub",
                    "client": {"base_url": f"http://127.0.0.1:{port}/v1", "api_key_var": "HOME"},
                    "max_concurrent": arguments.at_once,
                    "num_rollouts": 1,
                    "rich": None,
                    "push": False,
                    "output_dir": str(folder),
                }
            )
            return await (run_eval(config) if arguments.save else unsaved(config))

    async def unsaved(config: EvalConfig) -> list[vf.Episode]:
        env = load_environment(config.env)
        context = vf.ModelContext(client=config.client, model=config.model, sampling=config.sampling)
        semaphore = asyncio.Semaphore(arguments.at_once)
        async with env.serving():
            slots = [slot for task in env.taskset for slot in env.slots(task)]
            return await gather_rollouts(env.run_slot(slot, context, semaphore) for slot in slots)

    def play(rollouts: int, folder: Path) -> None:
        episodes = asyncio.run(run(rollouts, folder))
        errors = [error for episode in episodes for error in episode.errors]
        if errors:
            raise RuntimeError(str(errors[0]))
        traces = [trace for episode in episodes for trace in episode.traces]
        COUNTER.check(sum(trace.reward == 1.0 for trace in traces), rollouts)

    measure(arguments, play)


if __name__ == "__main__":
    main()
