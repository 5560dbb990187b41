"""The page about watching rollouts: its example is run, its table holds what is sent."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from pages import ROOT, follow

from reward_kit.agent.telemetry import spans

PAGE = ROOT / "docs" / "observability.md"


def test_the_example_prints_what_the_page_says(tmp_path: Path, environment: dict[str, str]) -> None:
    shutil.copytree(ROOT / "examples" / "flight_task", tmp_path / "flight_task")
    follow(PAGE, tmp_path, environment)


def test_every_attribute_is_on_the_page() -> None:
    page = PAGE.read_text()
    source = Path(spans.__file__).read_text()
    for name in set(re.findall(r'"((?:gen_ai|reward_kit)\.[\w.]+)"', source)):
        group, _, last = name.rpartition(".")
        short = name.removeprefix("reward_kit").removeprefix("gen_ai.usage")
        known = {name, short, f".{last}"} if group else {name}
        assert any(f"`{one}`" in page for one in known) or name.startswith(
            ("gen_ai.operation", "gen_ai.evaluation", "gen_ai.tool.call")
        ), name
