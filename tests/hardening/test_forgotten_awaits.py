"""An ``await`` that was forgotten: the statement did nothing, and the run says so with the line."""

from flight_bundle import Bundle
from hostile import GOLD_RUN, Command, Writer, indented, row_calling, row_for_each_reward, tool

MISSING = "was never awaited: an await is missing"
DELETE = "db.execute('DELETE FROM flights')"

# name: (the body of an async def tool, the fault; None if nothing was forgotten)
TOOLS = {
    "statement": (f"{DELETE}\nreturn 'ok'", f"{DELETE} {MISSING}. Put `await` before db.execute."),
    "used": ("return db.execute('SELECT 1').scalar_one()", "Write `(await db.execute(...)).scalar_one`."),
    "indexed": ("row = db.fetch_one('SELECT 1')\nreturn row[0]", "Write `(await db.fetch_one(...))`."),
    "on_the_rollout": ("rollout.call_tool('closed_on_purpose', {})", "Put `await` before rollout.call_tool."),
    "awaited_later": (f"work = [{DELETE} for _ in 'ab']\nawait asyncio.gather(*work)\nreturn 'ok'", None),
    "closed_on_purpose": (f"work = {DELETE}\nwork.close()\nreturn 'ok'", None),
    "task_awaited": (f"await asyncio.create_task({DELETE})\nreturn 'ok'", None),
    "timed": (f"await asyncio.wait_for({DELETE}, 9)\nreturn 'ok'", None),
}


def test_in_a_tool_it_fails_the_call_with_the_line_and_the_remedy(
    agent_eval: Command, tools: Writer, bundle: Bundle
) -> None:
    written = [tool(name, body, parameters="db, rollout") for name, (body, _) in TOOLS.items()]
    tools(before="import asyncio", after="\n".join(written))
    bundle.rows(*map(row_calling, TOOLS))
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.code, ran.result["finished"]) == (0, len(TOOLS)), ran.err
    assert "RuntimeWarning" not in ran.err
    faults = {row["id"]: row["rollouts"][0]["tool_faults"] or {} for row in ran.result["rows"]}
    for name, (_, fault) in TOOLS.items():
        assert (name in faults[name]) == (fault is not None), name
        if fault is not None:
            assert f"{MISSING}. " in faults[name][name]["first"], name
            assert fault in faults[name][name]["first"], name
    line = (bundle.folder / "tools.py").read_text().splitlines().index(f"    {DELETE}") + 1
    assert faults["statement"]["statement"]["first"].startswith(f"tools.py:{line}: {DELETE} {MISSING}")


GET = 'db.fetch_val("SELECT 0")'
REWARDS = [
    (f"return 1.0 if {GET} else 0.0", f"{MISSING}. Put `await` before db.fetch_val."),
    (
        "return {'score': db.execute('SELECT 0').scalar_one()}",
        f"db.execute('SELECT 0') {MISSING}. Write `(await db.execute(...)).scalar_one`.",
    ),
    (f"works = [{GET}]\nreturn {{'score': (await asyncio.gather(*works))[0]}}", None),
]


def test_in_a_reward_it_leaves_the_rollout_unjudged(agent_eval: Command, bundle: Bundle) -> None:
    head = "async def f{}(messages, *, db, **kwargs):\n"
    written = [f"{head.format(n)}{indented(body)}\n" for n, (body, _) in enumerate(REWARDS)]
    bundle.write("reward.py", "import asyncio\n" + "\n".join(written))
    row_for_each_reward(bundle, len(REWARDS))
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert "RuntimeWarning" not in ran.err
    for row, (_, fault) in zip(ran.result["rows"], REWARDS, strict=True):
        (rollout,) = row["rollouts"]
        if fault is None:
            assert (rollout["reward"], rollout["error"]) == (0.0, None)
        else:
            assert rollout["reward"] is None
            assert fault in rollout["error"]
    assert ran.result["rows"][0]["rollouts"][0]["error"].startswith("reward.py:3: ")
