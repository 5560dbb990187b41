"""The tools of a bundle over HTTP, in process."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from reward_kit.agent.rollout import RolloutStopped
from reward_kit.agent.tool_registry import ToolRegistry
from reward_kit.agent.tool_server import MAX_BODY, build_server
from reward_kit.errors import ToolError


class Passenger(BaseModel):
    name: str
    friends: list[Passenger] = []


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

    @registry.tool
    async def odd_text():
        return "half a pair: \ud83d"

    @registry.tool
    async def greet(passenger: Passenger, times: int = 1):
        return f"Hello {passenger.name}" * times

    return registry


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "seed.sql").write_text("CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT);")
    return tmp_path


@contextlib.asynccontextmanager
async def client_of(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        yield client


@pytest.fixture
async def client(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    server = build_server(notes_registry(folder))
    async with client_of(server.app) as client:
        yield client
    server.sessions.close()


# Calls


async def test_a_call_answers_with_result_content_and_the_rows_it_changed(client: httpx.AsyncClient) -> None:
    answer = await client.post("/tools/add_note", json={"text": "Zürich"})

    assert answer.status_code == 200
    assert answer.json() == {
        "result": {"notes": 1},
        "content": '{"notes": 1}',
        "error": False,
        "status": "ok",
        "changes": [
            {
                "table": "notes",
                "op": "insert",
                "key": {"id": 1},
                "after": {"id": 1, "text": "Zürich"},
            }
        ],
    }


async def test_tools_that_block_share_the_session_with_those_that_do_not(client: httpx.AsyncClient) -> None:
    assert (await client.post("/tools/add_note_blocking", json={"text": "a"})).json()["result"] == "noted"
    assert (await client.post("/tools/add_note", json={"text": "b"})).json()["result"] == {"notes": 2}


@pytest.mark.parametrize(
    ("tool", "status", "content"),
    [("refuse", "refused", "Error: not today"), ("fail", "failed", "Error: broken tool")],
)
async def test_a_tool_that_refuses_or_fails_answers_200_with_the_text_and_changes_nothing(
    client: httpx.AsyncClient, tool: str, status: str, content: str
) -> None:
    answer = await client.post(f"/tools/{tool}", json={})

    assert answer.status_code == 200
    assert answer.json() == {
        "result": None,
        "content": content,
        "error": True,
        "status": status,
        "changes": [],
    }
    assert (await client.get("/sessions/default/changes")).json() == {"session": "default", "changes": []}


class Own(BaseException):
    """Nothing that ``except Exception`` catches."""


@pytest.mark.parametrize("error", [Own, KeyboardInterrupt, GeneratorExit, RolloutStopped])
async def test_whatever_a_tool_raises_is_an_answer(folder: Path, error: type[BaseException]) -> None:
    registry = notes_registry(folder)

    @registry.tool
    def breaks(db):
        db.execute("INSERT INTO notes(text) VALUES ('never')")
        raise error

    server = build_server(registry)
    async with client_of(server.app) as client:
        answer = await client.post("/tools/breaks")
        changes = (await client.get("/sessions/default/changes")).json()["changes"]
    server.sessions.close()

    assert (answer.status_code, answer.json()["status"]) == (200, "failed")
    assert answer.json()["content"] == f"Error: {error.__name__}"
    assert changes == []


async def test_what_an_async_tool_gives_piece_by_piece_is_result_and_content(folder: Path) -> None:
    registry = notes_registry(folder)

    @registry.tool
    async def pieces():
        return iter(range(3))

    server = build_server(registry)
    async with client_of(server.app) as client:
        answer = (await client.post("/tools/pieces")).json()
    server.sessions.close()

    assert (answer["result"], answer["content"]) == ([0, 1, 2], "[0, 1, 2]")


async def test_a_tool_without_parameters_needs_no_body(client: httpx.AsyncClient) -> None:
    answer = await client.post("/tools/nothing")

    assert (answer.status_code, answer.json()["result"], answer.json()["content"]) == (200, None, "null")


async def test_text_that_is_not_valid_unicode_can_be_answered(client: httpx.AsyncClient) -> None:
    assert (await client.post("/tools/odd_text")).json()["content"] == "half a pair: \ufffd"


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b'{"text": 5}', "'text' should be a valid string, got 5 (number)"),
        (b"{}", "'text' is missing"),
        (b'{"text": "a", "db": 1}', "'db' is unknown"),
        (b'{"text": ', "the arguments are not valid JSON"),
        (b"[]", "the arguments must be a JSON object"),
        (b"\xff", "the arguments are not valid JSON"),
    ],
)
async def test_bad_arguments_are_a_422_that_says_what_is_wrong(
    client: httpx.AsyncClient, body: bytes, fault: str
) -> None:
    answer = await client.post("/tools/add_note", content=body)

    assert answer.status_code == 422
    assert fault in answer.json()["detail"]
    assert (await client.get("/sessions/default/changes")).json()["changes"] == []


async def test_an_unknown_tool_is_a_404_that_names_the_nearest(client: httpx.AsyncClient) -> None:
    answer = await client.post("/tools/add_notes", json={})

    assert answer.status_code == 404
    assert (
        "unknown tool 'add_notes' (did you mean 'add_note'?); available: add_note, "
        in answer.json()["detail"]
    )


async def test_a_body_of_more_than_a_megabyte_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/tools/add_note", json={"text": "x" * MAX_BODY})

    assert answer.status_code == 413


# Sessions


async def test_sessions_do_not_see_each_other_and_reset_goes_back_to_the_seed(
    client: httpx.AsyncClient,
) -> None:
    alice, bob = {"X-Session-Id": "alice"}, {"X-Session-Id": "bob"}

    await client.post("/tools/add_note", json={"text": "a"}, headers=alice)
    second = await client.post("/tools/add_note", json={"text": "b"}, headers=alice)
    others = await client.post("/tools/add_note", json={"text": "c"}, headers=bob)

    assert (second.json()["result"], others.json()["result"]) == ({"notes": 2}, {"notes": 1})
    changes = (await client.get("/sessions/alice/changes")).json()["changes"]
    assert [row["after"]["text"] for row in changes] == ["a", "b"]

    assert (await client.post("/sessions/alice/reset")).json() == {"session": "alice", "changes": []}
    assert (await client.get("/sessions/alice/changes")).json()["changes"] == []
    assert len((await client.get("/sessions/bob/changes")).json()["changes"]) == 1


ROWS = [
    {"id": "early", "now": "2024-05-01T10:00:00Z", "seed_sql": "file:early.sql"},
    {"id": "late", "now": "2031-01-01T00:00:00Z"},
]


def write_rows(folder: Path, *rows: dict[str, Any]) -> None:
    said = [{"role": "user", "content": "Hi"}]
    lines = [{"toolset": "notes.tools", "initial_messages": said, **row} for row in rows]
    (folder / "task.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


async def note(client: httpx.AsyncClient, session: str = "default") -> Any:
    """How many notes there are after one more, and what time it is there."""
    headers = {"X-Session-Id": session}
    added = await client.post("/tools/add_note", json={"text": "x"}, headers=headers)
    clock = await client.post("/tools/clock", headers=headers)
    return added.json()["result"]["notes"], clock.json()["result"]


async def test_a_session_may_begin_as_the_rollouts_of_a_row_do(folder: Path) -> None:
    registry = notes_registry(folder)

    @registry.tool
    async def clock(db):
        return await db.fetch_val("SELECT date('now')")

    (folder / "early.sql").write_text(
        "CREATE TABLE notes(id INTEGER PRIMARY KEY, text TEXT); INSERT INTO notes(text) VALUES ('a'), ('b');"
    )
    write_rows(folder, *ROWS)
    server = build_server(registry)
    async with client_of(server.app) as client:
        assert (await note(client))[0] == 1
        for row, expected in (("early", (3, "2024-05-01")), ("late", (1, "2031-01-01"))):
            reset = await client.post("/sessions/default/reset", params={"row": row})
            assert reset.json() == {"session": "default", "changes": []}
            assert (await client.get("/sessions/default/changes")).json()["changes"] == []
            assert await note(client) == expected
            assert len((await client.get("/sessions/default/changes")).json()["changes"]) == 1

        missing = await client.post("/sessions/default/reset", params={"row": "erly"})
        assert missing.status_code == 404
        assert missing.json()["detail"] == "task.jsonl has no row 'erly' (did you mean 'early'?)"
        write_rows(folder, {"id": "early", "now": "soon"})
        faulty = await client.post("/sessions/default/reset", params={"row": "early"})
        assert faulty.status_code == 500
        assert faulty.json()["detail"].startswith("task.jsonl:1: row 'early', field 'now'")
        assert await note(client) == (2, "2031-01-01")  # as it was

        (folder / "task.jsonl").unlink()
        assert (await client.post("/sessions/new/reset", params={"row": "early"})).status_code == 404
        await client.post("/sessions/default/reset")
        assert (await note(client))[0] == 1
    server.sessions.close()


async def test_a_session_of_a_row_makes_no_room_for_others(folder: Path) -> None:
    write_rows(folder, *ROWS[1:])
    server = build_server(notes_registry(folder), max_sessions=2)
    async with client_of(server.app) as client:
        for session in ("default", "row"):
            answer = await client.post(f"/sessions/{session}/reset", params={"row": "late"})
            assert answer.status_code == 200
        third = await client.post("/sessions/third/reset", params={"row": "late"})
        assert third.status_code == 503
        assert set(server.sessions._sessions) == {"default", "row"}
    server.sessions.close()


async def test_a_session_that_nobody_has_used_has_no_changes(client: httpx.AsyncClient) -> None:
    assert (await client.get("/sessions/new/changes")).json() == {"session": "new", "changes": []}
    assert (await client.post("/sessions/new/reset")).status_code == 200


@pytest.mark.parametrize("session", ["a b", "x" * 65, "a/b", "<script>"])
async def test_a_session_id_that_could_not_stand_in_a_path_is_a_422(
    client: httpx.AsyncClient, session: str
) -> None:
    answer = await client.post("/tools/nothing", headers={"X-Session-Id": session})

    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("X-Session-Id: ")


async def test_only_sessions_without_changes_make_room_for_new_ones(folder: Path) -> None:
    server = build_server(notes_registry(folder), max_sessions=3)
    async with client_of(server.app) as client:

        async def use(tool: str, session: str) -> httpx.Response:
            return await client.post(f"/tools/{tool}", json={"text": "x"}, headers={"X-Session-Id": session})

        await client.post("/tools/refuse", json={})  # the session "default", unused for longest, unchanged
        assert (await use("add_note", "kept")).json()["result"] == {"notes": 1}
        await client.post("/tools/refuse", json={}, headers={"X-Session-Id": "idle"})
        assert (await use("add_note", "new")).json()["result"] == {"notes": 1}
        assert set(server.sessions._sessions) == {"default", "kept", "new"}

        full = await use("add_note", "one_more")
        assert full.status_code == 503
        assert full.json()["detail"].startswith("3 sessions are open")
        assert (await use("add_note", "kept")).json()["result"] == {"notes": 2}

        assert (await client.delete("/sessions/kept")).status_code == 204
        assert (await use("add_note", "one_more")).json()["result"] == {"notes": 1}
    server.sessions.close()


async def test_a_reset_while_a_call_runs_leaves_the_call_its_database(folder: Path) -> None:
    registry = notes_registry(folder)
    entered, go_on = asyncio.Event(), asyncio.Event()

    @registry.tool
    async def slow(db):
        await db.execute("INSERT INTO notes(text) VALUES ('slow')")
        entered.set()
        await go_on.wait()
        return await db.fetch_val("SELECT count(*) FROM notes")

    server = build_server(registry)
    async with client_of(server.app) as client:
        call = asyncio.create_task(client.post("/tools/slow"))
        await entered.wait()
        await client.post("/sessions/default/reset")
        fresh = await client.post("/tools/add_note", json={"text": "fresh"})
        go_on.set()

        assert (await call).json()["result"] == 1
        assert fresh.json()["result"] == {"notes": 1}
        changes = (await client.get("/sessions/default/changes")).json()["changes"]
        assert [row["after"]["text"] for row in changes] == ["fresh"]
    server.sessions.close()


async def test_changes_wait_for_the_call_that_is_running(folder: Path) -> None:
    registry = notes_registry(folder)
    entered, go_on = asyncio.Event(), asyncio.Event()

    @registry.tool
    async def slow(db):
        await db.execute("INSERT INTO notes(text) VALUES ('slow')")
        entered.set()
        await go_on.wait()

    server = build_server(registry)
    async with client_of(server.app) as client:
        call = asyncio.create_task(client.post("/tools/slow"))
        await entered.wait()
        changes = asyncio.create_task(client.get("/sessions/default/changes"))
        await asyncio.sleep(0.01)
        assert not changes.done()
        go_on.set()
        await call

        assert len((await changes).json()["changes"]) == 1
    server.sessions.close()


async def test_a_bundle_of_files_gets_a_file_per_session(folder: Path) -> None:
    registry = notes_registry(folder, database="file")

    @registry.tool
    async def where(db):
        return db.path.is_file()

    server = build_server(registry)
    async with client_of(server.app) as client:
        assert (await client.post("/tools/where")).json()["result"] is True
        assert (await client.post("/tools/add_note", json={"text": "a"})).json()["result"] == {"notes": 1}
        assert len((await client.get("/sessions/default/changes")).json()["changes"]) == 1
    server.sessions.close()


async def test_a_registry_made_in_no_file_works_on_an_empty_database() -> None:
    registry = ToolRegistry("prompt")
    registry.folder = None

    @registry.tool
    async def tables(db):
        return await db.fetch_val("SELECT count(*) FROM sqlite_schema")

    server = build_server(registry)
    async with client_of(server.app) as client:
        assert (await client.post("/tools/tables")).json()["result"] == 0
    server.sessions.close()


# What the documentation shows


async def test_openapi_shows_every_tool_with_its_own_parameters(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()

    operation = document["paths"]["/tools/add_note"]["post"]
    assert operation["description"] == "Write a note down."
    assert operation["requestBody"] == {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {"text": {"type": "string", "description": "What to remember."}},
                    "required": ["text"],
                    "additionalProperties": False,
                }
            }
        },
    }
    assert [parameter["name"] for parameter in operation["parameters"]] == ["X-Session-Id"]
    assert set(document["paths"]) == {
        *(
            f"/tools/{name}"
            for name in ("add_note", "add_note_blocking", "refuse", "fail", "nothing", "odd_text", "greet")
        ),
        "/tools",
        "/health",
        "/sessions/{id}",
        "/sessions/{id}/reset",
        "/sessions/{id}/changes",
    }


async def test_every_reference_in_openapi_leads_somewhere(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    text = json.dumps(document)
    references = {part.split('"')[0] for part in text.split('"$ref": "')[1:]}

    assert "#/components/schemas/greet.Passenger" in references
    for reference in references:
        found: Any = document
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]


async def test_docs_are_served_from_here_and_not_from_elsewhere(client: httpx.AsyncClient) -> None:
    page = (await client.get("/docs")).text
    scripts = [part.split('"')[0] for part in page.split('src="')[1:]]

    assert scripts
    for script in scripts:
        assert script.startswith("/")
        assert (await client.get(script)).status_code == 200
    assert (await client.get("/", follow_redirects=True)).text == page


async def test_tools_and_health_are_listed(client: httpx.AsyncClient, folder: Path) -> None:
    registry = notes_registry(folder)

    assert (await client.get("/tools")).json() == registry.get_openai_tools()
    assert (await client.get("/health")).json() == {"status": "ok", "registry": "notes", "tools": 7}


# The application that a bundle makes


async def test_the_application_passes_for_the_fastapi_application_it_builds(folder: Path) -> None:
    registry = notes_registry(folder)
    app: Any = registry.create_fastapi_app()

    @registry.tool
    async def late():
        return "registered after the application was made"

    @app.get("/extra")
    async def extra():
        return "extra"

    app.title = "Renamed"

    assert registry.create_fastapi_app() is app
    assert "/tools/late" in {route.path for route in app.routes}
    assert app.openapi()["info"]["title"] == "Renamed"
    async with client_of(app) as client:
        assert (await client.get("/extra")).json() == "extra"
        assert (await client.post("/tools/late")).json()[
            "result"
        ] == "registered after the application was made"
    with pytest.raises(AttributeError):
        app.__wrapped__  # noqa: B018 - whether it is there is the question


async def test_the_base_is_there_while_the_server_runs_and_gone_after(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    app = notes_registry(folder).create_fastapi_app()
    inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    sent: list[Any] = []
    started = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message["type"])
        started.set()

    inbox.put_nowait({"type": "lifespan.startup"})
    lifespan = asyncio.create_task(app({"type": "lifespan", "asgi": {"version": "3.0"}}, inbox.get, send))
    await started.wait()
    assert sent == ["lifespan.startup.complete"]
    assert list((tmp_path / "tmp").rglob("base.db"))

    inbox.put_nowait({"type": "lifespan.shutdown"})
    await lifespan
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert list((tmp_path / "tmp").iterdir()) == []
