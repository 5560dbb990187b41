"""Whole evaluations against a real server that limits, breaks, goes away and comes back.

Counts and order are asserted, with room for slow machines; times only from below. What the limiter does with
the time is asserted in ``test_limiter``, in virtual time.
"""

import json
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from command import run_command, start, wait_for
from flight_bundle import Bundle
from stub_server import DEFAULT_USAGE, Answer, StubServer

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.evaluation.progress import NoProgress
from reward_kit.agent.models import limits
from reward_kit.agent.store.layout import load_evaluation
from reward_kit.errors import ModelSetupError, ProviderDownError

ROLLOUTS = 20
ROWS = [{"id": "a", "n_rollouts": ROLLOUTS}]
CALLS = 2
"""Of a rollout: one answer of the agent, one of the user."""
KEY = "sk-canary-0123456789abcdef"
MODELS = {"model": "openai/gpt-4o-mini", "sim_model": "openai/gpt-3.5-turbo"}
DEADLINE = 60.0

Verdict = Callable[[float], Answer | None]


@pytest.fixture
def bundle(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(limits, "FIRST_INTERVAL", 0.2)
    return bundle


@dataclass
class Notes(NoProgress):
    texts: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def noted(self, text: str) -> None:
        self.texts.append(text)
        self.times.append(time.monotonic())


def run(bundle: Bundle, notes: Notes | None = None, **options: Any) -> EvaluationResult:
    given = {**MODELS, "max_concurrency": ROLLOUTS, "keep_db": "none", **options}
    return agent_eval(bundle.dataset, progress=notes, **given)


class Server:
    """Puts ``verdict`` before the answers of a stub; it gets the seconds since the first request."""

    def __init__(self, stub: StubServer, verdict: Verdict) -> None:
        self.arrivals: list[float] = []
        self.refused: list[float] = []
        self._verdict = verdict
        self._lock = threading.Lock()
        stub.script("gpt-4o-mini", self._answering("How can I help?"))
        stub.script("gpt-3.5-turbo", self._answering("No, thanks. ###STOP###"))

    @property
    def passed(self) -> int:
        return len(self.arrivals) - len(self.refused)

    def _answering(self, text: str) -> Callable[[dict[str, Any], int], Any]:
        def answer(request: dict[str, Any], place: int) -> Any:
            with self._lock:
                now = time.monotonic()
                self.arrivals.append(now)
                fault = self._verdict(now - self.arrivals[0])
                if fault is not None:
                    self.refused.append(now)
                    return fault
                return Answer(content=text, delay=0.05)

        return answer


def check_all_judged(result: EvaluationResult, server: Server) -> None:
    """Each rollout was judged in its first attempt, and exactly the calls that were answered are counted."""
    assert result.status == "complete"
    assert [(outcome.scored, outcome.attempt) for outcome in result.outcomes] == [(True, 0)] * ROLLOUTS
    used = result.usage.values()
    assert server.passed == sum(usage.calls for usage in used) == ROLLOUTS * CALLS
    tokens = sum(usage.input_tokens for usage in used)
    assert tokens == ROLLOUTS * CALLS * DEFAULT_USAGE["prompt_tokens"]


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


@pytest.mark.parametrize(
    ("client", "wait"),
    [
        ("direct", lambda left: {"Retry-After": f"{left:.3f}"}),
        ("litellm", lambda left: {"Retry-After": "nan", "retry-after-ms": f"{left * 1e3:.0f}"}),
        ("direct", lambda left: {"Retry-After": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}),
    ],
    ids=["seconds", "milliseconds", "year 10^20"],
)
def test_a_rate_limit_costs_no_rollout(bundle: Bundle, stub_llm: StubServer, client: str, wait: Any) -> None:
    server = Server(stub_llm, sliding_window(12, 0.3, wait))
    check_all_judged(run(bundle, client=client), server)
    assert len(server.refused) <= 2 * ROLLOUTS * CALLS


@pytest.mark.parametrize(
    ("client", "fault"), [("litellm", Answer(drop=True)), ("direct", Answer(status=500, error="boom"))]
)
def test_an_outage_costs_no_rollout(bundle: Bundle, stub_llm: StubServer, client: str, fault: Answer) -> None:
    notes = Notes()

    def verdict(_: float) -> Answer | None:
        if len(server.arrivals) <= 12 or (notes.times and time.monotonic() > notes.times[0] + 1.2):
            return None
        return fault

    server = Server(stub_llm, verdict)
    check_all_judged(run(bundle, notes, client=client), server)
    # one call tries after 0.2 s, 0.4 s, ...; before the note, as many as the machine makes while others end
    assert len([at for at in server.refused if at > notes.times[0]]) <= 5
    place = f"openai at {stub_llm.url}"
    assert f"{place} has not answered since " in notes.texts[0]
    assert "retrying in" in notes.texts[0]
    assert f"{place} answers again after" in notes.texts[-1]


def test_a_server_that_stays_away_ends_the_run_until_resumed(bundle: Bundle, stub_llm: StubServer) -> None:
    down = True
    server = Server(stub_llm, lambda now: Answer(drop=True) if down and len(server.arrivals) > 16 else None)
    with pytest.raises(ProviderDownError, match="no good answer since"):
        run(bundle, eval_id="mine", patience=1.0, max_concurrency=4)
    down = False
    asked = len(server.arrivals)
    result = run(bundle, eval_id="mine", max_concurrency=4)
    assert result.status == "complete"
    assert [outcome.scored for outcome in result.outcomes] == [True] * ROLLOUTS
    finished_before = ROLLOUTS - (len(server.arrivals) - asked) / CALLS
    assert 4 <= finished_before <= 8  # none of what was broken off counts, and what was done is kept


NO_KEY = Answer(status=401, error=f"Incorrect API key provided: {KEY}.", code="invalid_api_key")
USED_UP = Answer(status=429, error="You exceeded your current quota.", code="insufficient_quota")


@pytest.mark.parametrize(
    ("client", "refusal", "told"),
    [
        ("direct", NO_KEY, "refuses the key"),
        ("litellm", NO_KEY, "refuses the key"),
        ("direct", USED_UP, r"quota is used up \(HTTP 429\).*Check the account's plan"),
    ],
)
def test_a_lasting_refusal_midway_ends_the_run_and_shows_no_key(
    bundle: Bundle, stub_llm: StubServer, client: str, refusal: Answer, told: str, tmp_path: Path
) -> None:
    server = Server(stub_llm, lambda now: refusal if len(server.arrivals) > 10 else None)
    with pytest.raises(ModelSetupError, match=told) as caught:
        run(bundle, client=client, debug=True)
    assert KEY not in str(caught.value)
    assert len(server.refused) <= ROLLOUTS
    written = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if KEY.encode() in path.read_bytes()]


