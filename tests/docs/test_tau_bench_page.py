"""The page for whoever comes from tau-bench, followed word by word."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT, follow
from stub_server import StubServer

from reward_kit.agent.config import OPTIONS
from reward_kit.agent.players.names import AGENTS, USERS

PAGE = ROOT / "docs" / "tau-bench.md"
TEXT = PAGE.read_text(encoding="utf-8")
THEIRS = (
    "--env --model --model-provider --user-model --user-model-provider --agent-strategy --user-strategy "
    "--temperature --task-split --start-index --end-index --task-ids --log-dir --max-concurrency --seed "
    "--shuffle --num-trials --few-shot-displays-path"
)
"""The flags of the benchmark's run.py."""


def table() -> list[list[str]]:
    lines = TEXT[TEXT.index("| τ-bench | here |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]


def agent_or_user(request: dict[str, Any], place: int) -> str:
    if "# Available tools" in request["messages"][0]["content"]:
        return 'Thought:\nNo.\nAction:\n{"name": "respond", "arguments": {"content": "I cannot help."}}'
    return ["Hello, something is wrong with my order.", "###STOP###"][min(place, 1)]


@pytest.mark.timeout(300)
def test_every_example_prints_what_the_page_says(
    tmp_path: Path, environment: dict[str, str], stub_llm: StubServer
) -> None:
    stub_llm.script("gpt-4o", agent_or_user)
    bundle = ROOT / "tau_retail_task"
    shutil.copytree(bundle, tmp_path / bundle.name, ignore=shutil.ignore_patterns("__pycache__"))
    follow(PAGE, tmp_path, environment)


def test_every_flag_of_theirs_is_in_the_table() -> None:
    listed = {flag for row in table() for flag in re.findall(r"`(--[\w-]+)", row[0])}
    assert listed == set(THEIRS.split())


def test_every_flag_of_ours_is_one() -> None:
    flags = {name for option in OPTIONS.values() for flag in option.flags for name in flag.split("/")}
    for row in table():
        assert set(re.findall(r"`(--[\w-]+)", row[1])) <= flags, row
    assert set(re.findall(r"`(--[\w-]+)", TEXT.partition("## What is not")[2])) <= flags


def test_the_strategies_that_it_names_are_there() -> None:
    named = {row[1]: set(re.findall(r"`([a-z-]+)`", row[2])) for row in table() if "strategy" in row[0]}
    agents, users = named.values()
    assert agents <= set(AGENTS)
    assert users <= set(USERS)
