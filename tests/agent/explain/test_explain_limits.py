"""The explaining model has limits like any other: it is not stormed, and nothing is asked too often.

Counts are asserted, with room for slow machines; times only from below.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle, flight_bundle
from stub_server import Answer, StubServer

from reward_kit.agent import EvaluationConfig, EvaluationResult, agent_eval
from reward_kit.agent.explain.explainer import make_explainer
from reward_kit.agent.models import rate_limits
from reward_kit.agent.models.calls import Call
from reward_kit.agent.models.limiter import Limiters
from reward_kit.errors import ModelError

AGENT = """
class BooksNothing:
    async def respond(self, rollout):
        return "No."
"""
BLAMED = json.dumps({"author": "agent", "fault": "other", "sentence": "It booked nothing."})
FAILED = 12
WINDOW = 1.0
"""Seconds of a minute."""


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    made = flight_bundle(tmp_path)
    made.rows({"actions": GOLD, "n_rollouts": FAILED})
    monkeypatch.chdir(tmp_path)
    name = f"limited_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(AGENT)
    made.players = f"{name}:BooksNothing"
    return made


def run(bundle: Bundle, **options: Any) -> EvaluationResult:
    agent = bundle.players
    return agent_eval(
        bundle.dataset, agent=agent, no_sim_user=True, explain="openai/judge", keep_db="none", **options
    )


def judge(stub: StubServer, verdict: Callable[[float], Answer | None] = lambda now: None) -> list[float]:
    """When the judge is asked; ``verdict`` gets the seconds since the first time."""
    arrivals: list[float] = []

    def answer(request: dict[str, Any], place: int) -> Answer:
        arrivals.append(time.monotonic())
        return verdict(arrivals[-1] - arrivals[0]) or Answer(content=BLAMED, delay=0.05)

    stub.script("judge", answer)
    return arrivals


def test_a_judge_that_takes_few_calls_a_second_judges_all(bundle: Bundle, stub_llm: StubServer) -> None:
    taken: dict[int, int] = {}
    refused: list[float] = []

    def verdict(now: float) -> Answer | None:
        window = int(now)
        taken[window] = taken.get(window, 0) + 1
        if taken[window] <= 4:
            return None
        refused.append(now)
        return Answer(status=429, error="slow down", headers={"Retry-After": f"{window + 1 - now:.3f}"})

    arrivals = judge(stub_llm, verdict)
    result = run(bundle, retries=1, max_concurrency=FAILED)
    assert result.explanations is not None
    assert len(result.explanations.made) == FAILED
    windows = (arrivals[-1] - arrivals[0]) + 1
    assert len(refused) <= FAILED + 3 * windows  # those that were under way, and not all again each second


def test_requests_per_minute_hold_for_the_judge(
    bundle: Bundle, stub_llm: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limits, "MINUTE", WINDOW)
    arrivals = judge(stub_llm)
    result = run(bundle, rpm=8, max_concurrency=FAILED)
    assert result.explanations is not None
    assert len(result.explanations.made) == len(arrivals) == FAILED
    assert max(sum(begin <= at < begin + WINDOW * 0.97 for at in arrivals) for begin in arrivals) <= 8


def test_what_rollouts_have_used_of_a_limit_counts_for_the_judge(stub_llm: StubServer) -> None:
    arrivals = judge(stub_llm)
    config = EvaluationConfig(explain="openai/judge", rpm=2)

    async def main() -> None:
        limiters = Limiters(rpm=2)
        limiters.used = True
        explainer = make_explainer(config, limiters)
        assert explainer is not None
        shared = limiters.of("openai", stub_llm.url)
        async with shared.turn(first := Call()):
            pass
        shared.failed(first, ModelError("bad", status=400))
        asked = asyncio.ensure_future(explainer.model.complete([{"role": "user", "content": "Why?"}]))
        await asyncio.wait({asked}, timeout=0.3)
        assert not asked.done()
        asked.cancel()

    asyncio.run(main())
    assert arrivals == []
