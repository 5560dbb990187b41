"""Tools that do their worst when they are called: each costs its call, or its rollout, and nothing else."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from flight_bundle import Bundle
from hostile import GOLD_RUN, Ran, indented

from reward_kit.agent.tool_registry import ToolRegistry

Command = Callable[..., Ran]
Writer = Callable[..., None]

NUMBERS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT"
THREADS = "import threading as t, time\nfor _ in range(20): t.Thread(target=time.sleep, args=(600,)).start()"
MUTE = "  def __str__(self): raise ValueError('no')"

# name: (what it is, what it does, what the model reads)
WORST = {
    "loops": ("def", "while True: pass", "did not finish within 4 s"),
    "sleeps": ("async def", "import asyncio\nawait asyncio.sleep(600)", "did not finish within 4 s"),
    "recurses": ("def", "return recurses(db)", "recursion too deep"),
    "exits": ("def", "import sys\nsys.exit(0)", "tried to exit"),
    "exits_async": ("async def", "import sys\nsys.exit(0)", "tried to exit"),
    "interrupts": ("def", "raise KeyboardInterrupt", "Error: KeyboardInterrupt"),
    "own": ("def", "class Own(BaseException): pass\nraise Own", "Error: Own"),
    "own_async": ("async def", "class Own(BaseException): pass\nraise Own", "Error: Own"),
    "closes": ("def", "raise GeneratorExit", "Error: GeneratorExit"),
    "closes_async": ("async def", "raise GeneratorExit", "Error: GeneratorExit"),
    "mute": ("def", f"class E(Exception):\n{MUTE}\nraise E", "Error: E"),
    "refuses": (
        "def",
        f"from reward_kit.agent import ToolError\nclass E(ToolError):\n{MUTE}\nraise E('x')",
        "Error: E",
    ),
    "unprintable": ("def", f"class R:\n{MUTE}\nreturn R()", "Error: no"),
    "odd_dict": ("def", "class D(dict):\n  def items(self): raise OSError('no')\nreturn D(a=1)", "Error: no"),
    "odd_model": ("def", "class M:\n  def model_dump(self): raise OSError('no')\nreturn M()", "Error: no"),
    "waits": ("def", "import time\ndef w():\n  time.sleep(600)\n  yield 1\nreturn w()", "did not finish"),
    "rows": ("async def", f"return await db.fetch_all('{NUMBERS} x FROM c')", "Error: "),
    "query": ("async def", f"return await db.fetch_val('{NUMBERS} count(*) FROM c')", "Error: "),
    "forks": ("def", "import os\nos.fork()\nreturn 'fine'", "fine"),
    "forks_async": ("async def", "import os\nos.fork()\nreturn 'fine'", "fine"),
    "changes_folder": ("def", "import os\nos.chdir('/')\nreturn 'fine'", "fine"),
    "leaks": ("def", f"{THREADS}\nreturn 'fine'", "fine"),
}


def test_each_costs_its_own_call_and_changes_nothing(
    agent_eval: Command, tools: Writer, bundle: Bundle
) -> None:
    written = [
        f"@R.tool(parameters={{}})\n{kind} {name}(db):\n"
        + indented(f"{'await ' if kind != 'def' else ''}db.execute('DELETE FROM flights')\n{body}")
        for name, (kind, body, _) in WORST.items()
    ]
    # enough for a tool that goes deep while another spins beside it
    tools(after="R.tool_timeout = 4.0\n" + "\n".join(written))
    bundle.rows(
        *(
            {"id": name, "actions": [{"name": name, "arguments": {}}], "n_rollouts": 1, "outputs": []}
            for name in WORST
        )
    )
    ran = agent_eval(*GOLD_RUN, timeout=100)
    ran.tidy()
    assert (ran.code, ran.result["finished"], ran.result["unjudged"]) == (0, len(WORST), {}), ran.err
    for name, (_, _, part) in WORST.items():
        (path,) = bundle.folder.glob(f"runs/{name}/roll_*.json")
        (call,) = json.loads(path.read_text())["tool_calls"]
        assert part in call["content"], (name, call["content"])
        assert (call["status"] == "ok") == (part == "fine"), name
        assert bool(call["changes"]) == (part == "fine"), name


def test_a_text_of_a_hundred_megabytes_is_cut_for_the_model_and_for_the_files(
    agent_eval: Command, tools: Writer, bundle: Bundle
) -> None:
    tools(after="@R.tool(parameters={})\ndef huge():\n    return 'x' * 100_000_000\n")
    bundle.rows({"actions": [{"name": "huge", "arguments": {}}], "n_rollouts": 1})
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    (path,) = bundle.folder.glob("runs/*/roll_*.json")
    (call,) = json.loads(path.read_text())["tool_calls"]
    assert call["content"].endswith("[cut: the first 1,000,000 of 100,000,000 characters]")
    assert path.stat().st_size < 5_000_000


@pytest.mark.parametrize("body", ["while True: pass", "import time\nwhile True: time.sleep(1)"])
def test_an_async_tool_that_never_yields_is_ended_by_the_second_ctrl_c(
    bundle: Bundle, tools: Writer, body: str
) -> None:
    """The known limit: it holds up the event loop, so that no time limit is noticed."""
    tools(
        after="@R.tool(parameters={})\nasync def stuck():\n    print('stuck', flush=True)\n" + indented(body)
    )
    bundle.rows({"actions": [{"name": "stuck", "arguments": {}}], "n_rollouts": 1})
    process = subprocess.Popen(
        [sys.executable, "-m", "reward_kit", "agent-eval", *GOLD_RUN],
        cwd=bundle.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "stuck\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "Once more" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Continue with" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_a_value_without_an_end_is_cut(kind: str) -> None:
    registry = ToolRegistry("endless")

    def counts() -> Any:
        return itertools.count()

    async def counts_too() -> Any:
        return itertools.count()

    registry.tool(name="counts", parameters={})(counts if kind == "def" else counts_too)
    result = await registry.call("counts", {})
    assert result.status == "ok"
    assert result.content.startswith("[0, 1, 2")
    assert "[cut: the first 1,000,000 of" in result.content


DEAF = """\
import asyncio
while True:
    try:
        await asyncio.sleep(0.1)
    except asyncio.CancelledError:
        pass
