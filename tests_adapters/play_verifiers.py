"""Plays the row lend.1 of library_task in verifiers, with a model behind HTTP that lends the book."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from aiohttp import web

sys.path.insert(0, sys.argv[1])
os.environ["BUNDLE"] = "library_task"


async def answer(request: web.Request) -> web.Response:
    called = any(message["role"] == "tool" for message in (await request.json())["messages"])
    function = {"name": "lend_book", "arguments": json.dumps({"book_id": 3, "member": "Ada"})}
    call = {"id": "call_1", "type": "function", "function": function}
    message = {"role": "assistant", "content": "Here you are." if called else None}
    if not called:
        message["tool_calls"] = [call]  # type: ignore[assignment]
    choice = {"index": 0, "message": message, "finish_reason": "stop" if called else "tool_calls"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    body = {
        "id": "a",
        "object": "chat.completion",
        "created": 0,
        "model": "stub",
        "choices": [choice],
        "usage": usage,
    }
    return web.json_response(body)


async def main() -> None:
    from verifiers.v1.cli.eval.runner import run_eval
    from verifiers.v1.configs.cli.eval import EvalConfig

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port: Any = runner.addresses[0][1]
    plugin = {"id": "verifiers_bundle"}
    agent = {"harness": plugin, "runtime": {"type": "subprocess"}}
    config = {
        "env": {"taskset": plugin, "agent": agent},
        "model": "stub",
        "client": {"base_url": f"http://127.0.0.1:{port}/v1", "api_key_var": "HOME"},
        "num_rollouts": 1,
        "rich": None,
        "push": False,
        "output_dir": "verifiers",
    }
    for episode in await run_eval(EvalConfig.model_validate(config)):
        for error in episode.errors:
            print(error)
        for trace in episode.traces:
            print(trace.task.data.name, trace.reward)
    await runner.cleanup()


asyncio.run(main())
