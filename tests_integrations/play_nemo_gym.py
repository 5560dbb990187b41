"""Plays the rows of a server's bundle with the simple agent of NeMo Gym, in an environment that has it.

    python play_nemo_gym.py http://127.0.0.1:8000

Its model is a stub behind HTTP.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import uvicorn
from fastapi import FastAPI, Request
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import GlobalAIOHTTPAsyncClientConfig, ServerClient, set_global_aiohttp_client
from omegaconf import OmegaConf
from responses_api_agents.simple_agent.app import (
    ModelServerRef,
    ResourcesServerRef,
    SimpleAgent,
    SimpleAgentConfig,
)

HOST = "127.0.0.1"
stub = FastAPI()


@stub.post("/v1/responses")
async def answer(request: Request) -> Any:
    """Lend the book, to a user that has said a name, and say so."""
    asked = await request.json()
    done = [item["name"] for item in asked["input"] if item.get("type") == "function_call"]
    talks = "say_to_user" in [tool["name"] for tool in asked["tools"]]
    book = {"book_id": 1, "member": "Bo"} if talks else {"book_id": 3, "member": "Ada"}
    lend: list[tuple[str, Any]] = [("lend_book", book)] if not talks or "I am Bo" in str(asked) else []
    hello, done_it = ("say_to_user", {"text": "Hello."}), ("say_to_user", {"text": "Shall I look for it?"})
    script = [hello, *lend, done_it] if talks else lend
    if len(done) < len(script):
        name, arguments = script[len(done)]
        call = {"name": name, "arguments": json.dumps(arguments), "call_id": f"call_{len(done)}"}
        output: dict[str, Any] = {"type": "function_call", "id": "f", "status": "completed", **call}
    else:
        text = {"type": "output_text", "text": "Done.", "annotations": []}
        output = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
    about = {"id": "r", "created_at": 0, "model": "stub", "object": "response", "output": [output]}
    return {**about, "parallel_tool_calls": False, "tool_choice": "auto", "tools": []}


async def serve(app: Any, listener: socket.socket) -> None:
    await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listener])


async def main() -> None:
    set_global_aiohttp_client(GlobalAIOHTTPAsyncClientConfig())
    listeners = [socket.create_server((HOST, 0)) for _ in range(2)]
    ports = [listener.getsockname()[1] for listener in listeners]
    address = urlsplit(sys.argv[1])
    named = {"policy": ports[0], "agent": ports[1], "library": address.port}
    servers = {name: {"of": {name: {"host": HOST, "port": port}}} for name, port in named.items()}
    client = ServerClient(
        head_server_config=BaseServerConfig(host=HOST, port=0), global_config_dict=OmegaConf.create(servers)
    )
    config = SimpleAgentConfig(
        host=HOST,
        port=ports[1],
        entrypoint="",
        name="agent",
        model_server=ModelServerRef(type="responses_api_models", name="policy"),
        resources_server=ResourcesServerRef(type="resources_servers", name="library"),
    )
    agent = SimpleAgent(config=config, server_client=client)
    running = [
        asyncio.create_task(serve(app, listener))
        for app, listener in zip((stub, agent.setup_webserver()), listeners, strict=True)
    ]
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{sys.argv[1]}/nemo_gym/rows") as got:
            rows = [json.loads(line) for line in (await got.text()).splitlines()]
        played = []
        for row in rows:
            url = f"http://{HOST}:{ports[1]}"
            async with session.post(f"{url}/run", json={**row, "_ng_rollout_index": 1}) as done:
                assert done.status == 200, await done.text()
                verified = await done.json()
            played.append(verified)
            print(row["row"], *(verified[name] for name in ("reward", "mask_sample", "failure_kind")))
        async with session.post(f"{url}/aggregate_metrics", json={"verify_responses": played}) as metrics:
            print("mean", (await metrics.json())["key_metrics"].get("mean/reward"))
    for task in running:
        task.cancel()


asyncio.run(main())
