"""Episodes over HTTP, in process; tests_integrations has the clients of OpenEnv and NeMo Gym."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from reward_kit.agent import TaskBundle
from reward_kit.agent.servers import sessions
from reward_kit.agent.servers.http import TOKEN
from reward_kit.agent.servers.requests import MAX_BODY
from reward_kit.integrations.serving import episodes
from reward_kit.integrations.serving.app import build_app
from reward_kit.integrations.serving.episodes import IDLE, Episodes

SECRETS = ("sesame", "whisper", "unsaid-word", "secret-check", "only_for_the_user", "gold-place")
TOOLS = """
import threading
from reward_kit.agent import ToolError, ToolRegistry

R = ToolRegistry("desk_task")
GATE = threading.Event()


@R.tool
async def put(place: str, db):
    "Put the parcel somewhere."
    await db.execute("UPDATE parcel SET place = :place", {"place": place})
    return "put"


@R.tool
def wait(db):
    "Wait for the gate."
    GATE.wait(30)
    return "open"


@R.tool(terminal=True)
async def leave():
    "End the talk."


@R.check
def secret_check(db, word: str):
    return True
"""
USER_TOOLS = """
from reward_kit.agent import ToolRegistry

R = ToolRegistry("desk_user")


@R.tool
async def only_for_the_user(db):
    await db.execute("UPDATE parcel SET seen = 1")
    return "whisper"
