"""A reward whose own calls fail: what a busy or absent server causes is tried again, and nothing else."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import openai
import pytest
import requests
from flight_bundle import GOLD, flight_bundle
from small_task import play, small_task
from stub_server import Answer, StubServer

from reward_kit.agent import agent_eval, reward_retries
from reward_kit.agent.llm import import_litellm

MODEL = "gpt-4o-mini"
MESSAGES = [{"role": "user", "content": "Was it polite?"}]
REQUEST = {"model": MODEL, "messages": MESSAGES}
BUSY = Answer(status=503)
REWARD = """
import json, os, urllib.request

COUNT = []


def evaluate(messages, db, rollout, **kwargs):
    COUNT.append(rollout.id)
    body = json.dumps({"model": "gpt-4o-mini", "messages": messages[:1]}).encode()
    asked = urllib.request.Request(os.environ["OPENAI_API_BASE"] + "/chat/completions", body)
    with urllib.request.urlopen(asked) as answer:
        said = json.load(answer)["choices"][0]["message"]["content"]
    return {"score": 1.0, "reason": said}
"""


class Speaker:
    async def respond(self, rollout: Any) -> str:
        return "Done"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made; none of them takes its time."""
    made: list[float] = []

    async def sleep(seconds: float) -> None:
        made.append(seconds)

    beside = SimpleNamespace(sleep=sleep, TimeoutError=asyncio.TimeoutError)
    monkeypatch.setattr(reward_retries, "asyncio", beside)
    return made


@pytest.fixture
def closed_port() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"


def with_urllib(url: str) -> None:
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/chat/completions", json.dumps(REQUEST).encode()), timeout=0.5
    ) as answer:
        answer.read()


def with_requests(url: str) -> None:
    requests.post(f"{url}/chat/completions", json=REQUEST, timeout=0.5).raise_for_status()


def with_httpx(url: str) -> None:
    httpx.post(f"{url}/chat/completions", json=REQUEST, timeout=0.5).raise_for_status()


def with_openai(url: str) -> None:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=0.5) as client:
        client.chat.completions.create(model=MODEL, messages=MESSAGES)  # type: ignore[arg-type]


def with_litellm(url: str) -> None:
    import_litellm().completion(
        f"openai/{MODEL}", MESSAGES, api_base=url, api_key="none", max_retries=0, timeout=0.5, num_retries=0
    )


async def with_aiohttp(url: str) -> None:
    limit = aiohttp.ClientTimeout(total=0.5)
    async with (
        aiohttp.ClientSession(timeout=limit) as session,
        session.post(f"{url}/chat/completions", json=REQUEST) as answer,
    ):
        answer.raise_for_status()


CLIENTS = [with_urllib, with_requests, with_httpx, with_openai, with_litellm, with_aiohttp]
PASSING = {
    "429": Answer(status=429),
    "503": BUSY,
    "529": Answer(status=529),
    "no answer in time": Answer("late", delay=1.0),
    "hung up": Answer(drop=True),
}
LASTING = {"400": Answer(status=400), "401": Answer(status=401), "404": Answer(status=404)}


def judging_by(client: Callable[[str], Any], url: str) -> Callable[..., Any]:
    """A reward that passes once ``client`` gets its answer; ``calls`` counts how often it was called."""
    calls: list[int] = []
    if asyncio.iscoroutinefunction(client):

        async def judge(messages: Any, **_: Any) -> Any:
            calls.append(1)
            await client(url)
            return {"score": 1.0}

        judge.calls = calls  # type: ignore[attr-defined]
        return judge

    def evaluate(messages: Any, **_: Any) -> Any:
        calls.append(1)
        client(url)
        return {"score": 1.0}

    evaluate.calls = calls  # type: ignore[attr-defined]
    return evaluate


async def judged(folder: Path, reward: Any, retries: int) -> Any:
    return await play(small_task(folder, reward=reward), Speaker(), reward_retries=retries)


@pytest.mark.parametrize("fault", PASSING)
@pytest.mark.parametrize("client", CLIENTS)
async def test_what_a_busy_server_causes_is_tried_again(
    client: Callable[[str], Any], fault: str, tmp_path: Path, stub_llm: StubServer, pauses: list[float]
) -> None:
    stub_llm.script(MODEL, ["Yes"])
    stub_llm.fail(MODEL, PASSING[fault], times=2)
    reward = judging_by(client, stub_llm.url)
    finished = await judged(tmp_path, reward, retries=2)
    assert (finished.reward, finished.error) == (1.0, None)
    assert (len(reward.calls), len(pauses)) == (3, 2)  # type: ignore[attr-defined]


@pytest.mark.parametrize("client", CLIENTS)
async def test_so_is_a_server_that_is_not_there(
    client: Callable[[str], Any], tmp_path: Path, closed_port: str, pauses: list[float]
) -> None:
    reward = judging_by(client, closed_port)
    finished = await judged(tmp_path, reward, retries=3)
    assert finished.reward is None
    assert finished.error is not None
    assert len(reward.calls) == 4  # type: ignore[attr-defined]
    assert [0.5 * 2**n <= pause <= 2**n for n, pause in enumerate(pauses)] == [True] * 3


@pytest.mark.parametrize("fault", LASTING)
@pytest.mark.parametrize("client", CLIENTS)
async def test_what_no_waiting_mends_is_told_at_once(
    client: Callable[[str], Any], fault: str, tmp_path: Path, stub_llm: StubServer, pauses: list[float]
) -> None:
    stub_llm.script(MODEL, ["Yes"])
    stub_llm.fail(MODEL, LASTING[fault])
    reward = judging_by(client, stub_llm.url)
    finished = await judged(tmp_path, reward, retries=3)
    assert finished.reward is None
    assert (len(reward.calls), pauses) == (1, [])  # type: ignore[attr-defined]


