"""The tools of a bundle over HTTP, with uvicorn as a person starts it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

FLIGHT_TOOLS = (Path(__file__).parents[3] / "examples" / "flight_task" / "tools.py").read_text()

FLIGHT_SEED = """
CREATE TABLE flights(
    id INTEGER PRIMARY KEY, origin TEXT, dest TEXT, depart TEXT, arrive TEXT, seats_available INTEGER
);
CREATE TABLE bookings(id TEXT PRIMARY KEY, flight_id INTEGER, passenger TEXT, status TEXT);
INSERT INTO flights VALUES
    (1, 'SFO', 'JFK', '2025-06-01 08:00', '2025-06-01 16:30', 5),
    (2, 'SFO', 'JFK', '2025-06-01 18:00', '2025-06-02 02:30', 0);
"""
SEARCH = {"origin": "SFO", "dest": "JFK", "date": "2025-06-01"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Uvicorn:
    """``uvicorn MODULE:app`` started in ``folder``, and what it printed."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        command = [sys.executable, "-m", "uvicorn", *arguments, "--port", str(port)]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def wait_for(self, condition: Any) -> Any:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.output
            with contextlib.suppress(httpx.TransportError):
                if found := condition():
                    return found
            time.sleep(0.05)
        raise AssertionError(self.output)

    def wait_until_up(self) -> None:
        self.wait_for(lambda: httpx.get(f"{self.url}/health").status_code == 200)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
        self._reader.join(10)


@pytest.fixture
def flight_task(tmp_path: Path) -> Path:
    bundle = tmp_path / "flight_task"
    bundle.mkdir()
    (bundle / "tools.py").write_text(FLIGHT_TOOLS)
    (bundle / "seed.sql").write_text(FLIGHT_SEED)
    return bundle


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Uvicorn]:
    server = Uvicorn(folder, *arguments)
    try:
        server.wait_until_up()
        yield server
    finally:
        server.stop()


def test_the_flight_bundle_is_served_from_the_folder_above(flight_task: Path) -> None:
    with (flight_task / "tools.py").open("a") as tools:
        tools.write("\n@R.tool\nasync def broken():\n    raise ValueError('out of seats')\n")
    with (
        running(flight_task.parent, "flight_task.tools:app") as server,
        httpx.Client(base_url=server.url) as client,
    ):
        flights = client.post("/tools/search_flights", json=SEARCH).json()["result"]
        booking = client.post("/tools/create_booking", json={"flight_id": 1, "passenger": "Alice"}).json()
        paid = client.post("/tools/pay_booking", json=booking["result"]).json()

        assert flights == [
            {"id": 1, "depart": "2025-06-01 08:00", "arrive": "2025-06-01 16:30", "seats_available": 5}
        ]
        assert paid["result"] == {"ok": True}
        [row] = client.get("/sessions/default/changes").json()["changes"]
        assert row["after"] == {
            "id": booking["result"]["booking_id"],
            "flight_id": 1,
            "passenger": "Alice",
            "status": "paid",
        }
        client.post("/sessions/default/reset")
        assert client.get("/sessions/default/changes").json()["changes"] == []
        assert client.get("/docs").status_code == 200
        hang_up_in_the_body(server.url, "/tools/search_flights")
        assert client.get("/health").status_code == 200
        assert "Traceback" not in server.output
        answer = client.post("/tools/broken")

    assert answer.json()["content"] == "Error: out of seats"
    assert "Traceback" not in answer.text
    assert 'tools.py", line' in server.output
    names = sorted(path.name for path in flight_task.iterdir() if path.name != "__pycache__")
    assert names == ["seed.sql", "tools.py"]


def hang_up_in_the_body(url: str, path: str) -> None:
    host = url.removeprefix("http://")
    name, port = host.split(":")
    with socket.create_connection((name, int(port))) as client:
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        client.sendall(head.encode() + b"Content-Length: 100\r\n\r\n{")


def test_a_tool_that_is_added_is_served_after_a_reload_inside_the_folder(flight_task: Path) -> None:
    with running(flight_task, "tools:app", "--reload") as server:
        assert httpx.post(f"{server.url}/tools/search_flights", json=SEARCH).json()["result"]
        with (flight_task / "tools.py").open("a") as tools:
            tools.write("\n@R.tool\nasync def ping():\n    return 'pong'\n")

        answer = server.wait_for(
            lambda: (a := httpx.post(f"{server.url}/tools/ping")).status_code == 200 and a
        )

        assert answer.json()["result"] == "pong"
