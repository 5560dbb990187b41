"""An ``await`` that was forgotten: what it stands before did nothing, and the run says so."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import Bundle
from hostile import GOLD_RUN, Ran, indented, row_for_each_reward
from sqlalchemy import text

from reward_kit.agent.database import Database
from reward_kit.agent.tool_registry import ToolRegistry
from reward_kit.errors import ToolError

Command = Callable[..., Ran]
Writer = Callable[..., None]

MISSING = "was never awaited: an await is missing"
DELETE = "db.execute('DELETE FROM flights')"

# name: (the body of an async def tool, what the model reads)
TOOLS = {
    "statement": (f"{DELETE}\nreturn 'ok'", f"{DELETE} {MISSING}. Put `await` before db.execute."),
    "kept": (f"work = {DELETE}\nreturn 'ok'", f" kept: {DELETE} {MISSING}"),
    "helper": (f"async def clear():\n  await {DELETE}\nclear()\nreturn 'ok'", f"clear() {MISSING}"),
    "other_tool": ("rollout.call_tool('ping', {})\nreturn 'ok'", f"rollout.call_tool('ping') {MISSING}"),
    "bounded": (f"asyncio.wait_for({DELETE}, 1)\nreturn 'ok'", MISSING),
    "task": (f"asyncio.create_task({DELETE})\nreturn 'ok'", f"the task of {DELETE} {MISSING}"),
    "gathered": (f"asyncio.gather({DELETE}, {DELETE})\nreturn 'ok'", f"the task of {DELETE} {MISSING}"),
    "task_of_helper": (
        f"async def clear():\n  await {DELETE}\nasyncio.create_task(clear())\nreturn 'ok'",
        f"the task of clear() {MISSING}",
    ),
    "caught": (
        "try:\n  db.fetch_one('SELECT 1')[0]\nexcept TypeError:\n  return 'none'",
        f"db.fetch_one('SELECT 1') {MISSING}",
    ),
    "used": (
        "return db.execute('SELECT 1').scalar_one()",
        f"db.execute('SELECT 1') {MISSING}. Write `(await db.execute(...)).scalar_one`.",
    ),
    "indexed": (
        "return db.fetch_one('SELECT 1')[0]",
        f"db.fetch_one('SELECT 1') {MISSING}. Write `(await db.fetch_one(...))`.",
    ),
    "indexed_later": (
        "row = db.fetch_one('SELECT 1')\nreturn row[0]",
        f"db.fetch_one('SELECT 1') {MISSING}. Write `(await db.fetch_one(...))`.",
    ),
    "added": ("return 1 + db.fetch_val('SELECT 1')", f"db.fetch_val('SELECT 1') {MISSING}. Write"),
    "list_awaited_later": (
        f"work = [{DELETE} for _ in 'ab']\nawait asyncio.gather(*work)\nreturn 'ok'",
        "ok",
    ),
    "closed_on_purpose": (f"work = {DELETE}\nwork.close()\nreturn 'ok'", "ok"),
    "task_awaited": (f"work = asyncio.create_task({DELETE})\nawait work\nreturn 'ok'", "ok"),
    "task_cancelled": (f"asyncio.create_task({DELETE}).cancel()\nreturn 'ok'", "ok"),
    "task_without_database": ("asyncio.create_task(asyncio.sleep(0))\nreturn 'ok'", "ok"),
    "timed_out": (
        f"try:\n  await asyncio.wait_for({DELETE}, 0)\nexcept asyncio.TimeoutError: pass\nreturn 'ok'",
        "ok",
    ),
}


def test_in_a_tool_it_costs_the_call_with_the_line_and_the_remedy(
    agent_eval: Command, tools: Writer, bundle: Bundle
) -> None:
    written = [
        f"@R.tool(parameters={{}})\nasync def {name}(db, rollout):\n{indented(body)}\n"
        for name, (body, _) in TOOLS.items()
    ]
    ping = "@R.tool(parameters={})\ndef ping():\n    return 'pong'\n"
    tools(before="import asyncio", after="\n".join([ping, *written]))
    bundle.rows(
        *(
            {"id": name, "actions": [{"name": name, "arguments": {}}], "n_rollouts": 1, "outputs": []}
            for name in TOOLS
        )
    )
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.code, ran.result["finished"]) == (0, len(TOOLS)), ran.err
    assert "RuntimeWarning" not in ran.err
    assert "nobody waits for" not in ran.err
    for name, (_, part) in TOOLS.items():
        (path,) = bundle.folder.glob(f"runs/{name}/roll_*.json")
        (call,) = json.loads(path.read_text())["tool_calls"]
        assert part in call["content"], (name, call["content"])
        assert (call["status"], call["content"] == "ok") == ("ok" if part == "ok" else "failed", part == "ok")
        assert bool(call["changes"]) == (name in {"list_awaited_later", "task_awaited"}), name
    line = (bundle.folder / "tools.py").read_text().splitlines().index(f"    {DELETE}") + 1
    faults = ran.result["rows"][0]["rollouts"][0]["tool_faults"]
    assert faults["statement"]["first"].startswith(f"tools.py:{line}: {DELETE} {MISSING}")
    used = ran.result["rows"][list(TOOLS).index("used")]["rollouts"][0]["tool_faults"]
    line = (bundle.folder / "tools.py").read_text().splitlines().index(f"    {TOOLS['used'][0]}") + 1
    assert used["used"]["first"].startswith(f"tools.py:{line}: db.execute('SELECT 1') {MISSING}")


GET = 'db.fetch_val("SELECT 0")'
REWARDS = [
    (
        f"return 1.0 if {GET} else 0.0",
        f"db.fetch_val('SELECT 0') {MISSING}. Put `await` before db.fetch_val.",
    ),
    (f"won = {GET}\nreturn {{'score': 1.0 if won else 0.0}}", f"db.fetch_val('SELECT 0') {MISSING}"),
    (f"won = asyncio.create_task({GET})\nreturn {{'score': float(bool(won))}}", f"the task of {GET} "),
    (
        "return {'score': db.execute('SELECT 0').scalar_one()}",
        f"db.execute('SELECT 0') {MISSING}. Write `(await db.execute(...)).scalar_one`.",
    ),
    (f"return {{'score': 1.0 + {GET}}}", f"db.fetch_val('SELECT 0') {MISSING}. Write"),
    (f"works = [{GET}]\nreturn {{'score': (await asyncio.gather(*works))[0]}}", None),
    (f"work = {GET}\nwork.close()\nreturn {{'score': 0.0}}", None),
]


def test_in_a_reward_it_leaves_the_rollout_unjudged(agent_eval: Command, bundle: Bundle) -> None:
    written = [
        f"async def f{n}(messages, *, db, **kwargs):\n{indented(body)}\n"
        for n, (body, _) in enumerate(REWARDS)
    ]
    bundle.write("reward.py", "import asyncio\n" + "\n".join(written))
    row_for_each_reward(bundle, len(REWARDS))
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert "RuntimeWarning" not in ran.err
    for row, (_, part) in zip(ran.result["rows"], REWARDS, strict=True):
        (rollout,) = row["rollouts"]
        if part is None:
            assert (rollout["reward"], rollout["error"]) == (0.0, None)
        else:
            assert rollout["reward"] is None
            assert part.replace('"', "'") in rollout["error"]
    first = ran.result["rows"][0]["rollouts"][0]["error"]
    assert first.startswith("reward.py:3: ")
    used = ran.result["rows"][3]["rollouts"][0]["error"]
    assert used.startswith("reward.py:14: db.execute(")


AGENTS = """
class Agent:
    async def respond(self, rollout):
        BODY
        return "done"
