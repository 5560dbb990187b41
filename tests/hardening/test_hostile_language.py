"""Tools that cancel what they have started themselves."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from flight_bundle import Bundle
from hostile import GOLD_RUN, Ran, indented

Command = Callable[..., Ran]
Writer = Callable[..., None]

LATE = """\
try:
    async with asyncio.timeout(0.05):
        await asyncio.sleep(60)
except TimeoutError:
    await db.execute("UPDATE flights SET seats_available = 1")
    return "late"
"""
TOGETHER = """\
async def fails(): raise ValueError("x")
try:
    async with asyncio.TaskGroup() as group:
        group.create_task(fails())
        group.create_task(asyncio.sleep(60))
except BaseExceptionGroup:
    await db.execute("UPDATE flights SET seats_available = 1")
    return "together"
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there is no asyncio.timeout yet")
@pytest.mark.parametrize("body", [LATE, TOGETHER], ids=["late", "together"])
def test_a_tool_may_cancel_its_own_task_also_in_the_replay_of_gold_actions(
    agent_eval: Command, tools: Writer, bundle: Bundle, body: str
) -> None:
    after = f"R.tool_timeout = 3.0\n@R.tool(parameters={{}})\nasync def bounded(db):\n{indented(body)}"
    tools(before="import asyncio", after=after)
    same = "return {'score': float(gold_db is not None and db.equals(gold_db))}"
    bundle.write("reward.py", f"def evaluate(messages, *, db, gold_db=None, **kwargs):\n    {same}\n")
    bundle.rows({"actions": [{"name": "bounded", "arguments": {}}], "n_rollouts": 1})
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.code, ran.result["score"]) == (0, 1.0), ran.err
    assert "the expected data are not known" not in ran.err
