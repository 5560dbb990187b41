"""The tool server: only this machine, or who sends the token; bodies have a bound."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from reward_kit.agent.tool_registry import ToolRegistry
from reward_kit.agent.tool_server import MAX_BODY, TOKEN
from reward_kit.agent.tools.access import is_loopback


@pytest.fixture
def registry() -> ToolRegistry:
    made = ToolRegistry("echo")

    @made.tool(parameters={"text": str})
    async def say(text: str) -> str:
        return text

    return made


def client(registry: ToolRegistry, address: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=registry.create_fastapi_app(), client=(address, 4711))
    return httpx.AsyncClient(transport=transport, base_url="http://server")


PATHS = [
    ("POST", "/tools/say"),
    ("POST", "/tools/none"),
    ("GET", "/tools"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("POST", "/sessions/default/reset"),
    ("DELETE", "/sessions/default"),
    ("GET", "/sessions/default/changes"),
    ("GET", "/nowhere"),
]
OTHERS = ["192.0.2.7", "10.0.0.1", "::ffff:192.0.2.7", "2001:db8::1", "0.0.0.0", "elsewhere"]


@pytest.mark.parametrize("address", OTHERS)
async def test_other_machines_are_refused_where_there_is_no_token(
    registry: ToolRegistry, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    async with client(registry, address) as asking:
        for method, path in PATHS:
            answer = await asking.request(method, path, json={"text": "in"} if method == "POST" else None)
            assert answer.status_code == 403, path
            assert TOKEN in answer.json()["detail"]
        assert (await asking.get("/health")).status_code == 200


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
async def test_this_machine_needs_no_token(
    registry: ToolRegistry, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    async with client(registry, address) as asking:
        answer = await asking.post("/tools/say", json={"text": "in"})
    assert (answer.status_code, answer.json()["content"]) == (200, "in")


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.7"])
@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer open-sesame", 200),
        (None, 401),
        ("Bearer open-sesam", 401),
        ("Bearer open-sesame2", 401),
        ("bearer", 401),
        ("Basic open-sesame", 401),
        ("open-sesame", 401),
    ],
)
async def test_with_a_token_everybody_needs_it(
    registry: ToolRegistry, monkeypatch: pytest.MonkeyPatch, address: str, header: str | None, status: int
) -> None:
    monkeypatch.setenv(TOKEN, "open-sesame")
    headers = {"Authorization": header} if header else {}
    async with client(registry, address) as asking:
        for path in ("/tools/say", "/sessions/default/reset"):
            answer = await asking.post(path, json={"text": "in"}, headers=headers)
            assert answer.status_code == status
            assert "open-sesame" not in answer.text


async def test_a_body_without_a_stated_length_is_bounded_too(registry: ToolRegistry) -> None:
    sent = 0

    async def parts():
        nonlocal sent
        for _ in range(1000):
            sent += MAX_BODY // 4
            yield b" " * (MAX_BODY // 4)

    async with client(registry, "127.0.0.1") as asking:
        answer = await asking.post("/tools/say", content=parts())
    assert answer.status_code == 413


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.1.2.3"])
def test_what_is_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "192.0.2.1", "localhost.example.org", "127.0.0.1.example.org"]
)
def test_what_is_not(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("module", ["server", "generic_server"])
def test_servers_of_rewards_listen_on_this_machine_unless_told_otherwise(module: str) -> None:
    source = (Path(__file__).parents[2] / "reward_kit" / f"{module}.py").read_text(encoding="utf-8")
    assert '127.0.0.1"' in source
    assert "0.0.0.0" not in source