"""
SEED = """CREATE TABLE parcel(id INTEGER PRIMARY KEY, place TEXT, seen INT);
INSERT INTO parcel VALUES (1, 'x', 0);
"""
ALONE: dict[str, Any] = {
    "id": "alone",
    "system_prompt": "You work at a desk.",
    "initial_messages": [{"role": "user", "content": "Put it on the shelf."}],
    "actions": [{"name": "put", "arguments": {"place": "gold-place"}}],
    "outputs": ["unsaid-word"],
    "checks": [{"name": "secret_check", "arguments": {"word": "secret-check"}, "is": True}],
}
TALK = {
    **ALONE,
    "id": "talk",
    "initial_messages": [],
    "sim_user_prompt": "Say sesame, and whisper.",
    "actions": [{"name": "only_for_the_user", "arguments": {}, "by": "user"}, *ALONE["actions"]],
}

OWN_CALL = {"id": "c1", "type": "function", "function": {"name": "only_for_the_user", "arguments": "{}"}}
BEGUN = [
    {"role": "user", "content": "Hello."},
    {"role": "user", "tool_calls": [OWN_CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "whisper"},
    {"role": "assistant", "content": "How can I help?"},
]
"""The beginning of a row in which the user has called a tool of its own."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bundle = tmp_path / "desk_task"
    bundle.mkdir()
    (bundle / "tools.py").write_text(TOOLS)
    (bundle / "user_tools.py").write_text(USER_TOOLS)
    (bundle / "seed.sql").write_text(SEED)
    rows = [{"toolset": "desk_task.tools", **row} for row in (ALONE, TALK)]
    (bundle / "task.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return bundle


class Server:
    """A client of a server in process, whose clock stands still unless a test moves it."""

    def __init__(self, http: httpx.AsyncClient, episodes: Episodes) -> None:
        self.http, self.episodes, self.now = http, episodes, 0.0
        self.seen: list[str] = []

    async def ask(self, method: str, path: str, body: Any = None, session: str = "a", **headers: str) -> Any:
        answer = await self.http.request(
            method, path, json=body, headers={"X-Session-Id": session, **headers}
        )
        self.seen.append(answer.text)
        is_json = answer.headers.get("content-type") == "application/json"
        return answer.json() if is_json and answer.status_code == 200 else answer

    async def post(self, path: str, body: Any = None, session: str = "a") -> Any:
        return await self.ask("POST", path, {} if body is None else body, session)


@asynccontextmanager
async def served(folder: Path, **options: Any) -> AsyncIterator[Server]:
    found: list[Server] = []
    clock = SimpleNamespace(monotonic=lambda: found[0].now if found else 0.0)
    with TaskBundle.load(folder) as bundle, patch.object(sessions, "time", clock):
        pool = Episodes(bundle, **options)
        transport = httpx.ASGITransport(build_app(pool))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            found.append(Server(http, pool))
            yield found[0]
        pool.close()


def customer(messages: list[Any], tools: Any = None) -> Any:
    """A user that calls a tool of its own, speaks, hears one reply and leaves."""
    if messages[-1]["role"] != "tool" and len(messages) == 2:
        return {"tool_calls": [{"function": {"name": "only_for_the_user", "arguments": "{}"}}]}
    return "Put it there, please." if len(messages) == 4 else "Thank you. ###STOP###"


def leaves(messages: list[Any]) -> str:
    return "I have a parcel. Where can I put it?" if len(messages) == 2 else "###STOP###"


def breaks(messages: list[Any]) -> str:
    if len(messages) == 2:
        return "I have a parcel. Where can I put it?"
    raise RuntimeError("no whisper here: sesame")


async def test_an_episode_over_http(folder: Path) -> None:
    async with served(folder, user="none") as server:
        begun = await server.post("/sessions/a/reset?row=alone&seed=3")
        assert [message["role"] for message in begun["messages"]] == ["system", "user"]
        assert [tool["function"]["name"] for tool in begun["tools"]] == ["put", "wait", "leave"]
        assert (begun["seed"], begun["stopped"]) == (3, None)
        put = await server.post("/tools/put", {"place": "gold-place"})
        assert put == {"result": "put", "status": "ok", "stopped": None}
        assert (await server.post("/tools/put", {"where": 1}))["status"] == "invalid_arguments"
        assert (await server.post("/tools/fly"))["status"] == "unknown_tool"
        changes = (await server.ask("GET", "/sessions/a/changes"))["changes"]
        assert [change["after"]["place"] for change in changes] == ["gold-place"]
        said = await server.post("/sessions/a/say", {"text": "unsaid-word"})
        assert said == {"line": None, "stopped": "agent_done"}
        assert (await server.post("/tools/put", {"place": "x"}))["status"] == "refused"
        assert (await server.post("/sessions/a/say", {"text": "Hello?"}))["line"] is None
        lesson = {"reward": 1.0, "failure_kind": None, "reason": "passed, reward 1"}
        assert [await server.post("/sessions/a/finish") for _ in range(2)] == [lesson] * 2
        assert (await server.ask("GET", "/sessions/a"))["steps"] == 4
        await server.ask("DELETE", "/sessions/a")
        assert (await server.ask("GET", "/sessions/a")).status_code == 404
        assert await server.ask("GET", "/rows") == ["alone", "talk"]
        assert (await server.post("/sessions/a/reset?seed=5"))["row"] == "talk"


async def test_a_user_speaks_and_a_fork_goes_its_own_way(folder: Path) -> None:
    async with served(folder, models={"user": customer}) as server:
        begun = await server.post("/sessions/a/reset?row=talk")
        assert begun["messages"][-1] == {"role": "user", "content": "Put it there, please."}
        await server.post("/sessions/a/fork?to=b")
        await server.post("/tools/put", {"place": "gold-place"}, session="b")
        ends = [await server.post(f"/sessions/{one}/say", {"text": "unsaid-word"}) for one in "ab"]
        assert ends == [{"line": None, "stopped": "user_stop"}] * 2
        rewards = [(await server.post(f"/sessions/{one}/finish"))["reward"] for one in "ab"]
        assert rewards == [0.0, 1.0]


@pytest.mark.parametrize(
    ("user", "kind", "reason"),
    [
        (leaves, "user_error", "user_error, stopped_early"),
        (breaks, "infrastructure_error", "infrastructure_error"),
    ],
)
async def test_a_rollout_that_the_user_spoilt_has_no_reward(
    folder: Path, user: Callable[..., Any], kind: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with served(folder, models={"user": user}) as server:
        await server.post("/sessions/a/reset?row=talk")
        await server.post("/sessions/a/say", {"text": "Where to?"})
        for _ in range(2):
            lesson = await server.post("/sessions/a/finish")
            assert lesson == {"reward": None, "failure_kind": kind, "reason": reason}
        told = f"a rollout of talk cannot be judged: {kind}: "  # once; the user's usual faults are no news
        assert capsys.readouterr().err.count(told) == (kind == "infrastructure_error")
        await server.post("/reset", {"row": "talk"})
        say = {"action": {"tool_name": "say_to_user", "arguments": {"text": "Where to?"}}}
        step = await server.post("/step", say)
        assert (step["done"], step["reward"], step["metadata"]["failure_kind"]) == (True, None, kind)
        await server.post("/seed_session", {"row": "talk"})
        for _ in range(2):
            await server.post("/say_to_user", {"text": "Where to?"})
        verified = await server.post("/verify", {"response": {"output": []}})
        assert (verified["reward"], verified["mask_sample"]) == (0.0, True)
        assert verified["failure_kind"] == f"reward_kit:{kind}"


async def test_no_answer_tells_what_is_expected_or_what_the_user_knows(folder: Path) -> None:
    """A failed and a broken rollout through all doors, and every page that a server has."""
    documents = [
        "/openapi.json",
        "/docs",
        "/tools",
        "/rows",
        "/nemo_gym/rows",
        "/schema",
        "/metadata",
        "/health",
    ]
    with (folder / "task.jsonl").open("a") as rows:
        rows.write(
            json.dumps({**TALK, "toolset": "desk_task.tools", "id": "begun", "initial_messages": BEGUN})
        )
    for user in (customer, leaves, breaks):
        async with served(folder, models={"user": user}) as server:
            for row in ("alone", "talk", "begun"):
                assert (await server.post(f"/sessions/a/reset?row={row}"))["row"] == row
                await server.post("/sessions/a/fork?to=b")
                for path in ("/tools/put", "/tools/only_for_the_user", "/tools/secret_check", "/tools/no"):
                    await server.post(path, {"place": "x"})
                await server.post("/sessions/a/say", {"text": "Where to?"})
                for session in "ab":
                    await server.post(f"/sessions/{session}/finish")
                    await server.ask("GET", f"/sessions/{session}")
                    await server.ask("GET", "/state", session=session)
                await server.post("/reset", {"row": row, "episode_id": "e"})
                for name in ("only_for_the_user", "say_to_user", "put"):
                    await server.post("/step", {"action": {"tool_name": name, "arguments": {"text": "?"}}})
                for method in ("tools/list", "tools/call", "no"):
                    about = {"session_id": "a", "name": "only_for_the_user"}
                    await server.post("/mcp", {"jsonrpc": "2.0", "id": 1, "method": method, "params": about})
                await server.post("/seed_session", {"row": row})
                for name in ("say_to_user", "only_for_the_user", "say_to_user"):
                    await server.post(f"/{name}", {"text": "?"})
                await server.post("/verify", {"response": {"output": []}})
            for path in documents:
                await server.ask("GET", path)
            said = "\n".join(server.seen).replace("unknown tool 'only_for_the_user'", "")
            said = re.sub(
                r'"(tool_name|name)": ?"only_for_the_user"', "", said
            )  # what the test has asked for
            assert [secret for secret in SECRETS if secret in said] == []


async def test_reasons_are_told_if_the_server_may(folder: Path) -> None:
    async with served(folder, models={"user": customer}, reasons=True) as server:
        await server.post("/sessions/a/reset?row=alone")
        await server.post("/sessions/a/say", {"text": "Done."})
        assert "gold-place" in (await server.post("/sessions/a/finish"))["reason"]


async def test_what_cannot_be_done_is_refused_with_the_reason(folder: Path) -> None:
    async with served(folder) as server:
        cases = [
            (await server.post("/sessions/a/reset?row=talk"), 422, r"no model for it\. .*--user-model"),
            (await server.post("/sessions/a/reset?row=tale"), 404, r"'tale' \(did you mean 'talk'"),
            (await server.post("/sessions/a%20b/reset?row=talk"), 422, "pattern"),
            (await server.post("/sessions/a/reset?row=alone&seed=-1"), 422, "seed"),
            (await server.post("/sessions/z/say", {"text": "?"}), 404, "no session .z.. Begin one"),
            (await server.post("/tools/put", {}, session="z"), 404, "no session 'z'"),
            (await server.post("/put", {}), 404, "no session ''"),
            (await server.post("/seed_session", {}), 422, "row: Field required"),
            (await server.post("/step", {"action": {"type": "fly"}}), 422, "action.type"),
            (await server.post("/sessions/a/say", {"text": "x" * MAX_BODY}), 413, "longer than"),
            (await server.post("/verify", {"response": {"output": [1]}}), 422, "output.0"),
        ]
        await server.post("/sessions/a/reset?row=alone")
        await server.post("/sessions/b/reset?row=alone")
        cases += [
            (await server.post("/sessions/a/fork?to=b"), 409, "a session 'b' already. .*delete that session"),
            (await server.post("/sessions/a/fork?to=a"), 409, "a session 'a' already"),
            (await server.ask("GET", "/nowhere"), 404, "no path /nowhere; /docs"),
            (await server.post("/nowhere"), 404, "no path /nowhere"),
            (await server.ask("GET", "/sessions/a/nowhere"), 404, "no path /sessions/a/nowhere"),
            (await server.post("/rows"), 405, "^/rows takes GET, not POST"),
            (await server.ask("GET", "/put"), 405, "^/put takes POST, not GET"),
            (await server.ask("PUT", "/sessions/a"), 405, "takes DELETE, GET, not PUT"),
            (await server.post("/nemo_gym/rows"), 405, "takes GET, not POST"),
        ]
        for answer, status, text in cases:
            assert answer.status_code == status, answer.text
            assert re.search(text, answer.json()["detail"]), answer.text
        lost = await server.post("/verify", {"response": {"output": []}})
        assert (lost["mask_sample"], lost["failure_kind"]) == (True, "session_lost")


async def test_a_waiting_tool_holds_up_its_own_session_alone(folder: Path) -> None:
    async with served(folder, user="none") as server:
        for session in "ab":
            await server.post(f"/sessions/{session}/reset?row=alone")
        waiting = [asyncio.create_task(server.post("/tools/wait")) for _ in range(2)]
        after = asyncio.create_task(server.post("/tools/put", {"place": "late"}))
        await asyncio.sleep(0)
        assert (await server.post("/tools/put", {"place": "b"}, session="b"))["result"] == "put"
        assert not any(task.done() for task in (*waiting, after))
        module = next(iter(server.episodes.bundle.tasks)).registry.tools["wait"].function.__globals__
        assert isinstance(module["GATE"], threading.Event)
        module["GATE"].set()
        assert [answer["result"] for answer in await asyncio.gather(*waiting, after)] == [
            "open",
            "open",
            "put",
        ]
        messages = (await server.ask("GET", "/sessions/a"))["messages"]
        assert [line["content"] for line in messages if line["role"] == "tool"] == ["open", "open", "put"]


async def test_sessions_are_limited_and_end_when_idle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "MAX_SESSIONS", 2)
    async with served(folder, user="none") as server:
        for session in ("one", "two"):
            await server.post(f"/sessions/{session}/reset?row=alone")
        assert (await server.post("/sessions/three/reset?row=alone")).status_code == 503
        await server.post("/sessions/two/finish")  # which then makes room
        assert (await server.post("/sessions/three/reset?row=alone"))["session"] == "three"
        assert (await server.ask("GET", "/sessions/two")).status_code == 404
        server.now = IDLE / 2
        await server.ask("GET", "/sessions/one")
        server.now = IDLE + 1
        assert (await server.ask("GET", "/sessions/three")).status_code == 404
        assert (await server.ask("GET", "/sessions/one"))["session"] == "one"


async def test_a_token_guards_all_doors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "let-me-in")
    async with served(folder, user="none") as server:
        for path in ("/sessions/a/reset", "/reset", "/seed_session", "/verify", "/put", "/mcp"):
            assert (await server.post(path)).status_code == 401
        allowed = {"Authorization": "Bearer let-me-in"}
        assert (await server.ask("POST", "/reset", {}, **allowed))["done"] is False
        assert await server.ask("GET", "/health") == {"status": "healthy"}
        app: Any = server.http._transport
        assert await websocket(app.app, ['{"type": "state"}']) == []


