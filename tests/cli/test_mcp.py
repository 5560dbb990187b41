"""``reward-kit mcp`` as an MCP client meets it: a real process, the SDK's own client."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from command import run_command, stand_in, start

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="mcp is not installed: pip install mcp")
TOOLS = """
import os
import subprocess
import sys

from reward_kit.agent import ToolRegistry

print("imported")
R = ToolRegistry("notes", "Notes of a small office")


@R.tool
async def add(text: str, db) -> int:
    '''Write a note.'''
    print("adding", text)
    os.write(1, b"raw\\n")
    subprocess.run([sys.executable, "-c", "print('child', input('?') if False else '')"])
    await db.execute("INSERT INTO notes(text) VALUES (:t)", {"t": text})
    return await db.fetch_val("SELECT count(*) FROM notes")


@R.tool
def count(db) -> int:
    '''The number of notes.'''
    return db.fetch_val("SELECT count(*) FROM notes")


@R.tool
def long(letters: int) -> str:
    '''A text of this many letters, of two bytes each.'''
    return "é" * letters
"""
OTHER = """
from reward_kit.agent import ToolRegistry

R = ToolRegistry("dates")


@R.tool
async def today(db) -> str:
    '''The date, and the number of notes.'''
    return await db.fetch_val("SELECT date('now') || ' ' || count(*) FROM notes")
"""
NOTES = "office_notes"
SEED = """
def seed(db):
    print("seeding")
    db.execute("CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT)")
    db.execute("INSERT INTO notes VALUES (1, 'first')")
"""


def with_notes(folder: Path) -> Path:
    """The folder, with the bundle ``office_notes`` in it."""
    bundle = folder / NOTES
    bundle.mkdir()
    (bundle / "tools.py").write_text(TOOLS)
    (bundle / "seed.py").write_text(SEED)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder above the bundle ``office_notes``."""
    return with_notes(tmp_path)


@pytest.fixture
def rows(folder: Path) -> Path:
    """A row of the bundle's own, and one with other tools, other data and a clock that stands still."""
    common = {"initial_messages": [], "end_goal_sql": "SELECT 1"}
    sql = (
        "CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT); INSERT INTO notes VALUES (1, 'a'), (2, 'b');"
    )
    other = {"toolset": f"{NOTES}.other", "seed_sql": sql, "now": "2031-05-01T10:00:00"}
    lines = [{"id": "notes.one", "toolset": f"{NOTES}.tools"}, {"id": "notes.two", **other}]
    (folder / NOTES / "task.jsonl").write_text("\n".join(json.dumps(line | common) for line in lines))
    (folder / NOTES / "other.py").write_text(OTHER)
    return folder


@asynccontextmanager
async def over_stdio(folder: Path, target: str, *options: str, mode: str = "auto", log: object = None):
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    programs = folder / "programs"
    if not programs.exists():
        programs.mkdir()
        stand_in(programs)
    given = {"args": ["mcp", target, *options], "cwd": folder, "env": dict(os.environ)}
    parameters = StdioServerParameters(command=str(programs / "reward-kit"), **given)
    async with Client(stdio_client(parameters, errlog=log or sys.stderr), mode=mode) as client:
        yield client


@contextmanager
def serving(folder: Path, *arguments: str, **environment: str) -> Iterator[str]:
    """``reward-kit mcp office_notes.tools --http`` on a free port; gives the address it prints."""
    options = ("--http", "--port", "0", *arguments)
    process = start("mcp", "office_notes.tools", *options, cwd=folder, env={**os.environ, **environment})
    try:
        assert process.stderr is not None
        printed = ""
        while "http://" not in printed:
            line = process.stderr.readline()
            assert line, f"the server ended: {printed}"
            printed += line
        found = re.search(r"http://\S+", printed)
        assert found is not None
        yield found[0].replace("0.0.0.0", "127.0.0.1")
        process.send_signal(2)
        _, rest = process.communicate(timeout=20)
        assert process.returncode in (0, 130)
        assert "Traceback" not in rest
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def over_http(url: str, **headers: str):
    import httpx2
    from mcp.client import Client
    from mcp.client.streamable_http import streamable_http_client

    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


async def count(client: Any) -> str:
    return (await client.call_tool("count", {})).content[0].text


