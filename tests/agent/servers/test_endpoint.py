"""The tool endpoint as remote agents use it: real HTTP on 127.0.0.1, a real rollout behind it."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from small_task import hanging, seeded, small_task

from reward_kit.agent.rollout.episode import Episode
from reward_kit.agent.rollout.rollout import RolloutLimits
from reward_kit.agent.servers.endpoint import ToolEndpoint

JSON = {"Content-Type": "application/json"}


class Client:
    """Requests with the rollout's token."""

    def __init__(self, http: aiohttp.ClientSession, endpoint: ToolEndpoint, token: str) -> None:
        self.http = http
        self.endpoint = endpoint
        self.token = token

    async def request(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        async with self.http.request(method, self.endpoint.url + path, headers=headers, **options) as answer:
            return answer.status, await answer.json()

    async def call(self, name: str, arguments: Any = None, **headers: str) -> tuple[int, Any]:
        return await self.request("POST", f"/tools/{name}", json=arguments or {}, headers=headers)


class Stage:
    """An endpoint, and rollouts that are admitted until the test ends."""

    def __init__(self, folder: Path, endpoint: ToolEndpoint, http: aiohttp.ClientSession) -> None:
        self.folder = folder
        self.endpoint = endpoint
        self.http = http
        self.base = seeded(folder)

    def admit(self, **options: Any) -> tuple[Episode, Client]:
        limits = RolloutLimits(max_steps=options.pop("max_steps", 200))
        rollout = Episode(small_task(self.folder), 0, database=self.base.fork(), limits=limits)
        self.admission = self.endpoint.admit(rollout.rollout)
        return rollout, Client(self.http, self.endpoint, self.admission.token)


@pytest.fixture
async def stage(tmp_path) -> AsyncIterator[Stage]:
    endpoint = ToolEndpoint()
    await endpoint.open()
    async with aiohttp.ClientSession() as http:
        yield Stage(tmp_path, endpoint, http)
    await endpoint.close()


async def bookings(rollout: Episode) -> int:
    return await rollout.database.fetch_val("SELECT count(*) FROM bookings")


class TestTools:
    async def test_the_list_is_what_models_are_offered(self, stage):
        rollout, client = stage.admit()
        assert await client.request("GET", "/tools") == (200, rollout.tools)

    async def test_a_call_acts_on_the_rollout_and_is_recorded(self, stage):
        rollout, client = stage.admit()
        arguments = {"flight_id": 1, "passenger": "Alice"}
        status, answer = await client.call("create_booking", arguments)
        assert status == 200
        assert answer["status"] == "ok"
        assert answer["stopped"] is None
        assert json.loads(answer["result"]).keys() == {"booking_id"}
        assert await bookings(rollout) == 1
        [call] = rollout.tool_calls
        assert (call.name, call.content) == ("create_booking", answer["result"])
        assert json.loads(rollout.messages[-2]["tool_calls"][0]["function"]["arguments"]) == arguments
        assert rollout.steps == 1

    async def test_the_conversation_so_far(self, stage):
        rollout, client = stage.admit()
        await client.call("ping")
        status, seen = await client.request("GET", "/rollout")
        assert status == 200
        assert seen["messages"] == rollout.messages
        assert (seen["id"], seen["row_id"], seen["stopped"]) == (rollout.id, "book", None)


class TestTheEnd:
    async def test_a_call_after_the_end_is_not_made(self, stage):
        rollout, client = stage.admit()
        await client.call("transfer")
        status, answer = await client.call("create_booking", {"flight_id": 1, "passenger": "Mallory"})
        assert (status, answer["status"], answer["stopped"]) == (200, "refused", "terminal_tool")
        assert "over" in answer["result"]
        assert await bookings(rollout) == 0
        assert len(rollout.tool_calls) == 1

    async def test_a_call_that_the_end_interrupts_is_answered_and_undone(self, stage):
        rollout, client = stage.admit()
        asked = await hanging(client.call("hang"))
        rollout.stop("timeout")
        await rollout.end_calls()
        status, answer = await asked
        assert (status, answer["status"], answer["stopped"]) == (200, "failed", "timeout")
        assert await rollout.database.fetch_val("SELECT count(*) FROM flights") == 2


class TestHostileClients:
    @pytest.mark.parametrize("given", [None, "", "Bearer", "Bearer wrong", "Basic dXNlcjpwYXNz", "Bearer é"])
    async def test_without_the_token_nothing_is_told_or_done(self, stage, given):
        rollout, _ = stage.admit()
        headers = {} if given is None else {"Authorization": given}
        for line in ("GET /tools", "GET /rollout", "GET /mcp", "POST /tools/ping"):
            method, path = line.split()
            async with stage.http.request(method, stage.endpoint.url + path, headers=headers) as answer:
                assert answer.status == 401
                assert "Bearer" in (await answer.json())["detail"]
        assert rollout.tool_calls == []

    @pytest.mark.parametrize(
        ("body", "headers", "expected", "told"),
        [
            *((body, {}, 400, "body") for body in (b"{", b"[1]", b"\xff\xfe", b'{"x": NaN}')),
            pytest.param(b'{"a":' * 5000, {}, 400, "body", id="deep"),
            (b"{}", {"Host": "evil.ex"}, 403, ""),
            (b"{}", {"Origin": "http://evil.ex"}, 403, ""),
            (b"{}", {"Content-Type": "a/b"}, 415, ""),
        ],
    )
    async def test_no_json_object_and_what_a_page_could_send_are_refused(
        self, stage, body, headers, expected, told
    ):
        rollout, client = stage.admit()
        status, answer = await client.request("POST", "/tools/ping", data=body, headers={**JSON, **headers})
        assert status == expected
        assert told in answer["detail"]
        assert rollout.tool_calls == []

    async def test_a_huge_body_is_refused_and_the_next_call_is_answered(self, stage):
        rollout, client = stage.admit()
        huge = b" " * (11 * 1024 * 1024)
        status, answer = await client.request("POST", "/tools/ping", data=huge, headers=JSON)
        assert status == 413
        assert "longer" in answer["detail"]
        assert (await client.call("ping"))[0] == 200
        assert len(rollout.tool_calls) == 1

    async def test_a_call_whose_client_hangs_up_is_carried_through(self, stage):
        rollout, client = stage.admit()
        body = b'{"flight_id": 1, "passenger": "Alice"}'
        _, writer = await asyncio.open_connection("127.0.0.1", int(stage.endpoint.url.rsplit(":", 1)[1]))
        lines = ["POST /tools/create_booking HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        lines += [f"Authorization: Bearer {client.token}", f"Content-Length: {len(body)}", "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        await writer.drain()
        writer.close()
        while not (await client.request("GET", "/rollout"))[1]["steps"]:  # noqa: ASYNC110 - behind HTTP
            await asyncio.sleep(0.01)
        await client.call("ping")  # runs after it
        assert await bookings(rollout) == 1


class TestOpeningAndClosing:
    async def test_the_token_is_nowhere_in_the_rollout_or_the_door(self, stage):
        rollout, client = stage.admit()
        await client.call("ping")
        assert len(client.token) >= 40
        for shown in (rollout.messages, rollout.tool_calls, vars(stage.endpoint)):
            assert client.token not in repr(shown)


class TestMcp:
    """The endpoint as the SDK's own client sees it."""

    @pytest.mark.parametrize("mode", ["auto", "legacy"])
    async def test_tools_are_listed_and_called(self, stage, mode):
        rollout, client = stage.admit()
        async with connected(client, mode) as tools:
            listed = (await tools.list_tools()).tools
            booked = await tools.call_tool("create_booking", {"flight_id": 1, "passenger": "Alice"})
            refused = [
                await tools.call_tool(name, arguments)
                for name, arguments in [("pay_booking", {"booking_id": "x"}), ("pay_booking", {}), ("no", {})]
            ]
        assert [
            {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
            for tool in listed
        ] == [tool["function"] for tool in rollout.tools]
        assert not booked.is_error
        assert await bookings(rollout) == 1
        assert all(result.is_error for result in refused)
        shown = [result.content[0].text for result in (booked, *refused)]
        assert shown == [call.content for call in rollout.tool_calls]

    async def test_without_the_package_the_rest_works(self, stage, monkeypatch):
        for name in ["mcp", *(name for name in sys.modules if name.startswith(("mcp.", "mcp_types")))]:
            monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, "reward_kit.agent.servers.mcp_server", raising=False)
        await stage.endpoint.close()
        await stage.endpoint.open()
        _, client = stage.admit()
        status, answer = await client.request("POST", "/mcp", json={})
        assert (status, stage.endpoint.addresses["mcp_url"]) == (501, None)
        assert "pip install 'mcp<3" in answer["detail"]
        assert (await client.call("ping"))[1]["result"] == "pong"


@asynccontextmanager
async def connected(client: Client, mode: str = "auto"):
    pytest.importorskip("mcp")
    import httpx2
    from mcp.client import Client as McpClient
    from mcp.client.streamable_http import streamable_http_client

    headers = {"Authorization": f"Bearer {client.token}"}
    async with httpx2.AsyncClient(headers=headers, trust_env=False) as http:
        transport = streamable_http_client(client.endpoint.addresses["mcp_url"], http_client=http)
        async with McpClient(transport, mode=mode) as tools:
            yield tools
