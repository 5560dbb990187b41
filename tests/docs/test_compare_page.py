"""The page about comparing evaluations, followed word by word beside the retail bundle."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from pages import ROOT, follow

from reward_kit.agent import compare

PAGE = ROOT / "docs" / "compare.md"
BUNDLE = ROOT / "tau_retail_task"


@pytest.mark.timeout(300)
def test_every_example_prints_what_the_page_says(tmp_path: Path, environment: dict[str, str]) -> None:
    shutil.copytree(BUNDLE, tmp_path / BUNDLE.name, ignore=shutil.ignore_patterns("__pycache__"))
    follow(PAGE, tmp_path, environment)
    plain = compare("hasty", "careful", output_dir=tmp_path / "runs").to_json()
    section = PAGE.read_text().split("`--json` writes everything")[1].split("\n## ")[0]
    assert set(plain) - {"format"} == set(re.findall(r"`(\w+)`", section))
