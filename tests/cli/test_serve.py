"""``reward-kit serve`` as a client meets it: a real process, and a stub of the user's model."""

import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from command import Command, serving
from flight_bundle import GOLD, Bundle
from stub_server import StubServer

FIRST = "Book me a flight, please."


@pytest.fixture
def served(bundle: Bundle, stub_llm: StubServer) -> Any:
    stub_llm.script("gpt-4o", [FIRST, "Thank you. ###STOP###"])
    env = {**os.environ, "REWARD_KIT_SERVER_TOKEN": "let-me-in"}
    options = ["--user-model", "gpt-4o", "--port", "0"]
    with serving("serve", str(bundle.folder), *options, cwd=bundle.folder.parent, env=env) as (process, url):
        headers = {"Authorization": "Bearer let-me-in"}
        with httpx.Client(base_url=url, headers=headers, timeout=100) as client:
            yield client
        process.send_signal(2)
        _, errors = process.communicate(timeout=30)
        assert "Traceback" not in errors
        assert process.returncode in (0, 130)


def test_a_users_model_speaks(served: httpx.Client, stub_llm: StubServer) -> None:
    assert httpx.get(f"{served.base_url}/rows").status_code == 401
    (row,) = served.get("/rows").json()
    begun = served.post("/sessions/a/reset", params={"row": row}).json()
    assert begun["messages"][-1]["role"] == "user"
    session = {"X-Session-Id": "a"}
    booked = served.post("/tools/create_booking", json=GOLD[0]["arguments"], headers=session).json()
    booking = {"booking_id": booked["result"].split('"')[3]}
    assert served.post("/tools/pay_booking", json=booking, headers=session).json()["status"] == "ok"
    said = served.post("/sessions/a/say", json={"text": "It is booked."}).json()
    assert said == {"line": FIRST, "stopped": None}
    assert served.post("/sessions/a/say", json={"text": "Bye."}).json()["stopped"] == "user_stop"
    assert served.post("/sessions/a/finish").json()["reward"] == 1.0
    stub_llm.script("gpt-4o", lambda _request, _place: {"status": 400, "error": "the wishes of Alice"})
    served.post("/sessions/b/reset", params={"row": row})
    served.post("/sessions/b/say", json={"text": "Hello."})
    lesson = served.post("/sessions/b/finish")
    assert lesson.json()["reward"] is None
    assert "wishes" not in lesson.text
    assert "/sessions/{id}/fork" in served.get("/openapi.json").json()["paths"]


def test_what_keeps_a_server_from_starting(
    command: Command, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REWARD_KIT_SERVER_TOKEN", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    folder: Path = bundle.folder
    for options, text in (
        (["--host", "0.0.0.0"], "anybody who reaches 0.0.0.0"),
        (["--user", "reakt"], "there is no user 'reakt' (did you mean 'react'?)"),
        (["--user-model", "gpt-4o"], "OPENAI_API_KEY"),
    ):
        done = command(folder, *options)
        assert done.code == 2
        assert text in done.error
