"""The mark ``"refused": true`` of gold calls that fail: the benchmark's tasks have some, and ignore it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.database import Database
from reward_kit.agent.tau.tau2.domain import Environment
from reward_kit.agent.tau.tau2.toolkit import DATABASE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reward_kit.agent.base.types import Side
    from reward_kit.agent.tau.tau2.domain import Domain


def mark_refused(domain: Domain, seed: str, rows: Iterable[dict[str, Any]]) -> None:
    """Make the gold calls of each row, in memory, and mark those that fail."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Database.seed(Path(folder) / "base.db", seed, origin="seed.sql") as base,
    ):
        db: Any = base.read_only()
        DATABASE.set(db)
        for row in rows:
            environment = Environment(domain, db, writes=True)
            for call in row.get("setup") or ():
                environment.set_up(call["name"], call.get("by", "agent"), call["arguments"])
            for message in row["initial_messages"]:
                side: Side = "user" if message["role"] == "user" else "agent"
                for call in message.get("tool_calls") or ():
                    function = call["function"]
                    environment.respond(function["name"], side, json.loads(function["arguments"]))
            for action in row.get("actions") or ():
                by = action.get("by", "agent")
                if environment.respond(action["name"], by, action["arguments"])[1]:
                    action["refused"] = True