async def test_faults_of_a_bundle_are_for_the_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "seed.sql").write_text("CREATE TABLE sesame(; ")
    async with served(folder, user="none") as server:
        refused = await server.post("/sessions/a/reset?row=alone")
    assert (refused.status_code, "sesame" in refused.text) == (500, False)
    assert "sesame" in caplog.text


async def test_rows_for_nemo_gym(folder: Path) -> None:
    async with served(folder, models={"user": customer}) as server:
        text = (await server.http.get("/nemo_gym/rows")).text
        alone, talk = (json.loads(line) for line in text.splitlines())
        assert (alone["row"], talk["row"]) == ("alone", "talk")
        inputs = [row["responses_create_params"]["input"] for row in (alone, talk)]
        assert inputs[0][-1] == {"role": "user", "content": "Put it on the shelf."}
        assert "say_to_user" in inputs[1][-1]["content"]
        names = [[tool["name"] for tool in row["responses_create_params"]["tools"]] for row in (alone, talk)]
        assert alone["responses_create_params"]["parallel_tool_calls"] is True
        assert names == [["put", "wait", "leave"], ["put", "wait", "leave", "say_to_user"]]
        await server.post("/seed_session", {"row": "talk", "_ng_rollout_index": 1})
        opening = await server.http.post("/say_to_user", json={"text": "Hello, how can I help?"})
        assert opening.text == "Put it there, please."
        await server.http.post("/put", json={"place": "gold-place"})
        over = await server.http.post("/say_to_user", json={"text": "unsaid-word"})
        assert over.text == "The conversation is over."
        verified = await server.post("/verify", {"row": "talk", "response": {"output": [], "id": "r"}})
        assert (verified["reward"], verified["mask_sample"], verified["row"]) == (1.0, False, "talk")
        assert verified["response"] == {"output": [], "id": "r"}


