"""The tutorial, followed word by word."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT, files, follow
from stub_server import Answer, StubServer, call

TUTORIAL = ROOT / "docs" / "tutorial.md"


class Traveller:
    """An agent that books in its first two rollouts and gives up in the others."""

    def __init__(self) -> None:
        self._seeds: list[Any] = []

    def agent(self, request: dict[str, Any], place: int) -> str | Answer:
        seed = request.get("seed")
        if seed not in self._seeds:
            self._seeds.append(seed)
        if self._seeds.index(seed) >= 2:
            return "I found no flight."
        results = [message["content"] for message in request["messages"] if message["role"] == "tool"]
        if not results:
            return call("search_flights", origin="SFO", dest="JFK", date="2025-05-20")
        if len(results) == 1:
            return call("create_booking", flight_id=json.loads(results[0])[0]["id"], passenger="Alice")
        if len(results) == 2:
            return call("pay_booking", booking_id=json.loads(results[1])["booking_id"])
        return "It is booked and paid: you leave at 06:30."


@pytest.mark.skipif(shutil.which("curl") is None, reason="the tutorial calls its tools with curl")
@pytest.mark.timeout(300)
def test_every_step_of_the_tutorial_does_what_it_says(
    tmp_path: Path, environment: dict[str, str], stub_llm: StubServer
) -> None:
    stub_llm.script("gpt-4o-mini", Traveller().agent)
    stub_llm.script("gpt-3.5-turbo", ["Thank you. ###STOP###"])
    del environment["OPENAI_API_KEY"]  # it comes from the tutorial's .env
    follow(TUTORIAL, tmp_path, environment)


def test_the_tutorial_builds_the_tools_and_the_reward_of_the_example() -> None:
    written = files(TUTORIAL)
    for name in ("tools.py", "reward.py"):
        published = (ROOT / "examples" / "flight_task" / name).read_text()
        first, _, rest = published.partition("\n")
        assert first == f"# {name}"
        assert written[f"flight_task/{name}"].replace("flight_task.tools:app", "my_task.tools:app") == rest
