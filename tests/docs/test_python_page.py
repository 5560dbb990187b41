"""The page about Python, followed word by word, in a folder that holds the README's bundle."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from pages import ROOT, follow, write_files
from stub_server import StubServer, call

import reward_kit
import reward_kit.agent
from reward_kit.agent.config import OPTIONS, flag_of

PAGE = ROOT / "docs" / "python.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page calls its tools with curl")
@pytest.mark.timeout(300)
def test_every_example_prints_what_the_page_says(
    tmp_path: Path, environment: dict[str, str], stub_llm: StubServer
) -> None:
    stub_llm.script("gpt-4o-mini", seat_model)
    write_files(ROOT / "README.md", tmp_path)
    follow(PAGE, tmp_path, environment)


def seat_model(request: dict[str, object], place: int) -> object:
    """Plans where it is given no tools, else takes seat 2 and says so."""
    if not request.get("tools"):
        return "I am going to take the seat."
    return call("take_seat", number=2, passenger="Alice") if place == 0 else "You have seat 2."


@pytest.mark.parametrize("package", [reward_kit, reward_kit.agent], ids=lambda package: package.__name__)
def test_all_public_names_are_listed_and_no_others(package: object) -> None:
    section = PAGE.read_text().split("## All public names")[1]
    core, agent = section.split("`reward_kit.agent`")
    listed = re.findall(r"`(\w+)`", agent if package is reward_kit.agent else core)
    assert sorted(listed) == sorted([*package.__all__, *(["reward_kit"] if package is reward_kit else [])])


def test_options_have_the_names_of_their_long_flags() -> None:
    by_flag = {name: flag_of(name).removeprefix("--").replace("-", "_") for name in OPTIONS}
    assert {name: flag for name, flag in by_flag.items() if name != flag} == {
        "model_args": "model_arg",
        "user_model_args": "user_model_arg",
    }
