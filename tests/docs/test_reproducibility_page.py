"""The page about reproducibility, followed word by word, in a folder that holds the README's bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pages import ROOT, follow, write_files
from stub_server import StubServer, call

PAGE = ROOT / "docs" / "reproducibility.md"


class Unsteady:
    """An agent that takes the right seat in its first two rollouts and another one in the rest."""

    def __init__(self) -> None:
        self._seeds: list[Any] = []

    def __call__(self, request: dict[str, Any], place: int) -> Any:
        if request["seed"] not in self._seeds:
            self._seeds.append(request["seed"])
        number = 2 if self._seeds.index(request["seed"]) < 2 else 1
        return call("take_seat", number=number, passenger="Alice") if place == 0 else "You have a seat."


@pytest.mark.timeout(300)
def test_every_example_prints_what_the_page_says(
    tmp_path: Path, environment: dict[str, str], stub_llm: StubServer
) -> None:
    stub_llm.script("gpt-4o-mini", Unsteady())
    write_files(ROOT / "README.md", tmp_path)
    follow(PAGE, tmp_path, {**environment, "MODEL_AGENT": "openai/gpt-4o-mini"})
    assert len(stub_llm.requests) == 8