async def test_the_last_answer_of_nemo_gym_is_said_in_a_row_without_a_user(folder: Path) -> None:
    async with served(folder, user="none") as server:
        message = {"type": "message", "content": [{"type": "output_text", "text": "unsaid-word"}]}
        for output, reward in (([message], 1.0), ([], 0.0)):
            await server.post("/seed_session", {"row": "alone"})
            await server.http.post("/put", json={"place": "gold-place"})
            assert (await server.post("/verify", {"response": {"output": output}}))["reward"] == reward
        played = [{"reward": 1.0}, {"reward": 0.0, "mask_sample": True}, {"reward": 0.5}]
        metrics = await server.post("/aggregate_metrics", {"verify_responses": played})
        assert metrics["key_metrics"] == {"mean/reward": 0.75}


async def test_a_copy_of_a_session_has_the_line_that_its_agent_has_not_heard(folder: Path) -> None:
    async with served(folder, models={"user": leaves}) as server:
        await server.post("/seed_session", {"row": "talk"})
        session = server.http.cookies["reward_kit_session"]
        await server.post(f"/sessions/{session}/fork?to=copy")
        for name in ("copy", session):
            server.http.cookies.clear()
            server.http.cookies.set("reward_kit_session", name, domain="localhost.local")
            heard = await server.post("/say_to_user", {"text": "Hello."})
            assert heard.text == "I have a parcel. Where can I put it?"


