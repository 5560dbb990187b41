"""A bundle with two sides: the agent unlocks a door from afar, the user pushes it open."""

import json
from pathlib import Path
from typing import Any

SEED = """
CREATE TABLE doors (id TEXT PRIMARY KEY, locked INTEGER, open INTEGER);
CREATE TABLE notes (text TEXT);
INSERT INTO doors VALUES ('front', 1, 0), ('secret_vault', 1, 0);
"""
TOOLS = """
from reward_kit.agent import ToolError, ToolRegistry

R = ToolRegistry("doors")


@R.tool
async def unlock(door: str, db):
    '''Unlock a door.'''
    await db.execute("UPDATE doors SET locked = 0 WHERE id = :door", {"door": door})
    return "unlocked"
"""
USER_TOOLS = """
from reward_kit.agent import ToolError, ToolRegistry

R = ToolRegistry("hands")


@R.tool
def push_hard(door: str, db):
    '''Push a door.'''
    if db.fetch_val("SELECT locked FROM doors WHERE id = :door", {"door": door}):
        raise ToolError("it does not move, though you feel a draught")
    db.execute("UPDATE doors SET open = 1 WHERE id = :door", {"door": door})
    return "a creak: it is open"


@R.tool
def look_around(db):
    '''Look at the doors.'''
    return db.fetch_all("SELECT id, open FROM doors")


@R.tool(terminal=True)
def walk_away():
    '''Leave.'''
    return "gone"
"""
UNLOCK = {"name": "unlock", "arguments": {"door": "front"}}
PUSH = {"name": "push_hard", "arguments": {"door": "front"}, "by": "user"}
ROW = {
    "id": "front",
    "toolset": ".tools",
    "initial_messages": [{"role": "user", "content": "I cannot get in."}],
    "sim_user_prompt": "You stand before the front door.",
    "actions": [UNLOCK, PUSH],
}
HIDDEN = ("push_hard", "look_around", "walk_away", "draught", "creak", "secret_vault", "hands")
"""Words that only the user's side has."""


def door_bundle(folder: Path, *, rows: Any = (ROW,), **files: str) -> Path:
    """Write the bundle to ``folder/door_task``; ``files`` (``tools``, ``user_tools``) replace its own."""
    bundle = folder / "door_task"
    bundle.mkdir()
    texts = {"tools": TOOLS, "user_tools": USER_TOOLS, **files}
    for name, text in texts.items():
        (bundle / f"{name}.py").write_text(text, encoding="utf-8")
    (bundle / "seed.sql").write_text(SEED, encoding="utf-8")
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (bundle / "task.jsonl").write_text(lines, encoding="utf-8")
    return bundle


def asks(name: str, **arguments: Any) -> dict[str, Any]:
    """A model's answer that calls one tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}
