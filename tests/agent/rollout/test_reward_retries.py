"""A reward whose own calls fail: what a busy or absent server causes is tried again, and nothing else."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
from small_task import Speaker, play, small_task
from stub_server import Answer, StubServer

MODEL = "gpt-4o-mini"
MESSAGES: Any = [{"role": "user", "content": "Was it polite?"}]
REQUEST = {"model": MODEL, "messages": MESSAGES}
NOBODY = "http://127.0.0.1:9/v1"
PATIENCE = 1.0
"""Seconds that the clients wait for an answer."""


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made; none of them takes its time."""
    made: list[float] = []
    sleeping = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds < 0.4:
            await sleeping(seconds)
        else:
            made.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return made


def with_httpx(url: str) -> None:
    httpx.post(f"{url}/chat/completions", json=REQUEST, timeout=PATIENCE).raise_for_status()


def with_openai(url: str) -> None:
    import openai  # slow

    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE) as client:
        client.chat.completions.create(model=MODEL, messages=MESSAGES)


async def with_aiohttp(url: str) -> None:
    limit = aiohttp.ClientTimeout(total=PATIENCE)
    async with aiohttp.ClientSession(timeout=limit, raise_for_status=True) as session:
        await session.post(f"{url}/chat/completions", json=REQUEST)


async def judged(folder: Path, call: Any, *, retries: int, timeout: float | None = None) -> tuple[Any, int]:
    """The rollout whose reward makes ``call``, and how often it was made."""
    calls = []

    def evaluate(messages: Any, **_: Any) -> Any:
        calls.append(len(messages))
        messages.clear()
        return call()

    async def evaluate_async(messages: Any, **_: Any) -> Any:
        calls.append(len(messages))
        messages.clear()
        return await call()

    reward = evaluate_async if asyncio.iscoroutinefunction(call) else evaluate
    task = small_task(folder, reward=reward)
    finished = await play(task, Speaker(), reward_retries=retries, reward_timeout=timeout)
    assert set(calls) == {2}, "each attempt gets the arguments untouched"
    return finished, len(calls)


def asking(client: Callable[[str], Any], url: str) -> Callable[[], Any]:
    if asyncio.iscoroutinefunction(client):

        async def ask() -> Any:
            await client(url)
            return {"score": 1.0}

        return ask
    return lambda: client(url) or {"score": 1.0}


@pytest.mark.parametrize("client", [with_httpx, with_openai, with_aiohttp])
@pytest.mark.parametrize(
    ("answer", "tried"),
    [
        (Answer(status=429), 3),
        (Answer("late", delay=2 * PATIENCE), 3),
        (Answer(drop=True), 3),
        (Answer(status=400), 1),
    ],
)
async def test_what_may_pass_is_tried_again(
    client: Any, answer: Answer, tried: int, tmp_path: Path, stub_llm: StubServer, pauses: list[float]
) -> None:
    stub_llm.script(MODEL, ["Yes"])
    stub_llm.fail(MODEL, answer, times=2)
    finished, calls = await judged(tmp_path, asking(client, stub_llm.url), retries=2)
    assert (calls, len(pauses)) == (tried, tried - 1)
    assert finished.trace.reward == (1.0 if tried == 3 else None)


async def test_the_pauses_double_where_nobody_answers(tmp_path: Path, pauses: list[float]) -> None:
    finished, calls = await judged(tmp_path, asking(with_httpx, NOBODY), retries=3)
    assert (finished.trace.reward, calls) == (None, 4)
    assert [0.5 * 2**n <= pause <= 2**n for n, pause in enumerate(pauses)] == [True] * 3


@pytest.mark.parametrize(("asked", "pause"), [("7", 7.0), ("3600", 60.0), ("soon", None)])
async def test_the_pause_is_what_the_server_asks_for(
    asked: str, pause: float | None, tmp_path: Path, stub_llm: StubServer, pauses: list[float]
) -> None:
    stub_llm.script(MODEL, ["Yes"])
    stub_llm.fail(MODEL, Answer(status=429, headers={"Retry-After": asked}))
    finished, _ = await judged(tmp_path, asking(with_httpx, stub_llm.url), retries=1)
    assert finished.trace.reward == 1.0
    assert pauses[0] == pause if pause is not None else 0.5 <= pauses[0] <= 1.0


async def too_slow() -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize("call", [lambda: {}["a bug"], lambda: Path("/nowhere").read_text(), dict, too_slow])
async def test_a_fault_of_its_own_is_reported_at_once(call: Any, tmp_path: Path, pauses: list[float]) -> None:
    finished, calls = await judged(tmp_path, call, retries=3, timeout=1.0)
    assert (finished.trace.reward, calls, pauses) == (None, 1, [])