def test_requests_and_tokens_per_minute_reach_the_limiter(
    bundle: Bundle, stub_llm: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = 0.8
    monkeypatch.setattr(limits, "MINUTE", window)
    server = Server(stub_llm, lambda now: None)
    check_all_judged(run(bundle, rpm=18, tpm=2_000_000), server)
    arrivals = server.arrivals
    assert arrivals[-1] - arrivals[0] >= window * 1.2
    # in half of it: a slow machine delays some requests, and the next ones then follow more closely
    most = max(sum(begin <= at < begin + window * 0.5 for at in arrivals) for begin in arrivals)
    assert most <= 19


def test_an_answer_that_says_nothing_is_left_holds_calls_back(bundle: Bundle, stub_llm: StubServer) -> None:
    said: list[float] = []

    def verdict(now: float) -> Answer | None:
        if len(server.arrivals) != 10:
            return None
        said.append(server.arrivals[-1])
        headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "0.8s"}
        return Answer(content="Wait.", headers=headers)

    server = Server(stub_llm, verdict)
    result = run(bundle, max_concurrency=1)  # so that no other call is on its way then
    assert all(outcome.scored for outcome in result.outcomes)
    assert not [at for at in server.arrivals if said[0] < at < said[0] + 0.8]
    assert len([at for at in server.arrivals if at >= said[0] + 0.8]) >= 20


def test_killed_while_it_waits_it_counts_nothing_twice(bundle: Bundle, stub_llm: StubServer) -> None:
    server = Server(stub_llm, sliding_window(10, 0.5, lambda left: {"Retry-After": f"{left:.3f}"}))
    models = ("--model", MODELS["model"], "--sim-model", MODELS["sim_model"])
    options = ("--eval-id", "mine", "--workers", "2", "--max-concurrency", "6")
    process = start("agent-eval", "-d", bundle.dataset, *models, *options)
    wait_for(lambda: server.passed >= 12, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=DEADLINE)
    last = run_command("agent-eval", "--resume", "mine")
    assert last.code == 0, last.err
    folder = bundle.folder.parent / "runs" / "evals"
    outcomes = load_evaluation(folder / "mine.db").outcomes
    assert sorted(outcome.index for outcome in outcomes) == list(range(ROLLOUTS))
    result = json.loads((folder / "mine.json").read_text())
    assert result["status"] == "complete"
    assert sum(usage["calls"] for usage in result["usage"].values()) == ROLLOUTS * CALLS
