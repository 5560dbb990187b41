"""``create_mcp_server``: the tools of a registry for MCP clients, in process."""

import asyncio
import gc
import runpy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from command import new_python

from reward_kit.agent.base.network import listen
from reward_kit.agent.tools.registry import ToolRegistry

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="mcp is not installed: pip install mcp")
SEED = "CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT); INSERT INTO notes VALUES (1, 'first');"
TOOLS = """
from typing import Annotated, Literal
from pydantic import BaseModel, Field
from reward_kit.agent import ToolError, ToolRegistry

R = ToolRegistry("notes", "Notes of a small office")


class Size(BaseModel):
    width: int


class Page(BaseModel):
    number: Annotated[int, Field(ge=1, description="counted from 1")]
    size: Size


@R.tool
async def add(text: str, kind: Literal["memo", "letter"] = "memo", *, db) -> dict:
    '''Write a note.'''
    print("adding", text)
    await db.execute("INSERT INTO notes(text) VALUES (:t)", {"t": text})
    return {"count": await db.fetch_val("SELECT count(*) FROM notes")}


@R.tool
async def count(db) -> int:
    '''How many notes there are.'''
    return await db.fetch_val("SELECT count(*) FROM notes")


@R.tool
async def turn_to(page: Page, db) -> str:
    '''Turn to a page.'''
    return str(page.number)


NUMBER = {"type": "integer", "x-unit": "pages"}


@R.tool(parameters={"type": "object", "properties": {"n": NUMBER}, "required": ["n"]})
async def tear(n, db) -> str:
    '''Tear pages out.'''
    raise ToolError("the notes are bound")
"""


def client_of(server: object, **options: Any) -> Any:
    from mcp.client import Client  # slow

    return Client(server, **options)


@pytest.fixture
def registry(tmp_path: Path) -> ToolRegistry:
    folder = tmp_path / "office_notes"
    folder.mkdir()
    (folder / "tools.py").write_text(TOOLS)
    (folder / "seed.sql").write_text(SEED)
    return runpy.run_path(str(folder / "tools.py"))["R"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
class TestTools:
    async def test_are_listed_with_their_own_schemas(self, registry, mode):
        async with client_of(registry.create_mcp_server(), mode=mode) as client:
            listed = (await client.list_tools()).tools
        offered = [tool["function"] for tool in registry.get_openai_tools()]
        shown = [{"name": t.name, "description": t.description, "parameters": t.input_schema} for t in listed]
        assert shown == offered

    async def test_answer_what_a_model_would_see(self, registry, mode):
        async with client_of(registry.create_mcp_server(), mode=mode) as client:
            result = await client.call_tool("add", {"text": "second"})
        assert (result.content[0].text, result.is_error) == ('{"count": 2}', False)

    @pytest.mark.parametrize(
        ("name", "arguments", "told"),
        [
            ("tear", {"n": 1}, "the notes are bound"),
            ("add", {}, "text"),
            ("add", {"text": "x", "kind": "poem"}, "memo"),
            ("burn", {}, "unknown tool"),
        ],
    )
    async def test_an_error_of_a_tool_is_a_result(self, registry, mode, name, arguments, told):
        async with client_of(registry.create_mcp_server(), mode=mode) as client:
            result = await client.call_tool(name, arguments)
        assert result.is_error
        assert told in result.content[0].text

    async def test_two_sessions_do_not_see_each_others_writes(self, registry, mode):
        server = registry.create_mcp_server()
        async with client_of(server, mode=mode) as one, client_of(server, mode=mode) as other:
            await one.call_tool("add", {"text": "mine"})
            assert (await one.call_tool("count", {})).content[0].text == "2"
            assert (await other.call_tool("count", {})).content[0].text == "1"


async def test_a_session_with_changes_stays_until_it_ends(registry, monkeypatch):
    monkeypatch.setattr("reward_kit.agent.servers.mcp_server.MAX_SESSIONS", 1)
    server = registry.create_mcp_server()
    async with client_of(server) as one, client_of(server) as other:
        await one.call_tool("add", {"text": "mine"})
        refused = await other.call_tool("count", {})
        assert refused.is_error
        assert "1 sessions are open" in refused.content[0].text
        assert (await one.call_tool("count", {})).content[0].text == "2"
    async with client_of(server) as later:
        assert (await later.call_tool("count", {})).content[0].text == "1"


async def test_a_session_over_http_makes_room_once_it_has_ended(registry, monkeypatch):
    """Also before Python collects the garbage that the SDK leaves of it."""
    monkeypatch.setattr("reward_kit.agent.servers.mcp_server.MAX_SESSIONS", 1)
    from mcp.client.streamable_http import streamable_http_client  # slow

    app = registry.create_mcp_server().streamable_http_app()
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        gc.disable()
        try:
            for _ in range(3):
                async with client_of(streamable_http_client(url)) as client:
                    added = await client.call_tool("add", {"text": "mine"})
                    assert added.content[0].text == '{"count": 2}'
        finally:
            gc.enable()
            server.should_exit = True
            await serving


def test_without_the_package_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['mcp'] = None\n"
        "from reward_kit.agent import ToolRegistry\n"
        "try: ToolRegistry('x').create_mcp_server()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    out = new_python("-c", code).out
    assert out.startswith("RewardKitError MCP needs the package mcp")
    assert "pip install 'mcp<3" in out
