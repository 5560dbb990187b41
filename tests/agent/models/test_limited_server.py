"""Whole evaluations against a real server that refuses, breaks, goes away and comes back.

Counts and order are asserted, with room for slow machines; times only from below.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import Bundle, flight_bundle
from stub_server import Answer, StubServer

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.models import outage, rate_limits
from reward_kit.agent.models.concurrency import START
from reward_kit.agent.records.outcome import RolloutOutcome
from reward_kit.agent.runner.progress import NoProgress
from reward_kit.errors import ModelSetupError, ProviderDownError

ROLLOUTS = 30
CALLS = 3
"""Two answers of the agent and one of the user."""
CLIENTS = pytest.mark.parametrize("client", ["direct", "litellm"])


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    made = flight_bundle(tmp_path)
    made.rows({"id": "a", "n_rollouts": ROLLOUTS})
    monkeypatch.chdir(tmp_path)
    return made


@dataclass
class Notes(NoProgress):
    texts: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    outcomes: list[RolloutOutcome] = field(default_factory=list)

    def ended(self, outcome: RolloutOutcome, tally: Any) -> None:
        self.outcomes.append(outcome)

    def noted(self, text: str) -> None:
        self.texts.append(text)
        self.times.append(time.monotonic())


def run(bundle: Bundle, notes: Notes | None = None, **options: Any) -> EvaluationResult:
    given = {
        "model": "openai/gpt-4o-mini",
        "sim_model": "openai/gpt-3.5-turbo",
        "max_concurrency": ROLLOUTS,
        "keep_db": "none",
        **options,
    }
    return agent_eval(bundle.dataset, progress=notes, **given)


class Server:
    """Puts ``verdict`` before the answers of a stub; it gets the seconds since the first request."""

    def __init__(self, stub: StubServer, verdict: Callable[[float], Answer | None]) -> None:
        self.arrivals: list[float] = []
        self.refused: list[float] = []
        self._verdict = verdict
        stub.script("gpt-4o-mini", self._answering("How can I help?"))
        stub.script("gpt-3.5-turbo", self._answering("No, thanks. ###STOP###"))

    def _answering(self, text: str) -> Callable[[dict[str, Any], int], Any]:
        def answer(request: dict[str, Any], place: int) -> Any:
            now = time.monotonic()
            self.arrivals.append(now)
            fault = self._verdict(now - self.arrivals[0])
            if fault is None:
                return Answer(content=text, delay=0.06)
            self.refused.append(now)
            return fault

        return answer


def window_limit(most: int, seconds: float, header: str | None) -> Callable[[float], Answer | None]:
    """At most ``most`` requests in each window; the others are told when the next one begins."""
    taken: dict[int, int] = {}

    def verdict(now: float) -> Answer | None:
        window = int(now // seconds)
        taken[window] = taken.get(window, 0) + 1
        if taken[window] <= most:
            return None
        left = (window + 1) * seconds - now
        said = {
            None: {},
            "retry-after": {header: f"{left:.3f}"},
            "retry-after-ms": {header: f"{left * 1e3:.0f}"},
        }
        return Answer(status=429, error="slow down", headers=said[header])

    return verdict


@CLIENTS
@pytest.mark.parametrize(
    ("most", "seconds", "header"),
    [(8, 0.5, "retry-after"), (40, 1.5, "retry-after-ms"), (25, 0.7, None)],
)
def test_an_evaluation_gets_through_a_rate_limit_with_every_rollout_judged(
    bundle: Bundle, stub_llm: StubServer, client: str, most: int, seconds: float, header: str | None
) -> None:
    server = Server(stub_llm, window_limit(most, seconds, header))
    result = run(bundle, client=client)
    assert result.status == "complete"
    assert [outcome.judged for outcome in result.outcomes] == [True] * ROLLOUTS
    assert {outcome.attempt for outcome in result.outcomes} == {0}
    windows = (server.arrivals[-1] - server.arrivals[0]) / seconds + 1
    assert len(server.refused) <= 3 * ROLLOUTS + 6 * windows
    assert len(server.arrivals) == ROLLOUTS * 2 + len(server.refused)


@CLIENTS
@pytest.mark.parametrize("good", [0, 10])
def test_nobody_comes_before_the_pause_is_over_and_then_not_all_at_once(
    bundle: Bundle, stub_llm: StubServer, client: str, good: int
) -> None:
    ends: list[float] = []

    def verdict(now: float) -> Answer | None:
        if len(server.arrivals) > good and (not ends or now < ends[0]):
            ends.append(now + 1.5) if not ends else None
            return Answer(status=429, error="slow down", headers={"Retry-After": f"{ends[0] - now:.3f}"})
        return None

    server = Server(stub_llm, verdict)
    result = run(bundle, client=client)
    assert all(outcome.judged for outcome in result.outcomes)
    end = server.arrivals[0] + ends[0]
    # those under way: each of the good answers before may have let one more in
    assert len([at for at in server.arrivals if server.refused[0] <= at < end]) <= START + good
    after = [at for at in server.arrivals if at >= end]
    assert len(after) > ROLLOUTS / 2
    assert len([at for at in after if at < after[0] + 0.05]) <= START
    assert len(server.refused) <= ROLLOUTS


@CLIENTS
@pytest.mark.parametrize("fault", [Answer(drop=True), Answer(status=500, error="boom"), Answer(status=503)])
def test_an_outage_midway_costs_no_rollout(
    bundle: Bundle, stub_llm: StubServer, client: str, fault: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "FIRST_INTERVAL", 0.2)
    begun: list[float] = []
    notes = Notes()

    def verdict(now: float) -> Answer | None:
        if len(server.arrivals) <= 12:
            return None
        begun.append(now)
        return fault if now < begun[0] + 1.7 or not notes.texts else None  # on slow machines for longer

    server = Server(stub_llm, verdict)
    result = run(bundle, notes, client=client)
    assert result.status == "complete"
    assert [outcome.judged for outcome in result.outcomes] == [True] * ROLLOUTS
    assert all(outcome.final for outcome in notes.outcomes)  # none had to be played again
    # the calls that were under way, and a few that try; all others wait
    assert len(server.refused) <= ROLLOUTS + 10
    calm = notes.times[0] + 0.8
    assert len([at for at in server.refused if at > calm]) <= 10  # one tries, the others wait
    place = f"openai at {stub_llm.url}"
    assert f"{place} has not answered since " in notes.texts[0]
    assert "retrying in" in notes.texts[0]
    assert f"{place} answers again after" in notes.texts[-1]


def test_a_server_that_starts_late_is_waited_for(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "FIRST_INTERVAL", 0.2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("OPENAI_API_BASE", f"http://127.0.0.1:{port}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789abcdef")
    started: list[StubServer] = []

    def start() -> None:
        started.append(StubServer(port, lambda stub: Server(stub, lambda now: None)))

    timer = threading.Timer(0.5, start)

    class Waiting(Notes):
        def noted(self, text: str) -> None:
            if not self.texts:
                timer.start()
            super().noted(text)

    notes = Waiting()
    try:
        result = run(bundle, notes)
    finally:
        timer.join()
        for stub in started:
            stub.close()
    assert all(outcome.judged for outcome in result.outcomes)
    assert "cannot connect" in notes.texts[0]


def test_a_server_that_stays_away_ends_the_run_which_can_be_resumed(
    bundle: Bundle, stub_llm: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "FIRST_INTERVAL", 0.1)
    down = True
    server = Server(stub_llm, lambda now: Answer(drop=True) if down and len(server.arrivals) > 20 else None)
    with pytest.raises(ProviderDownError, match="no good answer since"):
        run(bundle, eval_id="mine", patience=1.0, max_concurrency=4)
    down = False
    asked = len(server.arrivals)
    result = run(bundle, eval_id="mine", max_concurrency=4)
    assert result.status == "complete"
    assert [outcome.judged for outcome in result.outcomes] == [True] * ROLLOUTS
    finished_before = ROLLOUTS - (len(server.arrivals) - asked) / 2
    assert 6 <= finished_before <= 10  # none of what was broken off counts, and what was done is kept


@CLIENTS
def test_an_error_now_and_then_is_made_up_for(bundle: Bundle, stub_llm: StubServer, client: str) -> None:
    server = Server(
        stub_llm,
        lambda now: Answer(status=503, error="overloaded") if len(server.arrivals) % 9 == 0 else None,
    )
    notes = Notes()
    result = run(bundle, notes, client=client)
    assert [outcome.judged for outcome in result.outcomes] == [True] * ROLLOUTS
    assert notes.texts == []


@CLIENTS
def test_a_key_that_is_refused_midway_ends_the_run_at_once(
    bundle: Bundle, stub_llm: StubServer, client: str
) -> None:
    server = Server(
        stub_llm,
        lambda now: (
            Answer(status=401, error="Incorrect API key provided") if len(server.arrivals) > 25 else None
        ),
    )
    with pytest.raises(ModelSetupError, match="refuses the key"):
        run(bundle, eval_id="mine", client=client)
    assert len(server.refused) <= ROLLOUTS
    time.sleep(0.5)  # what was sent already may still arrive
    asked = len(server.arrivals)
    time.sleep(0.3)
    assert len(server.arrivals) == asked


@CLIENTS
def test_requests_and_tokens_per_minute_reach_the_limiter(
    bundle: Bundle, stub_llm: StubServer, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = 1.2
    monkeypatch.setattr(rate_limits, "MINUTE", window)
    server = Server(stub_llm, lambda now: None)
    bundle.rows({"id": "a", "n_rollouts": 12})
    result = run(bundle, client=client, rpm=10, tpm=2_000_000)
    assert all(outcome.judged for outcome in result.outcomes)
    assert len(server.arrivals) == 24
    arrivals = server.arrivals
    assert arrivals[-1] - arrivals[0] >= window * 1.2
    most = max(sum(begin <= at < begin + window * 0.9 for at in arrivals) for begin in arrivals)
    assert most <= 11


def test_waiting_for_the_provider_takes_nothing_of_a_rollouts_time(
    bundle: Bundle, stub_llm: StubServer
) -> None:
    def verdict(now: float) -> Answer | None:
        if len(server.arrivals) > 5 and now < 2.5:
            return Answer(status=429, headers={"Retry-After": f"{2.5 - now:.3f}"})
        return None

    server = Server(stub_llm, verdict)
    result = run(bundle, timeout=2.0)
    assert {outcome.stop_reason for outcome in result.outcomes} == {"user_stop"}


@CLIENTS
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_an_answer_that_says_nothing_is_left_holds_calls_back(
    bundle: Bundle, stub_llm: StubServer, client: str, provider: str
) -> None:
    told: list[float] = []

    def headers() -> dict[str, str]:
        if provider == "openai":
            return {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1.5s"}
        reset = datetime.now(UTC) + timedelta(seconds=1.5)
        return {
            "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-requests-reset": reset.isoformat(),
        }

    def verdict(now: float) -> Answer | None:
        if len(server.arrivals) != 20:
            return None
        told.append(server.arrivals[-1])
        return Answer(content="Wait.", headers=headers())

    server = Server(stub_llm, verdict)
    result = run(bundle, client=client, max_concurrency=1)  # so that no other call is on its way then
    assert all(outcome.judged for outcome in result.outcomes)
    assert not [at for at in server.arrivals if told[0] < at < told[0] + 1.5]
    assert len([at for at in server.arrivals if at >= told[0] + 1.5]) >= 20
