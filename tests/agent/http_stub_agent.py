"""An agent behind HTTP for tests: answers what a script says, on a free port of 127.0.0.1."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientSession, web

from reward_kit.agent import load_agent

Script = Callable[[dict[str, Any], "Door"], Awaitable[Any]]


class Door:
    """The rollout's tools, as a turn's request offers them."""

    def __init__(self, http: ClientSession, turn: dict[str, Any]) -> None:
        self.http = http
        self.door = turn["door"]

    async def call(self, name: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.door['token']}"}
        url = f"{self.door['tools_url']}/{name}"
        async with self.http.post(url, json=arguments or {}, headers=headers) as answer:
            return {"http": answer.status, **await answer.json()}

    async def look(self) -> dict[str, Any]:
        """The rollout as the door shows it."""
        headers = {"Authorization": f"Bearer {self.door['token']}"}
        async with self.http.get(self.door["rollout_url"], headers=headers) as answer:
            shown: dict[str, Any] = await answer.json()
            return shown


class StubAgent:
    """``turns`` and ``closed`` are the requests that came, ``headers`` those of the last."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.turns: list[dict[str, Any]] = []
        self.closed: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.headers = dict(request.headers)
        if body["event"] == "closed":
            self.closed.append(body)
            return web.json_response({})
        self.turns.append(body)
        async with ClientSession() as http:
            given = await self.script(body, Door(http, body))
        return given if isinstance(given, web.StreamResponse) else web.json_response(given)


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[StubAgent]:
    stub = StubAgent(script)
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/", stub.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stub.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        yield stub
    finally:
        await runner.cleanup()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Any]:
    """The factory of the agent at this address, for as long as it is open."""
    agents = load_agent(url)
    await agents.open()
    try:
        yield agents
    finally:
        await agents.close()
