"""The page about MCP, followed word by word, and held against the command's options."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from pages import ROOT, follow

from reward_kit.cli_commands.mcp import mcp

PAGE = ROOT / "docs" / "mcp.md"


@pytest.mark.timeout(300)
def test_every_example_prints_what_the_page_says(tmp_path: Path, environment: dict[str, str]) -> None:
    pytest.importorskip("mcp")
    shutil.copytree(ROOT / "examples" / "flight_task", tmp_path / "flight_task")
    follow(PAGE, tmp_path, environment)


def test_every_option_is_listed_with_its_default_and_no_other() -> None:
    rows = re.findall(r"^\| `(--\w+)` \|[^|]*\| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    options = {option.opts[0]: option for option in mcp.params if option.param_type_name == "option"}
    assert {flag for flag, _ in rows} == set(options)
    for flag, meaning in rows:
        default = [] if options[flag].is_flag else [str(options[flag].default)]
        assert re.findall(r"Default: `(.+?)`", meaning) == default
