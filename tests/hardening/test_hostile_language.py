"""Code of a bundle that breaks Python itself, leaves the event loop, or leaves something behind."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle
from hostile import GOLD_RUN, Ran, indented

from reward_kit.agent.judge import call_reward
from reward_kit.agent.tool_registry import ToolRegistry
from reward_kit.errors import RewardError

Command = Callable[..., Ran]
Writer = Callable[..., None]

IMPORTS = "import asyncio, atexit, builtins, logging, os, random, sys, threading, time, uuid"
FAILS = "def fails(*a, **k): raise RuntimeError('broken')"
EXITS = "async def leaves(): raise SystemExit(0)"

# name: (what it is, what it does, what is told of the tool)
SURVIVED = {
    "no_len": ("def", "del builtins.len", "builtins.len (put back)"),
    "wrong_len": ("async def", "builtins.len = lambda x: 0", "builtins.len (put back)"),
    "no_types": ("def", "builtins.str = builtins.dict = None", "builtins.dict, builtins.str (put back)"),
    "no_exceptions": ("def", "builtins.Exception = None", "builtins.Exception (put back)"),
    "another_process": ("def", "os.getpid = lambda: 1", "os.getpid (put back)"),
    "no_environment": ("def", "os.environ = None", "os.environ (put back)"),
    "no_files": ("def", "os.mkdir = os.unlink = None", "os.mkdir, os.unlink (put back)"),
    "no_chance": (
        "def",
        f"{FAILS}\nos.urandom = random.Random = fails",
        "os.urandom, random.Random (put back)",
    ),
    "no_names": ("async def", f"{FAILS}\nuuid.uuid4 = fails", "uuid.uuid4 (put back)"),
    "no_errors": ("def", "asyncio.CancelledError = None", "asyncio.CancelledError (put back)"),
    "task_exits": ("async def", f"{EXITS}\nasyncio.create_task(leaves())\nawait asyncio.sleep(0.05)", None),
    "task_interrupts": (
        "async def",
        "async def ends(): raise KeyboardInterrupt\nasyncio.create_task(ends())\nawait asyncio.sleep(0.05)",
        None,
    ),
    "task_exits_and_is_awaited": (
        "async def",
        f"{EXITS}\nawait asyncio.create_task(leaves())",
        "SystemExit: 0",
    ),
    "callback_exits": (
        "async def",
        "asyncio.get_running_loop().call_soon(sys.exit)\nawait asyncio.sleep(0.05)",
        None,
    ),
    "callback_leaves": (
        "async def",
        "asyncio.get_running_loop().call_soon(os._exit, 0)\nawait asyncio.sleep(0.05)",
        None,
    ),
    "thread_left": (
        "def",
        "threading.Thread(target=lambda: [db.execute('SELECT 1') for _ in range(10**6)]).start()",
        None,
    ),
    "slow_to_say": (
        "def",
        "class E(Exception):\n  def __str__(self): time.sleep(60)\nraise E",
        "did not finish",
    ),
}


def test_it_costs_its_call_and_the_evaluation_goes_on(
    agent_eval: Command, tools: Writer, bundle: Bundle
) -> None:
    written = [
        f"@R.tool(parameters={{}})\n{kind} {name}(db):\n{indented(body)}\n"
        for name, (kind, body, _) in SURVIVED.items()
    ]
    tools(before=IMPORTS, after="R.tool_timeout = 3.0\n" + "\n".join(written))
    bundle.rows(
        *(
            {"id": name, "actions": [*GOLD, {"name": name, "arguments": {}}], "n_rollouts": 1}
            for name in SURVIVED
        ),
        {"id": "sound", "actions": GOLD, "n_rollouts": 4},
    )
    ran = agent_eval(*GOLD_RUN, timeout=100)
    ran.tidy()
    assert (ran.code, ran.result["finished"]) == (0, len(SURVIVED) + 4), ran.err
    assert ran.result["unjudged"] == {}
    assert ran.result["score"] == 1.0
    for row, (name, (_, _, told)) in zip(ran.result["rows"], SURVIVED.items(), strict=False):
        faults = row["rollouts"][0]["tool_faults"] or {}
        (path,) = bundle.folder.glob(f"runs/{name}/roll_*.json")
        call = json.loads(path.read_text())["tool_calls"][-1]
        said = faults.get(name, {}).get("first", call["content"])
        assert (told or "null") in said, (name, said)
    assert "a thread that nobody waits for failed: tools.py:" in ran.err
    assert "that this statement belongs to has ended" in ran.err


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
@pytest.mark.parametrize(("body", "said"), [(LATE, "late"), (TOGETHER, "together")])
def test_a_tool_may_cancel_its_own_task_also_where_the_gold_actions_are_replayed(
    agent_eval: Command, tools: Writer, bundle: Bundle, body: str, said: str
) -> None:
    after = f"R.tool_timeout = 3.0\n@R.tool(parameters={{}})\nasync def bounded(db):\n{indented(body)}"
    tools(before=IMPORTS, after=after)
    same = "return {'score': float(gold_db is not None and db.equals(gold_db))}"
    bundle.write("reward.py", f"def evaluate(messages, *, db, gold_db=None, **kwargs):\n    {same}\n")
    bundle.rows({"actions": [{"name": "bounded", "arguments": {}}], "n_rollouts": 1})
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.code, ran.result["score"]) == (0, 1.0), ran.err
    assert "what the data should be is not known" not in ran.err
    (path,) = bundle.folder.glob("runs/*/roll_*.json")
    assert json.loads(path.read_text())["tool_calls"][0]["content"] == said


def test_logging_that_works_no_more_costs_nothing(agent_eval: Command, tools: Writer, bundle: Bundle) -> None:
    """Libraries ask for their loggers when they are imported: the reward's were once imported after this."""
    body = f"{FAILS}\nlogging.getLogger = logging.Logger.debug = logging.Logger.warning = fails"
    tools(before=IMPORTS, after=f"@R.tool(parameters={{}})\ndef breaks():\n{indented(body)}")
    bundle.rows({"actions": [*GOLD, {"name": "breaks", "arguments": {}}], "n_rollouts": 3})
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.code, ran.result["finished"], ran.result["score"]) == (0, 3, 1.0), ran.err


