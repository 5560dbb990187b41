"""Code of a bundle that gets at what is not its own: its rollout, the event loop, the process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle
from hostile import GOLD_RUN, Ran, indented, row_for_each_reward

Command = Callable[..., Ran]
Writer = Callable[..., None]

SCORE = "return {'score': 1.0, 'reason': ''}"
ON_THE_ROLLOUT = [
    "rollout.messages.clear()",
    "rollout.messages[-1]['content'] = 'forged'",
    "rollout.tool_calls = 5",
    "rollout.tool_calls[0].arguments = object()",
    "rollout.stop_reason = object()",
    "rollout.task = None",
    "rollout.usage['agent'] = 3",
    "rollout.hear('forged')",
    "rollout.row.actions.clear()",
    "rollout.task.row.metadata['forged'] = 1",
]
REFUSED = [
    "rollout.row = None",
    "del rollout.history",
    "rollout.database.sync.execute('DELETE FROM flights')",
]


def trajectories(bundle: Bundle, row_id: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in bundle.folder.glob(f"runs/{row_id}/roll_*.json")]


def played(record: dict[str, Any]) -> Any:
    """What a rollout was, without what differs from one to the next (a booking has a random id)."""
    calls = [(call["name"], call["status"], len(call["changes"])) for call in record["tool_calls"]]
    spoken = [(message["role"], message["content"]) for message in record["messages"]]
    said = [(role, re.sub(r"[0-9a-f-]{32,}|[0-9A-F]{8,}", "ID", text or "")) for role, text in spoken]
    fields = {name: value for name, value in record["fields"].items() if name not in ("id", "reward")}
    return calls, said, fields, record["stop_reason"], record["stop_detail"], record["turns"]


def test_a_reward_has_no_way_to_what_is_recorded(agent_eval: Command, bundle: Bundle) -> None:
    bodies = ["pass", *ON_THE_ROLLOUT, *REFUSED]
    bundle.write(
        "reward.py",
        "".join(
            f"def f{number}(messages, *, rollout, **kwargs):\n    {body}\n    {SCORE}\n"
            for number, body in enumerate(bodies)
        ),
    )
    row_for_each_reward(bundle, len(bodies))
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.code, ran.result["status"], ran.result["finished"]) == (1, "complete", len(bodies))
    assert ran.result["unjudged"] == {"reward_error": len(REFUSED)}
    (sound,) = trajectories(bundle, "row0")
    for number, body in enumerate(bodies):
        (record,) = trajectories(bundle, f"row{number}")
        assert played(record) == played(sound), body
        assert (record["error"] is not None) == (body in REFUSED), body


def test_a_tool_that_breaks_its_rollout_costs_that_rollout(
    agent_eval: Command, bundle: Bundle, tools: Writer
) -> None:
    bodies = [
        "del rollout.history",
        "rollout.messages.append(object())",
        "rollout.tool_calls = 5",
        "rollout.tool_calls[0:0] = [5]",
        "rollout.usage['agent'] = 3",
        "rollout.steps = 'x'",
        "rollout.turns = 10**400",
        "rollout.__dict__.clear()",
        "rollout.__class__ = type('Other', (type(rollout),), {})\n    rollout.steps = None",
        "rollout.stop_reason = object()",
    ]
    tools(
        after="".join(
            f"@R.tool(parameters={{}})\ndef bad{number}(rollout):\n    {body}\n"
            for number, body in enumerate(bodies)
        )
    )
    bundle.rows(
        *(
            {"id": f"bad{number}", "n_rollouts": 1, "actions": [{"name": f"bad{number}", "arguments": {}}]}
            for number in range(len(bodies))
        ),
        {"id": "sound", "n_rollouts": 2, "actions": GOLD},
    )
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.result["status"], ran.result["finished"]) == ("complete", len(bodies) + 2)
    for number, body in enumerate(bodies):
        (record,) = trajectories(bundle, f"bad{number}")
        assert record["stop_reason"] == "agent_error", body
    assert [record["reward"] for record in trajectories(bundle, "sound")] == [1.0, 1.0]


VANDALS = """
import math
import time

from reward_kit.agent import Usage

DEEDS = [
    "time.perf_counter = lambda: math.nan",
    "time.time = lambda: math.inf",
    "used.input_tokens = -5",
    "used.cost = 'x'",
    "used.cost = math.nan",
    "call.seconds = 'x'",
    "call.seconds = math.nan",
    "call.waited = None",
    "call.usage = None",
    "rollout.steps = 2**63",
    "rollout.turns = -1",
]


async def agent(rollout):
    rollout.count_usage(Usage(calls=1, input_tokens=5), model="m")
    names = {"used": rollout.usage["agent"], "call": rollout.model_calls[0], "rollout": rollout}
    exec(DEEDS[rollout.index], globals(), names)
    return "Done."