async def test_agents_that_speak_with_a_tool(folder: Path) -> None:
    """Without a text nothing is said; a tool with the name of a route cannot be served in that form."""
    with (folder / "tools.py").open("a") as tools:
        tools.write('\n\n@R.tool\nasync def step():\n    "Step."\n    return "stepped"\n')
    async with served(folder, models={"user": customer}) as server:
        begun = await server.post("/reset", {"row": "talk"})
        assert begun["observation"]["seed"] != (await server.post("/reset", {}))["observation"]["seed"]
        await server.post("/reset", {"row": "talk"})
        for arguments in ({}, {"text": " "}, {"text": 3}):
            step = await server.post(
                "/step", {"action": {"tool_name": "say_to_user", "arguments": arguments}}
            )
            assert step["observation"]["result"] == "Error: say_to_user needs a text."
            assert step["observation"]["status"] == "invalid_arguments"
        step = await server.post("/step", {"action": {"tool_name": "step"}})
        assert (step["observation"]["result"], step["done"]) == ("stepped", False)
        assert (await server.ask("GET", "/state"))["step_count"] == 4
        refused = await server.post("/seed_session", {"row": "alone"})
        assert (refused.status_code, "'step'" in refused.text) == (422, True)


class Mute:
    async def respond(self, rollout: Any) -> str:
        return "Hm."


async def test_an_episode_that_cannot_be_forked_says_why(folder: Path) -> None:
    async with served(folder, user=Mute) as server:
        await server.post("/sessions/a/reset?row=talk")
        refused = await server.post("/sessions/a/fork?to=b")
        assert refused.status_code == 422
        assert "its user Mute has no fork()" in refused.json()["detail"]


async def test_openenv_messages_of_any_kind_get_an_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episodes, "MAX_SESSIONS", 1)
    async with served(folder, user="none") as server:
        app: Any = server.http._transport
        asked = ["no JSON", "[]", "{}", '{"type": "reset", "data": {"seed": -1}}', '{"type": "step"}']
        asked += ["[" * 100_000, '{"type": "step", "data": []}', '{"type": "mcp", "data": 3}']
        codes = [answer["data"].get("code") for answer in await websocket(app.app, asked)]
        assert codes == [
            *["INVALID_JSON"] * 2,
            "UNKNOWN_TYPE",
            "VALIDATION_ERROR",
            "EXECUTION_ERROR",
            "INVALID_JSON",
            "VALIDATION_ERROR",
            None,
        ]
        await server.post("/sessions/a/reset?row=alone")
        (full,) = await websocket(app.app, ['{"type": "reset"}'])
        assert full["data"]["code"] == "CAPACITY_REACHED"


async def websocket(app: Any, texts: list[str]) -> list[Any]:
    """The answers to messages over one connection to /ws."""
    incoming = [{"type": "websocket.connect"}, *({"type": "websocket.receive", "text": one} for one in texts)]
    incoming.append({"type": "websocket.disconnect", "code": 1000})
    answers: list[Any] = []

    async def receive() -> Any:
        return incoming.pop(0)

    async def send(message: Any) -> None:
        if message["type"] == "websocket.send":
            answers.append(json.loads(message["text"]))

    scope = {"type": "websocket", "path": "/ws", "headers": [], "query_string": b"", "client": None}
    await app(scope, receive, send)
    return answers
