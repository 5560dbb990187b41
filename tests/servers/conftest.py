"""Apps behind real HTTP on 127.0.0.1."""

import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator

import pytest
import uvicorn

from reward_kit import generic_server


@pytest.fixture
def users_rewards(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """An empty module ``users_rewards``; nothing is loaded, and no key is asked for."""
    module = types.ModuleType("users_rewards")
    monkeypatch.setitem(sys.modules, "users_rewards", module)
    monkeypatch.delenv("RK_ENDPOINT_API_KEY", raising=False)
    monkeypatch.setattr(generic_server, "_LOADED_REWARD_FUNCTION", None)
    monkeypatch.setattr(generic_server, "_REWARD_FUNCTION_NAME", "N/A")
    return module


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