"""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("rollout.call_tool('search_flights', {})", f"rollout.call_tool('search_flights') {MISSING}"),
        ("asked = rollout.complete()", f"rollout.complete() {MISSING}"),
        ("rollout.call_tool('search_flights', {}).upper()", f"rollout.call_tool('search_flights') {MISSING}"),
        ("rollout.call_tool('search_flights', {}).close()", None),
        ("import asyncio; await asyncio.gather(*[rollout.call_tool('create_booking', {})])", None),
    ],
)
def test_in_an_agent_it_costs_the_rollout(
    agent_eval: Command, bundle: Bundle, body: str, told: str | None
) -> None:
    bundle.write("own.py", AGENTS.replace("BODY", body))
    bundle.rows({"n_rollouts": 1})
    ran = agent_eval("-d", "task.jsonl", "--agent", "own:Agent", "--user", "none", "--retries", "0")
    ran.tidy()
    (path,) = bundle.folder.glob("runs/*/roll_*.json")
    played = json.loads(path.read_text())
    if told is None:
        assert played["stop_reason"] == "agent_done"
    else:
        assert played["stop_reason"] == "agent_error"
        assert told in played["stop_detail"]
        assert "RuntimeWarning" not in ran.err


def test_in_a_function_as_agent_it_is_told_without_a_line_of_others(
    agent_eval: Command, bundle: Bundle
) -> None:
    bundle.write(
        "own.py", "async def play(rollout):\n    work = rollout.call_tool('ping', {})\n    return 'hi'\n"
    )
    bundle.rows({"n_rollouts": 1})
    ran = agent_eval("-d", "task.jsonl", "--agent", "own:play", "--user", "none", "--retries", "0")
    ran.tidy()
    (path,) = bundle.folder.glob("runs/*/roll_*.json")
    assert json.loads(path.read_text())["stop_detail"] == (
        f"rollout.call_tool('ping') {MISSING}. Put `await` before rollout.call_tool."
    )


async def test_a_call_beside_it_is_not_blamed() -> None:
    registry = ToolRegistry("two")
    barrier: list[Any] = []

    async def nothing() -> None:
        pass

    @registry.tool(parameters={})
    async def forgets() -> str:
        nothing()
        await barrier[0].wait()
        return "ok"

    @registry.tool(parameters={})
    async def sound() -> str:
        barrier[0].set()
        return "ok"

    barrier.append(asyncio.Event())
    first, second = await asyncio.gather(registry.call("forgets", {}), registry.call("sound", {}))
    assert (first.status, second.status) == ("failed", "ok")
    assert first.content.endswith("was never awaited: an await is missing. Put `await` before nothing.")


@pytest.mark.filterwarnings("default::RuntimeWarning")
async def test_what_a_library_lets_go_of_is_only_warned_of() -> None:
    registry = ToolRegistry("library")

    @registry.tool(parameters={})
    async def imports() -> str:
        import json.decoder as library

        exec(compile("async def f(): pass\ndef g(): f()", library.__file__, "exec"), scope := {})
        scope["g"]()
        return "ok"

    with pytest.warns(RuntimeWarning, match="never awaited"):
        assert (await registry.call("imports", {})).content == "ok"


async def test_what_a_library_holds_as_it_fails_is_told_by_its_error_alone(tmp_path: Path) -> None:
    """SQLAlchemy has begun a statement that it cannot await."""
    registry = ToolRegistry("lazy", database="file")

    @registry.tool(parameters={})
    async def loads(db) -> str:
        async with db.engine.connect() as connection:
            return connection.sync_connection.execute(text("SELECT 1")).scalar_one()

    with (
        Database.seed(tmp_path / "base.db", mode="file") as base,
        base.fork() as db,
        warnings.catch_warnings(record=True) as heard,
    ):
        warnings.simplefilter("always")
        call = await registry.call("loads", {}, db=db)
        assert "greenlet_spawn has not been called" in call.content
        del call
        gc.collect()
    assert [str(warning.message) for warning in heard] == []


@pytest.mark.filterwarnings("default::RuntimeWarning")
async def test_what_a_failing_call_has_forgotten_beside_its_error_is_warned_of() -> None:
    registry = ToolRegistry("refuses")

    async def nothing() -> None:
        pass

    @registry.tool(parameters={})
    async def refuses() -> str:
        work = nothing()
        raise ToolError(f"no {work.__name__}")

    with pytest.warns(RuntimeWarning, match="never awaited"):
        assert (await registry.call("refuses", {})).content == "Error: no nothing"


@pytest.mark.filterwarnings("default::RuntimeWarning")
async def test_what_a_task_forgets_that_outlives_its_call_is_only_warned_of() -> None:
    registry = ToolRegistry("late")
    left: list[asyncio.Task[None]] = []

    async def nothing() -> None:
        pass

    async def late() -> None:
        await asyncio.sleep(0.01)
        nothing()

    @registry.tool(parameters={})
    async def leaves() -> str:
        left.append(asyncio.create_task(late()))
        return "ok"

    assert (await registry.call("leaves", {})).content == "ok"
    with pytest.warns(RuntimeWarning, match="never awaited"):
        await left[0]


@pytest.mark.filterwarnings("default::RuntimeWarning")
async def test_what_a_garbage_collection_finds_is_only_warned_of() -> None:
    registry = ToolRegistry("garbage")

    async def nothing() -> None:
        pass

    @registry.tool(parameters={})
    async def collects() -> str:
        ring: list[Any] = [nothing()]
        ring.append(ring)
        del ring
        gc.collect()
        return "ok"

    with pytest.warns(RuntimeWarning, match="never awaited"):
        assert (await registry.call("collects", {})).content == "ok"


DURING_A_COLLECTION = """\
import gc, signal
import reward_kit.agent.bundles.awaits

heap = [[number] for number in range(2_000_000)]
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.005)
try:
    gc.collect()
    print("lost")
except KeyboardInterrupt:
    print("heard")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such alarm")
def test_ctrl_c_during_a_garbage_collection_is_heard() -> None:
    """It was lost in the function that notes the collection."""
    command = [sys.executable, "-c", DURING_A_COLLECTION]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (ran.stdout, ran.stderr) == ("heard\n", "")