class TestStdio:
    @pytest.mark.parametrize(("cwd", "target", "mode"), [(".", NOTES, "legacy"), (NOTES, ".", "auto")])
    async def test_tools_are_listed_and_called_and_print_to_stderr(self, folder, tmp_path, cwd, target, mode):
        with (tmp_path / "log.txt").open("w+") as log:
            async with over_stdio(folder / cwd, target, mode=mode, log=log) as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == ["add", "count", "long"]
                assert (await client.call_tool("add", {"text": "second"})).content[0].text == "2"
                assert await count(client) == "2"
            log.seek(0)
            printed = log.read()
        for text in ("imported", "seeding", "adding second", "raw", "child"):
            assert text in printed

    @pytest.mark.parametrize(
        ("cwd", "target"), [(".", f"{NOTES}.tools"), (".", f"{NOTES}/task.jsonl"), (NOTES, ".")]
    )
    async def test_with_a_row_sessions_begin_with_its_tools_data_and_clock(self, rows, cwd, target):
        async with over_stdio(rows / cwd, target, "--row", "notes.two") as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["today"]
            assert (await client.call_tool("today", {})).content[0].text == "2031-05-01 2"

    async def test_a_row_without_tools_of_its_own_has_the_bundles(self, rows):
        async with over_stdio(rows, NOTES, "--row", "notes.one") as client:
            assert await count(client) == "1"

    def test_an_unknown_row_is_an_error_that_names_near_ones(self, rows):
        ran = run_command("mcp", NOTES, "--task-ids", "note.two", cwd=rows)
        assert (ran.code, ran.error.splitlines()[-1].split(";")[0]) == (
            2,
            "Error: --rows: there is no row 'note.two' (did you mean 'notes.two'?). The dataset has 2 rows",
        )

    def test_standard_output_has_only_the_protocol_until_the_input_ends(self, folder):
        about = {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
        }  # fmt: skip
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
        add = {"name": "add", "arguments": {"text": "x"}}
        process, method = started(folder), "tools/call"
        answers = [ask(process, hello), ask(process, {**hello, "id": 2, "method": method, "params": add})]
        rest, _ = process.communicate(timeout=30)
        assert [answer["id"] for answer in answers] == [1, 2]
        assert answers[0]["result"]["serverInfo"] == {"name": "notes", "version": version("reward-kit")}
        assert answers[1]["result"]["content"][0]["text"] == "2"
        assert (rest, process.returncode) == ("", 0)

    def test_ctrl_c_ends_it(self, folder):
        process = started(folder)
        ask(process, {"jsonrpc": "2.0", "id": 1, "method": "ping"})  # it waits for input now
        process.send_signal(2)
        assert process.wait(timeout=20) == 128 + 2
        process.communicate()


def started(folder: Path) -> subprocess.Popen[str]:
    return start("mcp", "office_notes", cwd=folder, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)


def ask(process: subprocess.Popen[str], message: dict[str, Any]) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


@pytest.fixture(scope="class")
def url(tmp_path_factory) -> Iterator[str]:
    with serving(with_notes(tmp_path_factory.mktemp("served"))) as url:
        yield url


class TestHttp:
    async def test_two_sessions_do_not_see_each_others_writes(self, url):
        async with over_http(url) as one, over_http(url) as other:
            assert (await one.call_tool("add", {"text": "mine"})).content[0].text == "2"
            assert (await count(one), await count(other)) == ("2", "1")
        async with over_http(url) as later:
            assert await count(later) == "1"
            # longer than clients take as an event
            answer = await later.call_tool("long", {"letters": 800_000})
            assert answer.content[0].text == "é" * 800_000

    async def test_with_a_token_it_may_listen_elsewhere(self, folder):
        with serving(folder, "--host", "0.0.0.0", REWARD_KIT_MCP_TOKEN="open-sesame") as url:
            async with httpx.AsyncClient() as http:
                assert (await http.post(url, json={})).status_code == 401
                wrong = {"Authorization": "Bearer wrong"}
                assert (await http.post(url, json={}, headers=wrong)).status_code == 401
            async with over_http(url, Authorization="Bearer open-sesame") as client:
                assert await count(client) == "1"

    def test_strangers_are_refused_and_those_who_hang_up_print_nothing(self, folder, url):
        headers = {"Origin": "http://evil.example", "Accept": "application/json, text/event-stream"}
        assert httpx.post(url, json={}, headers=headers).status_code == 403
        assert httpx.post(url, json={}, headers={"Host": "evil.example"}).status_code == 403
        host = url.split("/")[2]
        port = host.split(":")[1]
        with socket.create_connection(("127.0.0.1", int(port))) as client:
            head = f"POST /mcp HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Accept: application/json, text/event-stream\r\n".encode())
            client.sendall(b"Content-Length: 100\r\n\r\n{")
        assert httpx.get(f"http://{host}/").status_code == 404
        second = run_command("mcp", "office_notes", "--http", "--port", port, cwd=folder)
        assert second.code == 2
        assert f"cannot listen on 127.0.0.1 port {port}" in second.error


def test_a_folder_with_a_dot_in_its_name_is_served(folder: Path) -> None:
    (folder / NOTES).rename(folder / "notes.v2")
    served = run_command("mcp", "notes.v2", cwd=folder)
    assert (served.code, served.out, "seeding" in served.error) == (0, "", True), served


class TestFaults:
    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
    def test_listening_elsewhere_without_a_token_is_refused(self, folder, host):
        env = {**os.environ, "REWARD_KIT_MCP_TOKEN": ""}
        done = run_command("mcp", "office_notes.tools", "--http", "--host", host, cwd=folder, env=env)
        assert done.code == 2
        assert "REWARD_KIT_MCP_TOKEN" in done.err
        assert len(done.err.splitlines()) == 1

    @pytest.mark.parametrize(
        ("target", "fault"),
        [
            ("nothing.tools", "there is no module 'nothing'"),
            ("office_notes.seed", "has no ToolRegistry"),
            ("office_notes/tools.py", "is a file"),
            ("office_notes.tools:S", "does not exist"),
            ("json", "has no ToolRegistry"),
            ("office_notes", "nonsense"),
        ],
    )
    def test_a_target_that_cannot_be_served_is_one_line(self, folder, target, fault):
        (folder / "office_notes" / "seed.py").write_text("def seed(db):\n    db.execute('nonsense')\n")
        done = run_command("mcp", target, cwd=folder)
        assert (done.code, done.out) == (2, "")
        (line,) = [line for line in done.error.splitlines() if line.startswith("Error: ")]
        assert fault in line
