"""The page about simulated users, followed word by word, in a folder that holds the README's bundle."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pages import ROOT, follow, write_files
from stub_server import Answer, StubServer, call

from reward_kit.agent.bundles.files import PLACEHOLDERS
from reward_kit.agent.players.names import USERS as BUILT_IN
from reward_kit.agent.scoring.user_faults import UserFaultKind

PAGE = ROOT / "docs" / "users.md"


@pytest.mark.timeout(300)
def test_every_command_prints_what_the_page_says(
    tmp_path: Path, environment: dict[str, str], stub_llm: StubServer
) -> None:
    stub_llm.script(
        "gpt-4o-mini", ["Who is it for?", call("take_seat", number=2, passenger="Alice"), "It is yours."]
    )
    stub_llm.script("gpt-4o", alice)
    write_files(ROOT / "README.md", tmp_path)
    (tmp_path / "seat_task" / "prompts").mkdir()
    follow(PAGE, tmp_path, environment)
    systems = [request["messages"][0]["content"] for request in stub_llm.requests_for("gpt-4o")]
    assert any(
        text.startswith("You are a passenger at a counter. You are Alice, customer") for text in systems
    )


def alice(request: dict[str, Any], _place: int) -> str | Answer:
    """Says what the page says, with a thought where it is asked for one."""
    system = request["messages"][0]["content"]
    heard = request["messages"][-1]["content"]
    line = "Hello, I would like seat 2."
    if "yours" in heard:
        line = "###STOP###"
    elif "Who is it" in heard:
        line = "Alice, A1234."
    thought = "I begin with the seat."
    return f"Thought:\n{thought}\nUser Response:\n{line}" if "User Response" in system else line


def table(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    text = PAGE.read_text().split(heading, 1)[1]
    rows = re.search(r"^\|.*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)
    assert rows is not None
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows.group().splitlines()[2:]]


def test_all_built_in_users_are_listed() -> None:
    assert [row[0].strip("`") for row in table("# Simulated users")] == [*BUILT_IN, "replay:PATH"]


def test_all_prompts_are_listed_with_what_they_must_have() -> None:
    listed = {row[0].strip("`"): tuple(re.findall(r"\{(\w+)\}", row[2])) for row in table("## Prompts")}
    assert listed == {f"{name}.txt": needed for name, needed in PLACEHOLDERS.items()}


def test_all_faults_are_listed() -> None:
    assert [row[0].strip("`") for row in table("## Faults of a user")] == list(get_args(UserFaultKind))
