"""The page about training data, followed word by word beside the README's bundle."""

from __future__ import annotations

import json
from pathlib import Path

from pages import ROOT, follow, write_files

from reward_kit.agent.exporting.lines import COLUMNS

PAGE = ROOT / "docs" / "export.md"


def test_every_example_prints_what_the_page_says(tmp_path: Path, environment: dict[str, str]) -> None:
    write_files(ROOT / "README.md", tmp_path)
    follow(PAGE, tmp_path, environment)
    lines = [json.loads(line) for line in (tmp_path / "mixed.jsonl").read_text().splitlines()]
    assert [tuple(line) for line in lines] == [COLUMNS] * 4
    for_openai = [json.loads(line) for line in (tmp_path / "openai.jsonl").read_text().splitlines()]
    assert [set(line) for line in for_openai] == [{"messages", "tools", "parallel_tool_calls"}] * 2
