"""The cost of a model call for the client: the direct path against LiteLLM, in one run, over real HTTP.

    python benchmarks/model_client.py [--calls 400] [--concurrency 50] [--delay 0.2]

A server in another process answers after ``--delay`` seconds. The requests have the size of retail
conversations (about 22 KB: policy, 16 tools, a dozen messages). CPU is measured for this process alone. The
baseline is ``LiteLLMModel``: ``litellm.acompletion``, and the conversion of its answer to a ``Completion``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from reward_kit.agent.models.litellm import LiteLLMModel
from reward_kit.agent.models.openai_http import OpenAIModel
from reward_kit.agent.models.providers import find_endpoint

NAME = "openai/gpt-4o-mini"
SERVER = """
import asyncio, json, sys
from aiohttp import web

call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"order_id": "#W1"}'}}
answer = json.dumps({
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": "gpt-4o-mini",
    "choices": [{"index": 0, "finish_reason": "tool_calls",
                 "message": {"role": "assistant", "content": None, "tool_calls": [call]}}],
    "usage": {"prompt_tokens": 5000, "completion_tokens": 30, "total_tokens": 5030,
              "prompt_tokens_details": {"cached_tokens": 4000}},
}).encode()

async def chat(request):
    await request.read()
    await asyncio.sleep(float(sys.argv[1]))
    return web.Response(body=answer, content_type="application/json")

async def main():
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=2048)
    await site.start()
    print(site._server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""


def conversation() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Messages and tools of a retail rollout midway."""
    from pathlib import Path

    from tau_retail_task.tools import R

    policy = Path(__file__).parents[1] / "tau_retail_task" / "policy.md"
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": policy.read_text()},
        {"role": "user", "content": "I want to exchange two items of my order."},
    ]
    for number in range(5):
        call = {"name": "get_order_details", "arguments": json.dumps({"order_id": f"#W{number:07d}"})}
        messages += [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"call_{number}", "type": "function", "function": call}],
            },
            {
                "role": "tool",
                "tool_call_id": f"call_{number}",
                "name": "get_order_details",
                "content": json.dumps({"order_id": f"#W{number:07d}", "items": ["item, 12345"] * 60}),
            },
        ]
    return messages, R.get_openai_tools()


async def measure(model: Any, calls: int, concurrency: int) -> tuple[float, float]:
    """CPU and wall seconds per call."""
    messages, tools = conversation()
    left = iter(range(calls))

    async def work() -> None:
        for number in left:
            await model.complete(messages, tools=tools, seed=number)

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return (time.process_time() - cpu) / calls, (time.perf_counter() - wall) / calls


async def run(arguments: argparse.Namespace) -> None:
    endpoint = find_endpoint(NAME, None, {})
    assert endpoint is not None
    models = {"LiteLLM": LiteLLMModel(NAME), "direct": OpenAIModel(NAME, endpoint)}
    messages, tools = conversation()
    size = len(json.dumps({"messages": messages, "tools": tools}))
    print(f"{size / 1000:.0f} KB per request, {arguments.concurrency} at once, {arguments.rounds} rounds")
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    for model in models.values():
        await measure(model, arguments.concurrency, arguments.concurrency)  # imports, connections
    for _ in range(arguments.rounds):
        for name, model in models.items():
            costs[name].append(await measure(model, arguments.calls, arguments.concurrency))
    for model in models.values():
        await model.close()
    cpu = {name: statistics.median(pair[0] for pair in found) for name, found in costs.items()}
    for name, seconds in cpu.items():
        wall = statistics.median(pair[1] for pair in costs[name])
        print(f"{name:8}  {seconds * 1e3:6.2f} ms CPU per call  {wall * arguments.calls:6.2f} s wall in all")
    print(f"LiteLLM / direct: {cpu['LiteLLM'] / cpu['direct']:.1f}x CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--concurrency", type=int, default=50)
    parser.add_argument("--delay", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(arguments.delay)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        os.environ["OPENAI_API_BASE"] = f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
        os.environ.setdefault("OPENAI_API_KEY", "none-needed")
        asyncio.run(run(arguments))
    finally:
        server.stdin.close()
        server.wait(10)


if __name__ == "__main__":
    main()