"""


def test_numbers_that_an_agent_spoils_leave_a_log_that_can_be_gone_on_with(
    agent_eval: Command, bundle: Bundle
) -> None:
    bundle.write("vandals.py", VANDALS)
    deeds = VANDALS.count('\n    "')
    bundle.rows({"id": "a", "n_rollouts": deeds})
    players = ("--agent", "flight_task.vandals:agent", "--no-sim-user", "--max-concurrency", "1")
    ran = agent_eval("-d", "task.jsonl", *players, "--eval-id", "spoilt")
    ran.tidy()
    assert (ran.result["status"], ran.result["finished"]) == ("complete", deeds)
    for record in trajectories(bundle, "a"):
        assert (record["stop_reason"] == "agent_error") == (record["index"] > 1), record["index"]
    again = agent_eval("--resume", "spoilt")
    assert (again.code, again.result["status"], again.result["finished"]) == (0, "complete", deeds), again.err


@pytest.mark.parametrize("workers", [[], ["--workers", "2"]])
def test_what_agent_and_tools_do_to_the_row_is_seen_by_nobody_else(
    agent_eval: Command, bundle: Bundle, tools: Writer, workers: list[str]
) -> None:
    """Not by the other rollouts of the row, nor by the reward and the ground truth."""
    tools(
        after="@R.tool(parameters={})\ndef spoil(rollout):\n"
        "    for row in (rollout.row, rollout.task.row):\n"
        "        row.metadata.pop('who', None), row.outputs.append('more'), row.actions.clear()\n"
        "        row.hidden['deep'].append(1), row.initial_messages[0]['content'].clear()\n"
        "    rollout.messages[0]['content'].clear()\n    return 'spoilt'\n"
    )
    bundle.write(
        "reward.py",
        "def evaluate(messages, *, metadata, outputs, actions, hidden, gold_db, db, **fields):\n"
        "    text = fields['initial_messages'][0]['content'][0]['text']\n"
        "    row = [metadata, outputs, len(actions), hidden, text]\n"
        "    same = row == [{'who': 'Ann'}, ['Done.'], 1, {'deep': []}, 'Hello'] and db.equals(gold_db)\n"
        "    return {'score': float(same), 'reason': str(row)}\n",
    )
    bundle.rows(
        {
            "id": "spoilt",
            "n_rollouts": 4,
            "actions": [{"name": "spoil", "arguments": {}}],
            "outputs": ["Done."],
            "metadata": {"who": "Ann"},
            "hidden": {"deep": []},
            "initial_messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        }
    )
    ran = agent_eval(*GOLD_RUN, "--max-concurrency", "1", *workers)
    ran.tidy()
    assert ran.result["score"] == 1.0, ran.out
    assert [record["tool_calls"][0]["content"] for record in trajectories(bundle, "spoilt")] == ["spoilt"] * 4


@pytest.mark.parametrize(
    "counted",
    ["Usage(1, 10**400)", "Usage(1, 10**5000)", "Usage(1, cost=1e300)", "Usage(), seconds=float('inf')"],
)
def test_numbers_that_count_nothing_cost_their_rollout(
    agent_eval: Command, bundle: Bundle, counted: str
) -> None:
    bundle.write(
        "counting.py",
        "from reward_kit.agent import Usage\n"
        f"async def agent(rollout):\n    rollout.count_usage({counted}, model='m')\n    return 'Done.'\n",
    )
    bundle.rows({"n_rollouts": 2})
    ran = agent_eval("-d", "task.jsonl", "--agent", "flight_task.counting:agent", "--no-sim-user")
    ran.tidy()
    assert (ran.result["status"], ran.result["finished"]) == ("complete", 2)
    for record in trajectories(bundle, "flight.booking.001"):
        assert record["stop_reason"] == "agent_error"
        assert "is above 9007199254740992, which counts nothing" in record["stop_detail"]


@pytest.mark.parametrize("then", ["pass", "await asyncio.sleep(60)"])
def test_an_async_reward_that_cancels_itself_costs_its_rollout(
    agent_eval: Command, bundle: Bundle, then: str
) -> None:
    bundle.write(
        "reward.py",
        "import asyncio\n"
        "async def cancels(messages, **kwargs):\n    asyncio.current_task().cancel()\n"
        f"    {then}\n    {SCORE}\n"
        f"def evaluate(messages, **kwargs):\n    {SCORE}\n",
    )
    bundle.rows(
        {"id": "cancels", "reward": "flight_task.reward:cancels", "actions": GOLD, "n_rollouts": 1},
        {"id": "sound", "actions": GOLD, "n_rollouts": 2},
    )
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.code, ran.result["finished"], ran.result["score"]) == (1, 3, 1.0)
    assert ran.result["unjudged"] == {"reward_error": 1}
    assert "reward.py:2 cancels: cancelled the task that it runs in" in ran.err


CHECKED = """\
import time
from typing import Annotated
from pydantic import AfterValidator
R.tool_timeout = 0.5
NAMES = {"type": "object", "patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}
PATTERN = {"type": "string", "pattern": "^(a+)+$"}

@R.tool(parameters={"v": PATTERN})
def one(v):
    return v

@R.tool(parameters={"type": "object", "properties": {"v": PATTERN}})
def all_of_them(v):
    return v

@R.tool(parameters={"v": NAMES})
def names(v):
    return v

@R.tool(parameters={"v": Annotated[str, AfterValidator(lambda v: time.sleep(600))]})
def slow(v):
    return v
"""


def test_arguments_whose_check_would_never_end_cost_their_call(
    agent_eval: Command, bundle: Bundle, tools: Writer
) -> None:
    names = ("one", "all_of_them", "slow", "names")
    tools(after=CHECKED)
    text = "a" * 60 + "!"
    given = {"names": {text: "x"}}
    actions = [{"name": name, "arguments": {"v": given.get(name, text)}} for name in names]
    bundle.rows(
        {"actions": [*actions, *json.loads(json.dumps(GOLD).replace("[0, ", "[4, "))], "n_rollouts": 1}
    )
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.code, ran.result["score"]) == (0, 1.0)
    (record,) = trajectories(bundle, "flight.booking.001")
    statuses = {call["name"]: call["status"] for call in record["tool_calls"]}
    assert [statuses[name] for name in names] == ["invalid_arguments"] * 2 + ["failed", "invalid_arguments"]


RAISING = """\
@R.tool(parameters={})
def lookup():
    return {}["x"]

@R.tool(parameters={})
async def refuses():
    from reward_kit.agent import ToolError
    raise ToolError("no")
"""


BLOCKING = """
import time
R.tool_timeout = 0.1

@R.tool(parameters={})
async def blocks():
    time.sleep(0.4)
    return "ok"
"""


def test_a_tool_that_held_up_all_rollouts_is_named_once(
    agent_eval: Command, bundle: Bundle, tools: Writer
) -> None:
    tools(after=BLOCKING)
    bundle.rows({"actions": [{"name": "blocks", "arguments": {}}] * 2, "n_rollouts": 2, "outputs": []})
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    (line,) = (line for line in ran.out.splitlines() if "held up" in line)
    assert line.startswith("tools with faults: blocks (4 calls in 2 rollouts), first took 0.")
    assert "s, past its limit of 0.1 s, and held up all rollouts, for 0." in line


@pytest.mark.parametrize("more", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_tools_that_raise_are_named_in_the_results(
    agent_eval: Command, bundle: Bundle, tools: Writer, more: tuple[str, ...]
) -> None:
    tools(after=RAISING)
    raising = [{"name": name, "arguments": {}} for name in ("lookup", "lookup", "refuses")]
    bundle.rows({"actions": [*GOLD, *raising], "n_rollouts": 2})
    ran = agent_eval(*GOLD_RUN, *more, "--eval-id", "e")
    ran.tidy()
    (line,) = (line for line in ran.out.splitlines() if line.startswith("tools with faults"))
    assert line.startswith("tools with faults: lookup (4 calls in 2 rollouts), first tools.py:")
    assert "KeyError: 'x' in row flight.booking.001, runs/flight.booking.001/roll_" in line
    assert (bundle.folder / line.rpartition(", ")[2]).is_file()
    for rollout in ran.result["rows"][0]["rollouts"]:
        assert rollout["tool_faults"]["lookup"]["calls"] == 2
    log = bundle.folder / "runs/evals/e.jsonl"
    lines = [json.loads(text) for text in log.read_text().splitlines()]
    earlier = [{key: value for key, value in one.items() if key != "tool_faults"} for one in lines[:-1]]
    log.write_text("".join(f"{json.dumps(one)}\n" for one in earlier))
    resumed = agent_eval("--resume", "e", *more)
    resumed.tidy()
    assert (resumed.code, resumed.result["finished"]) == (0, 2)
    assert "lookup (2 calls in 1 rollout)" in resumed.out


ON_THE_PROCESS = [
    "sys.setrecursionlimit(80)",
    "json.dumps = None",
    "builtins.open = None",
    "time.time = None",
    "os.fsync = None",
    "os.write = lambda *a: 0",
    "sys.path[:] = [5]",
    "sys.stdout.detach()",
    "threading.excepthook = None",
    "sys.stdout = None",
    "sys.stderr = None",
    "sys.stderr.close()",
    "os.close(1)",
    "os.close(2)",
    "os.chdir('/')",
]
ANOTHER_OUTPUT = """\
class Output:
    closed = False
    def write(self, text): raise KeyboardInterrupt
    def flush(self): raise SystemExit
sys.stdout = Output()
"""
ON_THE_LOOP = [
    "asyncio.get_running_loop().stop()",
    "asyncio.get_running_loop().stop(); await asyncio.sleep(1)",
]


@pytest.mark.parametrize("body", [ANOTHER_OUTPUT, "os.dup2(os.open(os.devnull, os.O_WRONLY), 1)"])
def test_an_output_that_a_tool_has_put_in_the_place_of_another_gets_no_report(
    agent_eval: Command, bundle: Bundle, tools: Writer, body: str
) -> None:
    tools(before="import os, sys", after=f"@R.tool(parameters={{}})\ndef bad():\n{indented(body)}\n")
    bundle.rows({"id": "row", "actions": [*GOLD, {"name": "bad", "arguments": {}}], "n_rollouts": 2})
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.code, ran.result["status"], ran.result["score"]) == (0, "complete", 1.0), ran.err
    assert ran.out.count("results   runs/evals/") == 1


def test_tools_that_break_the_process_harm_no_other_rollout(
    agent_eval: Command, bundle: Bundle, tools: Writer
) -> None:
    kinds = [("def", body) for body in ON_THE_PROCESS]
    kinds += [("async def", body) for body in (*ON_THE_PROCESS, *ON_THE_LOOP)]
    written = [
        f"@R.tool(parameters={{}})\n{kind} bad{number}():\n{indented(body)}\n"
        for number, (kind, body) in enumerate(kinds)
    ]
    tools(
        before="import asyncio, builtins, json, os, sys, threading, time",
        after="\n".join(written),
    )
    bundle.rows(
        *(
            {
                "id": f"row{number}",
                "actions": [*GOLD, {"name": f"bad{number}", "arguments": {}}],
                "n_rollouts": 2,
            }
            for number in range(len(kinds))
        )
    )
    ran = agent_eval(*GOLD_RUN, "--max-concurrency", "1")
    ran.tidy()
    assert (ran.code, ran.result["status"], ran.result["score"]) == (0, "complete", 1.0), ran.err
    assert ran.result["finished"] == 2 * len(kinds)
    assert ran.out.count("results   runs/evals/") == 1
    for number, (kind, body) in enumerate(kinds):
        for record in ran.result["rows"][number]["rollouts"]:
            told = (record["tool_faults"] or {}).get(f"bad{number}", {}).get("first", "")
            expected = "cannot stop the event loop" if body in ON_THE_LOOP else "(put back)"
            assert body == "os.chdir('/')" or expected in told, (kind, body, told)


@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "lambda *_: None"])
def test_a_tool_that_turns_a_deaf_ear_to_ctrl_c_does_not_keep_it_from_the_run(
    agent_eval: Command, bundle: Bundle, tools: Writer, handler: str
) -> None:
    tools(
        before="import asyncio, os, signal",
        after=f"@R.tool(parameters={{}})\nasync def deaf():\n    signal.signal(signal.SIGINT, {handler})\n"
        "@R.tool(parameters={})\nasync def interrupts(rollout=None):\n    if rollout is not None:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n        await asyncio.sleep(60)\n",
    )
    actions = [{"name": name, "arguments": {}} for name in ("deaf", "interrupts")]
    bundle.rows({"id": "done", "actions": GOLD, "n_rollouts": 1}, {"id": "deaf", "actions": actions})
    ran = agent_eval(*GOLD_RUN, "--max-concurrency", "1")
    ran.tidy()
    assert (ran.code, ran.result["status"], ran.result["finished"]) == (130, "interrupted", 1)


def test_a_tool_that_returns_millions_of_items_costs_its_call_alone(
    agent_eval: Command, bundle: Bundle, tools: Writer
) -> None:
    tools(after="@R.tool(parameters={})\ndef many():\n    return [[0] * 1000] * 1_000_000\n")
    bundle.rows({"actions": [*GOLD, {"name": "many", "arguments": {}}], "n_rollouts": 1})
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.code, ran.result["score"]) == (0, 1.0)
    (record,) = trajectories(bundle, "flight.booking.001")
    assert "[cut: the first 1,000,000 of more than " in record["tool_calls"][-1]["content"]


def test_a_dataset_that_is_neither_file_nor_folder_is_told_so(agent_eval: Command, tmp_path: Path) -> None:
    agent_eval("-d", "/dev/null", "--agent", "gold").refused(
        "/dev/null: is neither a file nor a folder", "A dataset is a .jsonl file"
    )
