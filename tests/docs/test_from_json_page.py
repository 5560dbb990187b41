"""The page about benchmarks that keep their data as JSON, followed word by word."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from pages import ROOT, follow

from reward_kit.agent import Database, TaskBundle

PAGE = ROOT / "docs" / "from-json.md"


def test_every_example_prints_what_the_page_says(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(PAGE, tmp_path, environment)
    monkeypatch.chdir(tmp_path)
    with TaskBundle.load("ticket_task") as bundle:
        asyncio.run(play_some_calls(bundle))


async def play_some_calls(bundle: TaskBundle) -> None:
    """The wrapped functions have their own schemas, and write nothing where they only look or refuse."""
    registry, seed = bundle.tasks[0].registry, bundle.tasks[0].seed
    schema = registry.tools["close_ticket"].schema
    assert list(schema["properties"]) == ["ticket_id", "resolution"]
    assert schema["properties"]["ticket_id"]["description"] == "such as T1"
    with Database.seed("tickets.db", seed.sql, script=seed.script) as base, base.fork() as db:
        found = await registry.call("find_tickets", {"word": "vpn"}, db=db)
        assert [ticket["subject"] for ticket in json.loads(found.content)] == ["VPN is slow"]
        assert not found.changes
        closed = {"ticket_id": "T1", "resolution": "Out."}
        statuses = [(await registry.call("close_ticket", closed, db=db)).status for _ in range(2)]
        assert statuses == ["ok", "refused"]
        assert len(db.changes().lines()) == 1
