"""The page about agents of one's own, followed word by word."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import ROOT, files, follow, write_files
from stub_server import StubServer, call

PAGE = ROOT / "docs" / "own-agents.md"
EXAMPLES = ROOT / "examples" / "own_agents"


@pytest.mark.timeout(300)
def test_every_example_prints_what_the_page_says(
    tmp_path: Path, environment: dict[str, str], stub_llm: StubServer
) -> None:
    pytest.importorskip("agents", reason="openai-agents is not installed")
    pytest.importorskip("langgraph", reason="langgraph is not installed")
    pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    stub_llm.script("gpt-4o-mini", [call("take_seat", number=2, passenger="Alice"), "You have seat 2."])
    write_files(ROOT / "README.md", tmp_path)
    follow(PAGE, tmp_path, {**environment, "OPENAI_BASE_URL": stub_llm.url})


def test_the_page_shows_the_files_as_they_are() -> None:
    shown = files(PAGE)
    assert shown == {path.name: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")}
