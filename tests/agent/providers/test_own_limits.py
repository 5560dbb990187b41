"""Requests per minute as the server counts them, in windows that slide; and those of the explaining model.

Counts are asserted, with room for slow machines; no times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import Bundle, flight_bundle
from stub_server import Answer, StubServer

from reward_kit.agent import agent_eval
from reward_kit.agent.providers import gate

WINDOW = 2.0
"""Seconds of a minute."""
LATE = 0.8
"""Seconds that the first request is held up."""
RPM = 6


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    made = flight_bundle(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gate, "MINUTE", WINDOW)
    return made


def arrivals_of(stub: StubServer, model: str) -> list[float]:
    """When requests for ``model`` come; each is answered."""
    arrivals: list[float] = []

    def answer(request: dict[str, Any], place: int) -> Answer:
        arrivals.append(time.monotonic())
        return Answer(content="Hello")

    stub.script(model, answer)
    return arrivals


def most_within(seconds: float, arrivals: list[float]) -> int:
    return max(sum(begin <= at < begin + seconds for at in arrivals) for begin in arrivals)


def held_up_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which the first time blocks everything, as an import does."""
    late = [LATE]

    def slowly(*args: Any, **options: Any) -> Any:
        time.sleep(late.pop() if late else 0.0)
        return function(*args, **options)

    return slowly


@pytest.mark.parametrize("client", ["direct", "litellm"])
def test_a_first_request_that_is_held_up_counts_from_when_it_arrives(
    bundle: Bundle, stub_llm: StubServer, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reward_kit.agent import llm
    from reward_kit.agent.openai_http.model import OpenAIModel

    monkeypatch.setattr(OpenAIModel, "_open_session", held_up_once(OpenAIModel._open_session))
    monkeypatch.setattr(llm, "import_litellm", held_up_once(llm.import_litellm))
    bundle.rows({"id": "a", "n_rollouts": 2 * RPM})
    arrivals = arrivals_of(stub_llm, "gpt-4o-mini")
    result = agent_eval(
        bundle.dataset, model="openai/gpt-4o-mini", user="none", client=client, rpm=RPM, keep_db="none"
    )
    assert result.status == "complete"
    assert len(arrivals) == 2 * RPM
    assert most_within(WINDOW * 0.97, arrivals) <= RPM
