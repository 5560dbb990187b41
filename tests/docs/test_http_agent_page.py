"""The page about agents behind HTTP, followed word by word, and held against what is sent."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from http_stub_agent import serving
from pages import ROOT, follow
from small_task import seeded, small_task

from reward_kit.agent import load_agent
from reward_kit.agent.agents.http_agent import FAREWELL, LAST_WORDS, MAX_ANSWER, TOKEN
from reward_kit.agent.agents.http_protocol import PROTOCOL
from reward_kit.agent.rollout.orchestrator import run_rollout
from reward_kit.agent.servers.endpoint import MAX_BODY

PAGE = ROOT / "docs" / "http-agent.md"


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "examples" / "flight_task", tmp_path / "flight_task")
    return tmp_path


@pytest.mark.timeout(300)
def test_every_example_prints_what_the_page_says(examples: Path, environment: dict[str, str]) -> None:
    follow(PAGE, examples, environment)


async def test_the_table_has_every_field_that_is_sent_and_no_other(tmp_path: Path) -> None:
    async def script(turn: dict[str, Any], door: Any) -> dict[str, Any]:
        return {"reply": "Hello"}

    async with serving(script) as stub:
        agents = load_agent(stub.url)
        await agents.open()
        await run_rollout(small_task(tmp_path), 0, base=seeded(tmp_path), agent=agents())
        await agents.close()
    nested = ("rollout", "door")
    sent = {name for name in stub.turns[0] if name not in nested}
    sent |= {f"{part}.{name}" for part in nested for name in stub.turns[0][part]}
    table = PAGE.read_text().split("## Requests to your agent")[1].split("\n\n")[2]
    listed = {name for row in table.splitlines() for name in re.findall(r"`([\w.]+)`", row.split("|")[1])}
    assert listed == sent


def test_limits_and_names_are_the_codes() -> None:
    text = " ".join(PAGE.read_text().split())
    for said in (
        f'"{PROTOCOL}"',
        TOKEN,
        f"after {FAREWELL:g} seconds",
        f"after {LAST_WORDS:g} seconds",
        f"at most {MAX_ANSWER // 2**20} MB",
        f"longer than {MAX_BODY // 2**20} MB",
    ):
        assert said in text
