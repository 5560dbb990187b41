"""The page about reading evaluations in a browser, followed word by word beside the retail bundle."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pages import ROOT, follow

BUNDLE = ROOT / "tau_retail_task"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page asks for a page with curl")
@pytest.mark.timeout(300)
def test_every_example_prints_what_the_page_says(tmp_path: Path, environment: dict[str, str]) -> None:
    shutil.copytree(BUNDLE, tmp_path / BUNDLE.name, ignore=shutil.ignore_patterns("__pycache__"))
    follow(ROOT / "docs" / "view.md", tmp_path, environment)
