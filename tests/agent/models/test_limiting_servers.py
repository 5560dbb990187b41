"""Whole evaluations against servers that limit in other ways than by one window: sliding ones, buckets.

Counts are asserted, with room for slow machines; no times.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import Bundle, flight_bundle
from stub_server import DEFAULT_USAGE, Answer, StubServer

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.storage.stored_evaluation import load_evaluation
from reward_kit.errors import ModelSetupError

ROLLOUTS = 24
CALLS = 2
"""Of a rollout: one answer of the agent, one of the user."""
CLIENTS = pytest.mark.parametrize("client", ["direct", "litellm"])
KEY = "sk-canary-0123456789abcdef"
MODELS = {"model": "openai/gpt-4o-mini", "sim_model": "openai/gpt-3.5-turbo"}
MINUTE = 60.0

Verdict = Callable[[float], Answer | None]


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    made = flight_bundle(tmp_path)
    made.rows({"id": "a", "n_rollouts": ROLLOUTS})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return made


class Server:
    """Puts ``verdict`` before the answers of a stub; it gets the seconds since the first request."""

    def __init__(self, stub: StubServer, verdict: Verdict) -> None:
        self.passed = 0
        self.refused = 0
        self.headers: dict[str, str] = {}
        self._verdict = verdict
        self._begin: float | None = None
        self._lock = threading.Lock()
        stub.script("gpt-4o-mini", self._answering("How can I help?"))
        stub.script("gpt-3.5-turbo", self._answering("No, thanks. ###STOP###"))

    def _answering(self, text: str) -> Callable[[dict[str, Any], int], Any]:
        def answer(request: dict[str, Any], place: int) -> Any:
            with self._lock:
                now = time.monotonic()
                self._begin = self._begin or now
                fault = self._verdict(now - self._begin)
                if fault is not None:
                    self.refused += 1
                    return fault
                self.passed += 1
            return Answer(content=text, delay=0.06, headers=self.headers)

        return answer


def sliding_window(most: int, seconds: float, wait: Callable[[float], dict[str, str]]) -> Verdict:
    """At most ``most`` requests in any ``seconds``; ``wait`` makes the headers from the seconds to wait."""
    taken: deque[float] = deque()

    def verdict(now: float) -> Answer | None:
        while taken and taken[0] <= now - seconds:
            taken.popleft()
        if len(taken) < most:
            taken.append(now)
            return None
        return Answer(status=429, error="slow down", headers=wait(taken[0] + seconds - now))

    return verdict


def date_in(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


def played(result: EvaluationResult) -> None:
    """Each rollout was judged, in its first attempt."""
    assert result.status == "complete"
    assert [(outcome.judged, outcome.attempt) for outcome in result.outcomes] == [(True, 0)] * ROLLOUTS


def counted(result: EvaluationResult, answers: int) -> None:
    """Exactly the calls that were answered are counted."""
    used = result.usage.values()
    assert sum(usage.calls for usage in used) == answers
    assert sum(usage.input_tokens for usage in used) == answers * DEFAULT_USAGE["prompt_tokens"]


@pytest.mark.parametrize(
    "wait",
    [
        lambda left: {"Retry-After": f"{left:.3f}"},
        lambda left: {"Retry-After": date_in(left)},
        lambda left: {"Retry-After": date_in(-100)},
        lambda left: {"Retry-After": "-5"},
        lambda left: {"Retry-After": "0"},
        lambda left: {"Retry-After": "soon"},
        lambda left: {"Retry-After": "nan", "retry-after-ms": f"{left * 1e3:.0f}"},
    ],
    ids=["seconds", "date", "past", "negative", "zero", "words", "milliseconds"],
)
def test_a_sliding_window_costs_no_rollout_whatever_the_refusals_say(
    bundle: Bundle, stub_llm: StubServer, wait: Callable[[float], dict[str, str]]
) -> None:
    server = Server(stub_llm, sliding_window(12, 0.3, wait))
    result = agent_eval(bundle.dataset, **MODELS, max_concurrency=50, keep_db="none")
    played(result)
    counted(result, ROLLOUTS * CALLS)
    assert server.passed == ROLLOUTS * CALLS
    assert server.refused <= 2 * ROLLOUTS * CALLS


def test_an_absurd_wait_ends_with_the_patience(bundle: Bundle, stub_llm: StubServer) -> None:
    said: list[float] = []

    def verdict(now: float) -> Answer | None:
        if server.passed < 5 or (said and now > said[0] + 1.0):
            return None
        said.append(now)
        return Answer(status=429, headers={"Retry-After": "1000000000"})

    server = Server(stub_llm, verdict)
    result = agent_eval(bundle.dataset, **MODELS, max_concurrency=8, keep_db="none", patience=1.5)
    played(result)
    assert server.refused <= 30


@CLIENTS
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_bucket_whose_headers_tell_what_is_left_is_hardly_ever_found_empty(
    bundle: Bundle, stub_llm: StubServer, client: str, provider: str
) -> None:
    most, per_second = 12, 24
    bucket = [float(most), 0.0]

    def verdict(now: float) -> Answer | None:
        left, before = bucket
        left = min(most, left + (now - before) * per_second)
        fault = None if left >= 1 else Answer(status=429, headers={"Retry-After": "0.1"})
        bucket[:] = [left - (fault is None), now]
        until_full = (most - bucket[0]) / per_second
        if provider == "openai":
            reset = f"{until_full * 1e3:.0f}ms" if until_full < 1 else f"{until_full:.2f}s"
        else:
            reset = (datetime.now(UTC) + timedelta(seconds=until_full)).isoformat()
        name = {"openai": "x-ratelimit-{}-requests", "anthropic": "anthropic-ratelimit-requests-{}"}[provider]
        server.headers = {
            name.format("remaining"): str(int(bucket[0])),
            name.format("reset"): reset,
        }
        return fault

    server = Server(stub_llm, verdict)
    result = agent_eval(bundle.dataset, **MODELS, max_concurrency=8, keep_db="none", client=client)
    played(result)
    assert server.refused <= 3, server.refused


@CLIENTS
@pytest.mark.parametrize(
    "fault",
    [
        Answer(status=502, body=b"<html><body><h1>502 Bad Gateway</h1></body></html>"),
        Answer(status=408, error="timed out"),
        Answer(status=409, error="conflict"),
        Answer(body=b""),
        Answer(body=b"<html>welcome</html>"),
        Answer(body=b'{"id": "x", "choices": []}'),
        Answer(body=b'{"error": {"message": "the upstream broke", "code": 502}}'),
    ],
    ids=["html", "408", "409", "empty", "page", "no-choices", "error-in-200"],
)
def test_answers_that_are_none_are_asked_for_again_and_counted_nowhere(
    bundle: Bundle, stub_llm: StubServer, client: str, fault: Answer
) -> None:
    asked = iter(range(10_000))
    Server(stub_llm, lambda now: fault if next(asked) % 8 == 7 else None)
    result = agent_eval(bundle.dataset, **MODELS, max_concurrency=8, keep_db="none", client=client)
    played(result)
    counted(result, ROLLOUTS * CALLS)


@CLIENTS
def test_a_key_that_the_provider_repeats_is_written_nowhere(
    bundle: Bundle, stub_llm: StubServer, client: str, tmp_path: Path
) -> None:
    told = Answer(status=401, error=f"Incorrect API key provided: {KEY}.", code="invalid_api_key")
    server = Server(stub_llm, lambda now: told if server.passed >= 10 else None)
    with pytest.raises(ModelSetupError, match="refuses the key") as caught:
        agent_eval(bundle.dataset, **MODELS, max_concurrency=4, client=client, debug=True)
    assert KEY not in str(caught.value)
    written = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if KEY.encode() in path.read_bytes()]


def start(bundle: Bundle, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "reward_kit", "agent-eval", *options],
        cwd=bundle.folder.parent,
        env=os.environ.copy(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.timeout(180)
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_while_it_waits_for_a_limit_it_is_completed_with_nothing_counted_twice(
    bundle: Bundle, stub_llm: StubServer, workers: int
) -> None:
    server = Server(stub_llm, sliding_window(10, 0.5, lambda left: {"Retry-After": f"{left:.3f}"}))
    first = [
        *("--dataset", str(bundle.dataset), "--model", MODELS["model"], "--sim-model", MODELS["sim_model"]),
        *("--eval-id", "mine", "--workers", str(workers), "--max-concurrency", "6"),
    ]
    codes = []
    for number, way in enumerate((signal.SIGTERM, signal.SIGKILL, signal.SIGINT)):
        before = server.passed
        process = start(bundle, *(first if number == 0 else ("--resume", "mine")))
        deadline = time.monotonic() + MINUTE
        while server.passed < before + 12 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(way)
        _, errors = process.communicate(timeout=MINUTE)
        assert "Traceback" not in errors
        codes.append(process.returncode)
    assert codes == [130, -signal.SIGKILL, 130]
    last = start(bundle, "--resume", "mine")
    _, errors = last.communicate(timeout=MINUTE)
    assert last.returncode == 0, errors
    folder = bundle.folder.parent / "runs" / "evals"
    outcomes = load_evaluation(folder / "mine.db").outcomes
    assert sorted(outcome.index for outcome in outcomes) == list(range(ROLLOUTS))
    result = json.loads((folder / "mine.json").read_text())
    assert result["status"] == "complete"
    assert sum(usage["calls"] for usage in result["usage"].values()) == ROLLOUTS * CALLS


@pytest.mark.parametrize("workers", [1, 2])
def test_a_quota_that_is_used_up_midway_is_told_once(
    bundle: Bundle, stub_llm: StubServer, workers: int
) -> None:
    used_up = Answer(status=429, error="You exceeded your current quota.", code="insufficient_quota")
    server = Server(stub_llm, lambda now: used_up if server.passed >= 20 else None)
    process = start(
        bundle,
        *("--dataset", str(bundle.dataset), "--model", MODELS["model"], "--sim-model", MODELS["sim_model"]),
        *("--quiet", "--workers", str(workers)),
    )
    _, errors = process.communicate(timeout=MINUTE)
    assert process.returncode == 2
    assert errors.count("quota is used up (HTTP 429)") == 1
    assert "Check the account's plan and billing." in errors
    assert "not judged" not in errors
    assert server.refused <= ROLLOUTS
