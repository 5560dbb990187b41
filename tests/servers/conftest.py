"""Apps behind real HTTP on 127.0.0.1."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
import uvicorn


@pytest.fixture
def serve_app() -> Iterator[Callable[..., str]]:
    """``serve_app(app)`` serves the app until the test ends, and gives its address."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(app: object) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(timeout=10)