@pytest.mark.parametrize(
    "body",
    [
        f"{FAILS}\nos.replace = os.mkdir = os.makedirs = os.unlink = os.path.exists = fails",
        "sys.addaudithook(lambda event, _: event == 'open' and 1 / 0)",
    ],
    ids=["files", "audit"],
)
def test_what_ends_the_evaluation_is_one_error(
    agent_eval: Command, tools: Writer, bundle: Bundle, body: str
) -> None:
    tools(before=IMPORTS, after=f"@R.tool(parameters={{}})\ndef breaks():\n{indented(body)}")
    bundle.rows({"actions": [*GOLD, {"name": "breaks", "arguments": {}}], "n_rollouts": 3})
    ran = agent_eval(*GOLD_RUN)
    ran.refused("the evaluation was broken off", "Tools, rewards and agents must leave what is not theirs")


def test_what_is_registered_with_atexit_does_not_hold_up_the_end(agent_eval: Command, tools: Writer) -> None:
    tools(
        before=f"{IMPORTS}\nimport reward_kit.process_end\nreward_kit.process_end.GRACE_AT_EXIT = 0.3\n"
        "atexit.register(time.sleep, 600)"
    )
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.code, ran.result["score"]) == (0, 1.0)
    assert "Warning: what was registered with atexit did not end" in ran.err


def test_ctrl_c_while_the_process_ends_is_no_fault(agent_eval: Command, tools: Writer) -> None:
    waits = "import os, signal\ndef waits():\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(600)"
    tools(before=f"{IMPORTS}\n{waits}\natexit.register(waits)")
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.code, ran.result["score"]) == (0, 1.0)


async def test_a_reward_that_takes_long_to_say_what_it_raised_holds_up_nobody() -> None:
    class SlowError(Exception):
        def __str__(self) -> str:
            time.sleep(0.5)
            return "slow"

    def reward(messages: list[Any]) -> dict[str, Any]:
        raise SlowError

    with pytest.raises(RewardError, match=r"took longer than 0.1 s"):
        await call_reward(reward, lambda: {"messages": []}, timeout=0.1)


async def test_a_task_of_another_call_still_cannot_be_cancelled(tmp_path: Path) -> None:
    from reward_kit.agent.bundles.loop_guard import guarded_task

    registry = ToolRegistry("two")

    @registry.tool(parameters={})
    async def waits() -> str:
        await asyncio.sleep(0.1)
        return "fine"

    waiting = guarded_task(registry.call("waits", {}))

    @registry.tool(parameters={})
    async def cancels() -> str:
        waiting.cancel()
        return "done"

    await asyncio.sleep(0)
    refused = await guarded_task(registry.call("cancels", {}))
    assert "cannot cancel the tasks of others" in refused.content
    assert (await waiting).content == "fine"
