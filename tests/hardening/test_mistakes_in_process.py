"""Mistakes of bundles and agents without ``--workers``: each costs its call or rollout, or ends the run."""

import pytest
from flight_bundle import GOLD, Bundle
from hostile import GOLD_RUN, Command, Writer, indented

from reward_kit.agent.store.layout import load_evaluation

FAULTY_TOOLS = """
import asyncio, time

@R.tool(parameters={})
def lookup():
    return {}["x"]

@R.tool(parameters={})
def leaves():
    raise SystemExit(3)

@R.tool(parameters={})
async def background():
    async def fails():
        raise ValueError("in the background")
    R.task = asyncio.ensure_future(fails())
    await asyncio.sleep(0.05)
    return "ok"
"""
ENDS = """
import asyncio, os, pathlib, sys

def first_time(rollout):
    mark = pathlib.Path("been_here")
    first = rollout is not None and not mark.exists()
    if first:
        mark.touch()
    return first

@R.tool(parameters={})
async def exits(rollout=None):
    if first_time(rollout):
        os._exit(0)

@R.tool(parameters={})
async def leaves_the_loop(rollout=None):
    async def leaves():
        sys.exit(0)
    if first_time(rollout):
        R.task = asyncio.ensure_future(leaves())
        await asyncio.sleep(60)
"""


@pytest.mark.parametrize("more", [(), ("--workers", "1")], ids=["in process", "workers"])
def test_tools_that_raise_cost_their_calls_and_are_named(
    agent_eval: Command, bundle: Bundle, tools: Writer, more: tuple[str, ...]
) -> None:
    tools(after=FAULTY_TOOLS)
    names = ("lookup", "lookup", "leaves", "background")
    bundle.rows({"actions": [*GOLD, *({"name": name, "arguments": {}} for name in names)], "n_rollouts": 2})
    ran = agent_eval(*GOLD_RUN, *more)
    ran.tidy()
    assert (ran.code, ran.result["score"]) == (0, 1.0)
    for rollout in ran.result["rows"][0]["rollouts"]:
        assert rollout["tool_faults"]["lookup"]["calls"] == 2
        assert "SystemExit: 3" in rollout["tool_faults"]["leaves"]["first"]
    assert "tools with faults: " in ran.out
    assert "warning: exception in a background task: tools.py:" in ran.err
    assert "ValueError: in the background" in ran.err


@pytest.mark.parametrize(("name", "code"), [("exits", 0), ("leaves_the_loop", 2)])
def test_a_tool_that_ends_the_process_ends_the_run_and_finished_rollouts_are_kept(
    agent_eval: Command, bundle: Bundle, tools: Writer, name: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools(after=ENDS)
    bundle.rows(
        {"id": "first", "actions": GOLD, "n_rollouts": 1},
        {"id": "ends", "actions": [{"name": name, "arguments": {}}], "n_rollouts": 1},
        {"id": "last", "actions": GOLD, "n_rollouts": 1},
    )
    ran = agent_eval(*GOLD_RUN, "--max-concurrency", "1", "--eval-id", "e")
    assert ran.code == code, ran.err
    if code:
        assert "called sys.exit(0)" in ran.err
    monkeypatch.chdir(bundle.folder)
    stored = load_evaluation("e")
    assert [one.row_id for one in stored.outcomes if one.scored] == ["first"]
    assert stored.status != "complete"
    assert agent_eval("--resume", "e").result["finished"] == 3


ENDLESS = {
    "swallows": "while True:\n try:\n  await asyncio.sleep(0.1)\n except BaseException:\n  pass",
    "thread": "await asyncio.to_thread(time.sleep, 600)",
}


@pytest.mark.parametrize(("name", "more"), [("swallows", ()), ("thread", ()), ("thread", ("--workers", "1"))])
def test_the_command_ends_though_an_agent_does_not(
    agent_eval: Command, bundle: Bundle, name: str, more: tuple[str, ...]
) -> None:
    short = "from reward_kit.agent.base import deadline\ndeadline.CANCELLATION_GRACE = 0.3\n"
    agent = f"async def agent(rollout):\n{indented(ENDLESS[name])}\n"
    bundle.write("own.py", f"import asyncio, time\n{short}{agent}")
    bundle.rows({"n_rollouts": 1})
    options = ("--agent", "own:agent", "--no-sim-user", "--timeout", "0.5", *more)
    ran = agent_eval("-d", "task.jsonl", *options, timeout=30)
    ran.tidy()
    assert (ran.code, ran.result["finished"]) == (1, 1), ran.err  # it came to no reply
    assert "reward-kit show " in ran.out


def test_an_agent_whose_constructor_exits_is_one_error(agent_eval: Command, bundle: Bundle) -> None:
    bundle.write("own.py", "class Player:\n    def __init__(self):\n        raise SystemExit(0)\n")
    ran = agent_eval("-d", "task.jsonl", "--agent", "own:Player", "--no-sim-user")
    ran.refused("own:Player() raised own.py:3: SystemExit")


def test_a_dataset_that_is_neither_file_nor_folder_is_refused(agent_eval: Command) -> None:
    agent_eval("-d", "/dev/null", "--agent", "gold").refused("/dev/null: is not a dataset")