"""
SHORT_GRACE = """\
import importlib
for _name in ("gold", "orchestrator", "rollout", "tools.execution"):
    importlib.import_module(f"reward_kit.agent.{_name}").CANCELLATION_GRACE = 0.5
"""
CANCELS_ITSELF = "import asyncio\nasyncio.current_task().cancel()\nawait asyncio.sleep(1)"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "tool 'deaf' did not finish within 1 s, nor when it was cancelled"),
        (["--timeout", "1.2"], "not over after 1.2 s"),
    ],
)
def test_tools_that_do_not_heed_their_end_or_end_themselves_cost_their_rollout(
    agent_eval: Command, tools: Writer, bundle: Bundle, options: list[str], told: str
) -> None:
    bodies = {"deaf": DEAF, "cancels": CANCELS_ITSELF, "sound": "return 'fine'"}
    written = [
        f"@R.tool(parameters={{}})\nasync def {name}(db):\n{indented(body)}\n"
        for name, body in bodies.items()
    ]
    tools(before=SHORT_GRACE, after="R.tool_timeout = 1.0\n" + "\n".join(written))
    bundle.rows(
        *(
            {"id": name, "actions": [{"name": name, "arguments": {}}], "n_rollouts": 1, "outputs": []}
            for name in bodies
        )
    )
    ran = agent_eval(*GOLD_RUN, *options, timeout=100)
    ran.tidy()
    stops = {}
    for name in bodies:
        (path,) = bundle.folder.glob(f"runs/{name}/roll_*.json")
        record = json.loads(path.read_text())
        stops[name] = record["stop_reason"]
        if name == "deaf":
            assert record["stop_detail"] == told
    assert (stops["deaf"], stops["cancels"]) == ("timeout", "agent_error")
    assert stops["sound"] not in ("timeout", "agent_error", "infrastructure_error")
