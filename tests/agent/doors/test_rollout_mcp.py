"""The door as MCP clients see it: the SDK's own client over streamable HTTP."""

from __future__ import annotations

import asyncio
import sys
import traceback
from contextlib import asynccontextmanager

import aiohttp
import pytest
from small_task import seeded, small_task

from reward_kit.agent.doors import ToolDoor
from reward_kit.agent.rollout import Rollout, RolloutLimits

mcp = pytest.importorskip("mcp")


@pytest.fixture
async def door():
    door = ToolDoor()
    await door.open()
    yield door
    await door.close()


@pytest.fixture
def rollout(tmp_path):
    base = seeded(tmp_path)
    limits = RolloutLimits(max_steps=50)
    return Rollout(small_task(tmp_path), 0, database=base.fork(), limits=limits)


@asynccontextmanager
async def connected(door, token, mode="auto"):
    import httpx2
    from mcp.client import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False) as http,
        Client(streamable_http_client(door.mcp_url, http_client=http), mode=mode) as client,
    ):
        yield client


@pytest.mark.parametrize("mode", ["auto", "legacy"])
class TestTools:
    async def test_names_descriptions_and_schemas_are_those_of_the_rollout(self, door, rollout, mode):
        with door.admit(rollout) as token:
            async with connected(door, token, mode) as client:
                listed = (await client.list_tools()).tools
        assert [
            {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
            for tool in listed
        ] == [tool["function"] for tool in rollout.tools]

    async def test_a_call_acts_on_the_rollout(self, door, rollout, mode):
        with door.admit(rollout) as token:
            async with connected(door, token, mode) as client:
                result = await client.call_tool("create_booking", {"flight_id": 1, "passenger": "Alice"})
        assert not result.is_error
        assert result.content[0].text == rollout.tool_calls[0].content
        assert await rollout.database.fetch_val("SELECT count(*) FROM bookings") == 1

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [("pay_booking", {"booking_id": "x"}), ("pay_booking", {}), ("nothing", {})],
    )
    async def test_what_a_tool_says_against_a_call_is_an_error_result(
        self, door, rollout, mode, name, arguments
    ):
        with door.admit(rollout) as token:
            async with connected(door, token, mode) as client:
                result = await client.call_tool(name, arguments)
        assert result.is_error
        assert result.content[0].text == rollout.tool_calls[0].content

    async def test_a_terminal_tool_ends_the_rollout(self, door, rollout, mode):
        with door.admit(rollout) as token:
            async with connected(door, token, mode) as client:
                last = await client.call_tool("transfer", {})
                late = await client.call_tool("ping", {})
        assert (last.content[0].text, last.is_error) == ("Transferred", False)
        assert last.meta["reward-kit/stopped"] == "terminal_tool"
        assert late.is_error
        assert "over" in late.content[0].text
        assert [call.name for call in rollout.tool_calls] == ["transfer"]


async def test_two_tokens_are_two_rollouts(door, tmp_path):
    base = seeded(tmp_path)
    rollouts = [Rollout(small_task(tmp_path), i, database=base.fork()) for i in range(2)]
    with door.admit(rollouts[0]) as one, door.admit(rollouts[1]) as other:
        async with connected(door, one) as first, connected(door, other) as second:
            await asyncio.gather(
                first.call_tool("create_booking", {"flight_id": 1, "passenger": "Alice"}),
                second.call_tool("ping", {}),
            )
    assert [[call.name for call in rollout.tool_calls] for rollout in rollouts] == [
        ["create_booking"],
        ["ping"],
    ]


async def test_a_client_without_the_token_is_turned_away(door, rollout):
    with door.admit(rollout), pytest.raises(Exception, match="TaskGroup") as raised:
        async with connected(door, "wrong") as client:
            await client.call_tool("ping", {})
    assert "MCPError" in "".join(traceback.format_exception(raised.value))
    assert rollout.tool_calls == []


async def test_without_the_package_mcp_the_rest_of_the_door_works(rollout, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    for name in [name for name in sys.modules if name.startswith(("mcp.", "mcp_types"))]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("reward_kit.agent.doors.rollout_mcp", "reward_kit.agent.tools.mcp_format"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    door = ToolDoor()
    await door.open()
    with door.admit(rollout) as token:
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(headers=headers) as http:
            async with http.post(f"{door.url}/mcp", json={}) as answer:
                assert answer.status == 501
                assert "reward-kit[mcp]" in (await answer.json())["detail"]
            async with http.post(f"{door.url}/tools/ping") as answer:
                assert (await answer.json())["result"] == "pong"
        assert door.mcp_url is None
    await door.close()
