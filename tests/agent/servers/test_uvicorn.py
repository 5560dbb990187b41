"""The tools of a bundle over HTTP, with uvicorn as a person starts it."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from command import free_port, wait_for
from flight_bundle import flight_bundle

SEARCH = {"origin": "SFO", "dest": "JFK", "date": "2025-05-20"}


@pytest.fixture
def flight_task(tmp_path: Path) -> Path:
    return flight_bundle(tmp_path).folder


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator[tuple[str, Path]]:
    """``uvicorn MODULE:app`` started in ``folder``: its address, and the file with what it prints."""
    port, log = free_port(), folder / "server.log"
    with log.open("w") as output:
        line = [sys.executable, "-u", "-m", "uvicorn", *arguments, "--port", str(port)]
        process = subprocess.Popen(line, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: process.poll() is not None or answers("GET", f"http://127.0.0.1:{port}/health"))
        assert process.poll() is None, log.read_text()
        yield f"http://127.0.0.1:{port}", log
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def answers(method: str, url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.request(method, url).status_code == 200
    return False


def test_the_flight_bundle_is_served_from_the_folder_above(flight_task: Path) -> None:
    with (flight_task / "tools.py").open("a") as tools:
        tools.write("\n@R.tool\nasync def broken():\n    raise ValueError('out of seats')\n")
    served = running(flight_task.parent, "flight_task.tools:app")
    with served as (url, log), httpx.Client(base_url=url) as client:
        flights = client.post("/tools/search_flights", json=SEARCH).json()["result"]
        booking = client.post("/tools/create_booking", json={"flight_id": 1, "passenger": "Alice"}).json()
        paid = client.post("/tools/pay_booking", json=booking["result"]).json()

        assert [(flight["id"], flight["seats_available"]) for flight in flights] == [(1, 4)]
        assert paid["result"] == {"ok": True}
        [row] = client.get("/sessions/default/changes").json()["changes"]
        booked = {"id": booking["result"]["booking_id"], "flight_id": 1, "passenger": "Alice"}
        assert row["after"] == {**booked, "status": "paid"}
        client.post("/sessions/default/reset")
        assert client.get("/sessions/default/changes").json()["changes"] == []
        assert client.get("/docs").status_code == 200
        assert "Traceback" not in log.read_text()
        answer = client.post("/tools/broken")

    assert answer.json()["content"] == "Error: out of seats"
    assert "Traceback" not in answer.text
    assert 'tools.py", line' in log.read_text()
    names = sorted(path.name for path in flight_task.iterdir() if path.name != "__pycache__")
    assert names == ["reward.py", "seed.sql", "task.jsonl", "tools.py"]


def test_a_tool_that_is_added_is_served_after_a_reload(flight_task: Path) -> None:
    with running(flight_task, "tools:app", "--reload") as (url, log):
        with (flight_task / "tools.py").open("a") as tools:
            tools.write("\n@R.tool\nasync def ping():\n    return 'pong'\n")
        wait_for(lambda: answers("POST", f"{url}/tools/ping"))
        assert httpx.post(f"{url}/tools/ping").json()["result"] == "pong", log.read_text()
