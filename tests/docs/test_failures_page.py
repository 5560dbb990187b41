"""The page about failures, followed word by word beside the bundle of the tutorial."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
from pages import ROOT, follow
from stub_server import StubServer

from reward_kit.agent.scoring.failures.classify import FAILURE_KINDS, Failure

PAGE = ROOT / "docs" / "failures.md"


@pytest.mark.timeout(300)
def test_every_example_prints_what_the_page_says(
    tmp_path: Path, environment: dict[str, str], stub_llm: StubServer
) -> None:
    verdict = {"author": "agent", "fault": "wrong_arguments", "sentence": "It booked for Alice Miller."}
    stub_llm.script("gpt-4o", [json.dumps(verdict)])
    shutil.copytree(ROOT / "examples" / "flight_task", tmp_path / "flight_task")
    follow(PAGE, tmp_path, environment)


def test_all_classes_and_all_fields_are_listed() -> None:
    page = PAGE.read_text()
    classes = page.split("## The classes")[1].split("## The first wrong step")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", classes, re.MULTILINE)) == sorted(FAILURE_KINDS)
    table = page.split("## Fields")[1].split("## Columns that")[0]
    cells = re.findall(r"^\| (`.+?`) \|", table, re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(field.name for field in fields(Failure))