class OddError(Exception):
    """Its attributes are code of its own."""

    @property
    def response(self) -> Any:
        raise RuntimeError("no")

    @property
    def status_code(self) -> Any:
        return "503"


def odd() -> Any:
    raise OddError


def ring() -> Any:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    raise one


class FalseError(Exception):
    """Nobody may ask whether it is true."""

    def __bool__(self) -> bool:
        raise RuntimeError("no")


def without_truth() -> Any:
    raise ValueError("a bug") from FalseError()


def slow() -> Any:
    import time

    time.sleep(0.3)


FAULTY: dict[str, Callable[[], Any]] = {
    "a bug": lambda: {}["missing"],
    "no file": lambda: open("/nowhere/at/all"),  # noqa: SIM115, PTH123
    "no score": dict,
    "an odd error": odd,
    "a ring of errors": ring,
    "an error without truth": without_truth,
    "too slow": slow,
}


@pytest.mark.parametrize("fault", FAULTY)
async def test_a_fault_of_the_reward_itself_is_told_at_once(
    fault: str, tmp_path: Path, pauses: list[float]
) -> None:
    calls = []

    def evaluate(messages: Any, **_: Any) -> Any:
        calls.append(1)
        return FAULTY[fault]()

    finished = await play(
        small_task(tmp_path, reward=evaluate), Speaker(), reward_retries=3, reward_timeout=0.1
    )
    assert finished.reward is None
    assert (len(calls), pauses) == (1, [])


def hang_up() -> None:
    raise ConnectionResetError("gone")


class SeveralError(Exception):
    """As an ExceptionGroup, which Python has from 3.11 on."""

    exceptions = (ValueError("a bug"), ConnectionResetError("gone"))


async def test_errors_of_tasks_are_looked_through(tmp_path: Path, pauses: list[float]) -> None:
    calls = []

    def evaluate(messages: Any, **_: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise SeveralError
        return {"score": 1.0}

    finished = await judged(tmp_path, evaluate, retries=1)
    assert (finished.reward, len(calls)) == (1.0, 2)


async def test_what_came_of_it_is_looked_through(tmp_path: Path, pauses: list[float]) -> None:
    calls = []

    def evaluate(messages: Any, **_: Any) -> Any:
        calls.append(1)
        if len(calls) > 2:
            return {"score": 1.0}
        try:
            hang_up()
        except ConnectionResetError as error:
            if len(calls) == 1:
                raise RuntimeError("the judge failed") from error
            raise RuntimeError("the judge failed again")  # noqa: B904 - as people write it

    finished = await judged(tmp_path, evaluate, retries=2)
    assert (finished.reward, len(calls)) == (1.0, 3)


@pytest.mark.parametrize(("asked", "pause"), [("7", 7.0), ("3600", 60.0), ("0", None), ("soon", None)])
@pytest.mark.parametrize("client", [with_urllib, with_requests, with_httpx, with_openai, with_aiohttp])
async def test_the_pause_is_what_the_server_asks_for(
    client: Callable[[str], Any],
    asked: str,
    pause: float | None,
    tmp_path: Path,
    stub_llm: StubServer,
    pauses: list[float],
) -> None:
    stub_llm.script(MODEL, ["Yes"])
    stub_llm.fail(MODEL, Answer(status=429, headers={"Retry-After": asked}))
    finished = await judged(tmp_path, judging_by(client, stub_llm.url), retries=1)
    assert finished.reward == 1.0
    assert len(pauses) == 1
    assert pauses[0] == pause if pause is not None else 0.5 <= pauses[0] <= 1.0


async def test_each_attempt_gets_the_arguments_untouched(tmp_path: Path, pauses: list[float]) -> None:
    seen = []

    def evaluate(messages: Any, **_: Any) -> Any:
        seen.append(len(messages))
        messages.clear()
        if len(seen) == 1:
            raise ConnectionError
        return {"score": 1.0}

    finished = await judged(tmp_path, evaluate, retries=1)
    assert finished.reward == 1.0
    assert seen == [len(finished.rollout.messages)] * 2


def evaluation_with_a_judge(folder: Path, stub: StubServer, faults: int, **options: Any) -> Any:
    bundle = flight_bundle(folder)
    bundle.write("reward.py", REWARD)
    bundle.rows({"actions": GOLD, "n_rollouts": 2, "sim_user_prompt": None, "end_goal_sql": None})
    stub.script(MODEL, ["Yes"])
    stub.fail(MODEL, BUSY, times=faults)
    return agent_eval(bundle.dataset, agent="gold", **options)


def test_an_evaluation_tries_again_as_often_as_retries_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stub_llm: StubServer
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reward_retries, "backoff", lambda *_: 0.01)
    result = evaluation_with_a_judge(tmp_path, stub_llm, 3)
    assert [outcome.reward for outcome in result.outcomes] == [1.0, 1.0]
    assert len(stub_llm.requests) == 5


def test_without_retries_it_tries_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stub_llm: StubServer
) -> None:
    monkeypatch.chdir(tmp_path)
    result = evaluation_with_a_judge(tmp_path, stub_llm, 2, retries=0)
    assert [outcome.unjudged_reason for outcome in result.outcomes] == ["reward_error"] * 2
    assert "503" in (result.outcomes[0].error or "")
    assert len(stub_llm.requests) == 2
