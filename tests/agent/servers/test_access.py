"""The clients that a tool server answers: this machine, or holders of the token, and no web page."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from reward_kit.agent.servers.http import TOKEN
from reward_kit.agent.tools.registry import ToolRegistry


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> ToolRegistry:
    monkeypatch.delenv(TOKEN, raising=False)
    made = ToolRegistry("echo")

    @made.tool(parameters={"text": str})
    async def say(text: str) -> str:
        return text

    return made


@contextlib.asynccontextmanager
async def asking(
    registry: ToolRegistry, address: str = "127.0.0.1", host: str = "127.0.0.1:8000"
) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=registry.create_fastapi_app(), client=(address, 4711))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
        yield client


PATHS = [
    *(("GET", path) for path in ("/tools", "/docs", "/sessions/default/changes", "/nowhere")),
    *(("POST", "/tools/say"), ("POST", "/sessions/default/reset"), ("DELETE", "/sessions/default")),
]
OTHERS = ["192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1", "elsewhere"]


@pytest.mark.parametrize("address", OTHERS)
async def test_other_machines_are_refused_without_a_token(registry: ToolRegistry, address: str) -> None:
    async with asking(registry, address) as client:
        for method, path in PATHS:
            answer = await client.request(method, path, json={"text": "in"} if method == "POST" else None)
            assert answer.status_code == 403, path
            assert TOKEN in answer.json()["detail"]
        assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "[::1]:8000"])
async def test_this_machine_needs_no_token(registry: ToolRegistry, address: str, host: str) -> None:
    async with asking(registry, address, host) as client:
        answer = await client.post("/tools/say", json={"text": "in"}, headers={"Origin": f"http://{host}"})
    assert (answer.status_code, answer.json()["content"]) == (200, "in")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:8000"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:3000"},
        {"Origin": "null"},
    ],
)
async def test_pages_of_other_sites_read_and_change_nothing(registry: ToolRegistry, headers: Any) -> None:
    async with asking(registry) as client:
        for method, path in PATHS:
            assert (await client.request(method, path, headers=headers)).status_code == 403, path


OTHER_KINDS = [(kind, 415) for kind in ("text/plain", "application/x-www-form-urlencoded", "")]


@pytest.mark.parametrize(("kind", "status"), [("application/json; charset=utf-8", 200), *OTHER_KINDS])
async def test_arguments_must_be_declared_as_json(registry: ToolRegistry, kind: str, status: int) -> None:
    async with asking(registry) as client:
        answer = await client.post("/tools/say", content=b'{"text": "in"}', headers={"Content-Type": kind})
    assert answer.status_code == status
    assert status == 200 or "Content-Type: application/json" in answer.json()["detail"]


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.7"])
@pytest.mark.parametrize(
    ("header", "status"),
    [("Bearer open-sesame", 200), (None, 401), ("Bearer open-sesame2", 401), ("Basic open-sesame", 401)],
)
async def test_with_a_token_everybody_needs_it(
    registry: ToolRegistry, monkeypatch: pytest.MonkeyPatch, address: str, header: str | None, status: int
) -> None:
    monkeypatch.setenv(TOKEN, "open-sesame")
    headers = {"Authorization": header} if header else {}
    async with asking(registry, address, "tools.example") as client:
        for path in ("/tools/say", "/sessions/default/reset"):
            answer = await client.post(path, json={"text": "in"}, headers=headers)
            assert answer.status_code == status
            assert "open-sesame" not in answer.text
