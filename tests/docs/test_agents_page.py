"""The page about agents: its built-in ones are those that there are, and its commands run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT, follow
from stub_server import StubServer, call

from reward_kit.agent.agents.few_shot import read_displays
from reward_kit.agent.players.names import AGENTS as BUILT_IN

PAGE = ROOT / "docs" / "agents.md"


def built_in_part(folder: Path) -> Path:
    """The page up to the agents of one's own."""
    page = folder / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8").partition("\n## Your own agent")[0], encoding="utf-8")
    return page


def searches(request: dict[str, Any], place: int) -> Any:
    """One look at the flights in whatever form is asked for, then an answer."""
    if place > 0:
        return "It leaves at 06:40."
    arguments = {"origin": "SFO", "dest": "BOS", "date": "2025-05-20"}
    if "tools" in request:
        return call("search_flights", **arguments)
    return f"Thought: I look.\nAction: {json.dumps({'name': 'search_flights', 'arguments': arguments})}"


@pytest.mark.timeout(300)
def test_every_command_does_what_the_page_says(
    tmp_path: Path, environment: dict[str, str], stub_llm: StubServer
) -> None:
    stub_llm.script("gpt-4o-mini", searches)
    stub_llm.script("gpt-3.5-turbo", ["Thank you ###STOP###"])
    shutil.copytree(ROOT / "examples" / "flight_task", tmp_path / "flight_task")
    models = {"MODEL_AGENT": "openai/gpt-4o-mini", "MODEL_SIM": "openai/gpt-3.5-turbo"}
    follow(built_in_part(tmp_path), tmp_path, {**environment, **models})
    thinking, shown = (
        json.loads((tmp_path / "runs" / "evals" / f"{name}.json").read_text())
        for name in ("thinking", "shown")
    )
    assert (thinking["status"], shown["status"]) == ("complete", "complete")
    assert len(read_displays(tmp_path / "displays.jsonl")) == 5
    prompts = [request["messages"][0]["content"] for request in stub_llm.requests if "tools" in request]
    assert all("Example 5:\nUser: " in prompt for prompt in prompts)


def test_every_built_in_agent_is_on_the_page() -> None:
    listed = re.findall(
        r"^\| `([\w-]+)(?::PATH)?` \| (?:yes|no|its own) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert set(BUILT_IN) <= set(listed)
