"""Tools that do their worst when they are called: each costs its call, or its rollout, and nothing else."""

from flight_bundle import Bundle
from hostile import GOLD_RUN, Command, Writer, row_calling, tool, trajectories

NUMBERS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT"
THREADS = "import threading as t, time\nfor _ in range(20): t.Thread(target=time.sleep, args=(600,)).start()"
MUTE = "  def __str__(self): raise ValueError('no')"

# name: (what it is, what it does, what the model reads)
WORST = {
    "loops": ("def", "while True: pass", "did not finish within 2 s"),
    "sleeps": ("async def", "import asyncio\nawait asyncio.sleep(600)", "did not finish within 2 s"),
    "recurses": ("def", "return recurses(db)", "maximum recursion depth exceeded"),
    "exits": ("def", "import sys\nsys.exit(0)", "tried to exit"),
    "mute": ("def", f"class E(Exception):\n{MUTE}\nraise E", "Error: E"),
    "unprintable": ("def", f"class R:\n{MUTE}\nreturn R()", "Error: no"),
    "rows": ("async def", f"return await db.fetch_all('{NUMBERS} x FROM c')", "Error: "),
    "leaks": ("def", f"{THREADS}\nreturn 'fine'", "fine"),
}


def test_each_costs_its_call_and_changes_nothing(agent_eval: Command, tools: Writer, bundle: Bundle) -> None:
    written = [
        tool(name, f"{'await ' if kind != 'def' else ''}db.execute('DELETE FROM flights')\n{body}", kind)
        for name, (kind, body, _) in WORST.items()
    ]
    # enough for a tool that goes deep while another spins beside it
    tools(after="R.tool_timeout = 2.0\n" + "\n".join(written))
    bundle.rows(*map(row_calling, WORST))
    ran = agent_eval(*GOLD_RUN, timeout=100)
    ran.tidy()
    assert (ran.code, ran.result["finished"], ran.result["unjudged"]) == (0, len(WORST), {}), ran.err
    for name, (_, _, part) in WORST.items():
        (record,) = trajectories(bundle, name)
        (call,) = record["tool_calls"]
        assert part in call["content"], (name, call["content"])
        assert (call["status"] == "ok") == (part == "fine"), name
        assert bool(call["changes"]) == (part == "fine"), name


DEAF = """\
import asyncio
while True:
    try:
        await asyncio.sleep(0.1)
    except asyncio.CancelledError:
        pass
"""
SHORT_GRACE = "from reward_kit.agent.base import deadline\ndeadline.CANCELLATION_GRACE = 0.5\n"
CANCELS_ITSELF = "import asyncio\nasyncio.current_task().cancel()\nawait asyncio.sleep(1)"


def test_a_tool_ignoring_its_end_costs_a_rollout(agent_eval: Command, tools: Writer, bundle: Bundle) -> None:
    bodies = {"deaf": DEAF, "cancels": CANCELS_ITSELF, "sound": "return 'fine'"}
    written = [tool(name, body) for name, body in bodies.items()]
    tools(before=SHORT_GRACE, after="R.tool_timeout = 1.0\n" + "\n".join(written))
    bundle.rows(*map(row_calling, bodies))
    ran = agent_eval(*GOLD_RUN, timeout=100)
    ran.tidy()
    deaf, cancels, sound = (trajectories(bundle, name)[0] for name in bodies)
    assert deaf["stop_detail"] == "tool 'deaf' did not finish within 1 s, nor when it was cancelled"
    assert (deaf["stop_reason"], cancels["stop_reason"]) == ("timeout", "agent_error")
    assert sound["stop_reason"] not in ("timeout", "agent_error", "infrastructure_error")
