"""Plays the rows of library_task in verifiers, with an agent's model behind HTTP and users of two kinds."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

MODULE = """
from reward_kit.integrations.verifiers import bundle_env

def model(messages):
    first = "I am Bo. Middlemarch, please. Can you lend it to me?"
    return first if len(messages) == 2 else "{last} ###STOP###"

BundleTaskset, BundleHarness = bundle_env("{bundle}", models={{"user": model}})
__all__ = ["BundleHarness", "BundleTaskset"]
"""
Path("good.py").write_text(MODULE.format(bundle=sys.argv[1], last="Thanks!"))
Path("leaves.py").write_text(MODULE.format(bundle=sys.argv[1], last=""))
sys.path.insert(0, str(Path.cwd()))
IDLE = False


async def answer(request: web.Request) -> web.Response:
    messages = (await request.json())["messages"]
    talks = any("Bo" in str(message.get("content")) for message in messages)
    called = any(message["role"] == "tool" for message in messages) or (IDLE and talks)
    arguments = {"book_id": 1, "member": "Bo"} if talks else {"book_id": 3, "member": "Ada"}
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "lend_book", "arguments": json.dumps(arguments)},
    }
    message: dict[str, Any] = {"role": "assistant", "content": "Shall I look for it?" if called else None}
    if not called:
        message["tool_calls"] = [call]
    choice = {"index": 0, "message": message, "finish_reason": "stop" if called else "tool_calls"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    body = {"id": "a", "object": "chat.completion", "created": 0, "model": "stub"}
    return web.json_response({**body, "choices": [choice], "usage": usage})


async def main() -> None:
    global IDLE
    from verifiers.v1.cli.eval.runner import run_eval
    from verifiers.v1.configs.cli.eval import EvalConfig

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port: Any = runner.addresses[0][1]
    for name in ("good", "leaves"):
        IDLE = name == "leaves"
        plugin = {"id": name}
        config = {
            "env": {"taskset": plugin, "agent": {"harness": plugin, "runtime": {"type": "subprocess"}}},
            "model": "stub",
            "client": {"base_url": f"http://127.0.0.1:{port}/v1", "api_key_var": "HOME"},
            "num_rollouts": 1,
            "rich": None,
            "push": False,
            "output_dir": f"verifiers-{name}",
        }
        for episode in await run_eval(EvalConfig.model_validate(config)):
            for trace in episode.traces:
                faults = " ".join(" ".join(str(error).split()) for error in [*episode.errors, *trace.errors])
                row = trace.task.data.name
                print(f"{name} {row} error {faults}" if faults else f"{name} {row} {trace.reward}")
    await runner.cleanup()


asyncio.run(main())
