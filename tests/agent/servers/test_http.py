"""The tools of a bundle over HTTP, in process."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from reward_kit.agent.servers.http import build_app
from reward_kit.agent.servers.requests import MAX_BODY
from reward_kit.agent.servers.sessions import Sessions
from reward_kit.agent.tools.registry import ToolRegistry
from reward_kit.errors import ToolError


def notes_registry(folder: Path, **options: Any) -> ToolRegistry:
    """A registry whose bundle is ``folder``, with a tool for each way in which a call can end."""
    registry = ToolRegistry("notes", "Notes of a desk", **options)
    registry.folder = folder

    @registry.tool
    async def add_note(text: str, db):
        """Write a note down.

        Args:
            text: What to remember.
        """
        await db.execute("INSERT INTO notes(text) VALUES (:t)", {"t": text})
        return {"notes": await db.fetch_val("SELECT count(*) FROM notes")}

    @registry.tool
    def add_note_blocking(text: str, db):
        db.execute("INSERT INTO notes(text) VALUES (:t)", {"t": text})
        return "noted"

    @registry.tool
    async def refuse(db):
        await db.execute("INSERT INTO notes(text) VALUES ('never')")
        raise ToolError("not today")

    @registry.tool
    async def fail(db):
        await db.execute("INSERT INTO notes(text) VALUES ('never')")
        raise ValueError("broken tool")

    @registry.tool
    async def nothing():
        return None

    return registry


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "seed.sql").write_text("CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT);")
    return tmp_path


@contextlib.asynccontextmanager
async def client_of(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


@contextlib.asynccontextmanager
async def serving(registry: ToolRegistry, *, limit: int = 10) -> AsyncIterator[httpx.AsyncClient]:
    sessions = Sessions(registry, limit)
    async with client_of(build_app(registry, sessions)) as client:
        yield client
    sessions.close()


@pytest.fixture
async def client(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(notes_registry(folder)) as client:
        yield client


async def changes_of(client: httpx.AsyncClient, session: str = "default") -> Any:
    return (await client.get(f"/sessions/{session}/changes")).json()["changes"]


async def test_a_call_answers_with_result_content_and_the_rows_it_changed(client: httpx.AsyncClient) -> None:
    answer = await client.post("/tools/add_note", json={"text": "Zürich"})
    row = {"id": 1, "text": "Zürich"}
    assert answer.status_code == 200
    changes = [{"table": "notes", "op": "insert", "key": {"id": 1}, "after": row}]
    told = {"result": {"notes": 1}, "content": '{"notes": 1}', "error": False, "status": "ok"}
    assert answer.json() == {**told, "changes": changes}
    blocking = await client.post("/tools/add_note_blocking", json={"text": "a"})
    assert blocking.json()["result"] == "noted"
    assert len(await changes_of(client)) == 2


@pytest.mark.parametrize(
    ("tool", "status", "content"),
    [("refuse", "refused", "Error: not today"), ("fail", "failed", "Error: broken tool")],
)
async def test_a_tool_that_refuses_is_a_200(client: Any, tool: str, status: str, content: str) -> None:
    answer = await client.post(f"/tools/{tool}", json={})
    assert answer.status_code == 200
    told = {"content": content, "status": status}
    assert answer.json() == {"result": None, "error": True, "changes": [], **told}
    assert (await client.get("/sessions/default/changes")).json() == {"session": "default", "changes": []}


@pytest.mark.parametrize(
    ("tool", "body", "status", "fault"),
    [
        ("add_note", b'{"text": 5}', 422, "'text' should be a valid string, got 5 (number)"),
        ("add_note", b'{"text": "a", "db": 1}', 422, "'db' is unknown"),
        ("add_note", b'{"text": ', 422, "the arguments are not valid JSON"),
        ("add_note", b"[]", 422, "the arguments must be a JSON object"),
        ("add_note", b" " * (MAX_BODY + 1), 413, "longer than"),
        ("add_notes", b"{}", 404, "unknown tool 'add_notes' (did you mean 'add_note'?)"),
    ],
)
async def test_a_faulty_call_is_refused(client: Any, tool: str, body: bytes, status: int, fault: str) -> None:
    answer = await client.post(f"/tools/{tool}", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert fault in answer.json()["detail"]
    assert await changes_of(client) == []


async def test_sessions_do_not_see_each_other_and_can_be_reset(client: httpx.AsyncClient) -> None:
    async def add(text: str, session: str) -> Any:
        headers = {"X-Session-Id": session}
        return (await client.post("/tools/add_note", json={"text": text}, headers=headers)).json()["result"]

    await add("a", "alice")
    assert (await add("b", "alice"), await add("c", "bob")) == ({"notes": 2}, {"notes": 1})
    assert [row["after"]["text"] for row in await changes_of(client, "alice")] == ["a", "b"]
    assert (await client.post("/sessions/alice/reset")).json() == {"session": "alice", "changes": []}
    assert await changes_of(client, "alice") == await changes_of(client, "new") == []
    assert len(await changes_of(client, "bob")) == 1
    assert (await client.post("/sessions/new/reset")).status_code == 200


async def test_the_functions_of_the_user_may_import_when_they_run(tmp_path: Path) -> None:
    def text(name: str, seen: str = "") -> str:
        return f"from reward_kit.agent import ToolRegistry\nR = ToolRegistry('{name}')\n{seen}"

    imports = "    from .helper import word\n    db.execute('INSERT INTO notes(text) VALUES (?)', (word,))\n"
    (tmp_path / "seed.sql").write_text("CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT);")
    (tmp_path / "user_tools.py").write_text(text("user", f"@R.after_call\ndef seen(db):\n{imports}"))
    (tmp_path / "helper.py").write_text("word = 'seen'\n")
    (tmp_path / "notes.py").write_text(text("notes"))
    write_rows(tmp_path, {"id": "early", "toolset": ".notes"})
    sessions = Sessions(notes_registry(tmp_path), 3)
    with contextlib.closing(sessions):
        sessions.reset("a", "early")
        assert (await sessions.call("a", "add_note", {"text": "x"})).status == "ok"
        assert [row["after"]["text"] for row in await sessions.changes("a")] == ["x", "seen"]


EARLY = {"id": "early", "now": "2024-05-01T10:00:00Z", "seed_sql": "file:early.sql"}
ROWS = [EARLY, {"id": "late", "now": "2031-01-01T00:00:00Z"}]


def write_rows(folder: Path, *rows: dict[str, Any]) -> None:
    said = [{"role": "user", "content": "Hi"}]
    lines = [{"toolset": "notes.tools", "initial_messages": said, **row} for row in rows]
    (folder / "task.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


async def test_a_session_may_begin_as_the_rollouts_of_a_row_do(folder: Path) -> None:
    registry = notes_registry(folder)

    @registry.tool
    async def clock(db):
        return await db.fetch_val("SELECT date('now')")

    (folder / "early.sql").write_text(
        "CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT); INSERT INTO notes(text) VALUES ('a'), ('b');"
    )
    write_rows(folder, *ROWS)
    async with serving(registry) as client:

        async def reset(row: str, session: str = "default") -> httpx.Response:
            return await client.post(f"/sessions/{session}/reset", params={"row": row})

        async def note() -> Any:
            """The number of notes with one more, and the date in the session."""
            added = await client.post("/tools/add_note", json={"text": "x"})
            return added.json()["result"]["notes"], (await client.post("/tools/clock")).json()["result"]

        assert (await note())[0] == 1
        for row, expected in (("early", (3, "2024-05-01")), ("late", (1, "2031-01-01"))):
            assert (await reset(row)).json() == {"session": "default", "changes": []}
            assert await note() == expected
            assert len(await changes_of(client)) == 1

        missing = await reset("erly")
        assert missing.status_code == 404
        assert missing.json()["detail"] == "task.jsonl has no row 'erly' (did you mean 'early'?)"
        write_rows(folder, {"id": "early", "now": "soon"})
        faulty = await reset("early")
        assert faulty.status_code == 500
        assert faulty.json()["detail"].startswith("task.jsonl:1: row 'early', field 'now'")
        assert await note() == (2, "2031-01-01")  # unchanged

        (folder / "task.jsonl").unlink()
        assert (await reset("early", "new")).status_code == 404
        await client.post("/sessions/default/reset")
        assert (await note())[0] == 1


@pytest.mark.parametrize("session", ["a b", "x" * 65, "a/b"])
async def test_a_session_id_that_fits_no_path_is_a_422(client: httpx.AsyncClient, session: str) -> None:
    answer = await client.post("/tools/nothing", headers={"X-Session-Id": session})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("X-Session-Id: ")


async def test_only_sessions_without_changes_make_room_for_new_ones(folder: Path) -> None:
    write_rows(folder, ROWS[1])
    async with serving(notes_registry(folder), limit=3) as client:

        async def use(tool: str, session: str) -> httpx.Response:
            return await client.post(f"/tools/{tool}", json={"text": "x"}, headers={"X-Session-Id": session})

        await client.post("/tools/refuse", json={})  # "default", which stays although it has no changes
        assert (await use("add_note", "kept")).json()["result"] == {"notes": 1}
        await client.post("/tools/refuse", json={}, headers={"X-Session-Id": "idle"})
        assert (await use("add_note", "new")).json()["result"] == {"notes": 1}  # in the place of "idle"

        full = await use("add_note", "one_more")
        assert full.status_code == 503
        assert full.json()["detail"].startswith("3 sessions are open")
        assert (await use("add_note", "kept")).json()["result"] == {"notes": 2}

        assert (await client.delete("/sessions/kept")).status_code == 204
        assert (await client.post("/sessions/of_row/reset", params={"row": "late"})).status_code == 200
        assert (await use("add_note", "one_more")).status_code == 503  # a row's session stays, too


async def test_openapi_shows_every_tool_with_its_own_parameters(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    operation = document["paths"]["/tools/add_note"]["post"]
    assert operation["description"] == "Write a note down."
    schema = {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "What to remember."}},
        "required": ["text"],
        "additionalProperties": False,
    }
    assert operation["requestBody"] == {"required": True, "content": {"application/json": {"schema": schema}}}
    assert [parameter["name"] for parameter in operation["parameters"]] == ["X-Session-Id"]
    names = ("add_note", "add_note_blocking", "refuse", "fail", "nothing")
    sessions = {f"/sessions/{{id}}{rest}" for rest in ("", "/reset", "/changes")}
    assert set(document["paths"]) == {*(f"/tools/{name}" for name in names), "/tools", "/health", *sessions}
    assert {"200", "404", "422"} <= document["paths"]["/sessions/{id}/reset"]["post"]["responses"].keys()


async def test_docs_load_nothing_from_other_sites(client: httpx.AsyncClient) -> None:
    page = (await client.get("/docs")).text
    scripts = [part.split('"')[0] for part in page.split('src="')[1:]]
    assert scripts
    for script in scripts:
        assert script.startswith("/")
        assert (await client.get(script)).status_code == 200
    assert (await client.get("/", follow_redirects=True)).text == page


async def test_the_application_can_be_extended_through_fastapi(folder: Path) -> None:
    from fastapi import FastAPI

    registry = notes_registry(folder)
    app = registry.create_fastapi_app()

    @registry.tool
    async def late():
        return "registered after the application was made"

    @app.fastapi.get("/extra")
    async def extra():
        return "extra"

    assert isinstance(app.fastapi, FastAPI)
    assert registry.create_fastapi_app() is app
    async with client_of(app) as client:
        assert (await client.get("/extra")).json() == "extra"
        answer = await client.post("/tools/late")
    assert answer.json()["result"] == "registered after the application was made"


async def test_a_faulty_seed_keeps_the_server_from_starting_with_one_clear_error(folder: Path) -> None:
    (folder / "seed.sql").write_text("CREATE TABLE notes(id INTEGER);\nINSERT INTO nots VALUES (1);\n")
    sent: list[Any] = []
    unused: Any = None

    async def send(message: Any) -> None:
        sent.append(message)

    await notes_registry(folder).create_fastapi_app()({"type": "lifespan"}, unused, send)
    assert sent[0]["type"] == "lifespan.startup.failed"
    assert "seed.sql:2: " in sent[0]["message"]
    assert "nots" in sent[0]["message"]
