"""Code of a bundle that turns on its process: the tasks of others, modules, functions, descriptors."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle
from hostile import GOLD_RUN, Ran, indented, row_for_each_reward

from reward_kit.agent import EvaluationConfig, agent_eval, run_evaluation
from reward_kit.agent.outcome import RolloutOutcome
from reward_kit.agent.tally import Tally

Command = Callable[..., Ran]
Writer = Callable[..., None]

SCORE = "return {'score': 1.0, 'reason': ''}"
IMPORTS = "import asyncio, builtins, contextlib, json, os, signal, sys, threading, time"
CANCELS_ALL = "for task in asyncio.all_tasks(): task.cancel()"
CANCELS_OTHERS = "for task in asyncio.all_tasks():\n    if task is not asyncio.current_task(): task.cancel()"
FAILS = "def fails(*a, **k): raise RuntimeError('broken')"

# what a tool does, and what is told of it
SURVIVED = {
    "cancels_all": ("async def", CANCELS_ALL, "cannot cancel the tasks of others"),
    "cancels_others": ("async def", f"{CANCELS_OTHERS}\nawait asyncio.sleep(0.1)", "cannot cancel the tasks"),
    "empties_modules": ("def", "sys.modules.clear()", "sys.modules (put back)"),
    "empties_modules_async": ("async def", "sys.modules.clear()", "sys.modules (put back)"),
    "other_modules": ("def", "sys.modules = {}", "sys.modules (put back)"),
    "empties_path": ("def", "sys.path[:] = []", "sys.path (put back)"),
    "empties_path_async": ("async def", "sys.path.clear()", "sys.path (put back)"),
    "other_path": ("def", "sys.path = 'x'", "sys.path (put back)"),
    "no_finders": (
        "def",
        "sys.meta_path.clear()\nsys.path_hooks = None",
        "sys.meta_path, sys.path_hooks (put back)",
    ),
    "no_path_at_all": ("def", "del sys.path", "sys.path (put back)"),
    "breaks_imports": ("def", f"{FAILS}\nbuiltins.__import__ = fails", "builtins.__import__ (put back)"),
    "breaks_json": ("def", f"{FAILS}\njson.dumps = json.loads = fails", "json.dumps, json.loads (put back)"),
    "breaks_time": (
        "async def",
        f"{FAILS}\ntime.time = time.monotonic = fails",
        "time.time, time.monotonic (put back)",
    ),
    "breaks_asyncio": (
        "def",
        "asyncio.wait = asyncio.shield = None",
        "asyncio.shield, asyncio.wait (put back)",
    ),
    "breaks_loop": (
        "async def",
        "loop = asyncio.get_running_loop()\nloop.call_soon = None\nraise ValueError('done')",
        "ValueError: done",
    ),
    "leaves": ("def", "os._exit(0)", "SystemExit: os._exit(0)"),
    "leaves_async": ("async def", "os._exit(0)", "SystemExit: os._exit(0)"),
    "interrupts": ("async def", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    "alarm": ("def", "signal.alarm(1)", "the alarm clock (put back)"),
    "umask": ("def", "os.umask(0o777)", "the umask (put back)"),
    "umask_async": ("async def", "os.umask(0o777)", "the umask (put back)"),
    "hears_no_ctrl_c": (
        "async def",
        "signal.signal(signal.SIGINT, lambda *_: None)",
        "the handler of SIGINT (put back)",
    ),
    "finder": (
        "def",
        (
            "class Finder:\n    def find_spec(self, *a): raise RuntimeError('no import')\n"
            "sys.meta_path.insert(0, Finder())\nraise ValueError('done')"
        ),
        "ValueError: done",
    ),
    "unreadable": (
        "def",
        (
            "class E(Exception):\n    @property\n    def __traceback__(self): raise RuntimeError('no')\n"
            "    def __str__(self): return 5\nraise E"
        ),
        "",
    ),
    "unnamed": (
        "def",
        (
            "class M(type):\n    def __getattribute__(self, name): raise RuntimeError('no')\n"
            "class E(Exception, metaclass=M): pass\nraise E"
        ),
        "E",
    ),
}


def hostile_rows(bundle: Bundle, tools: Writer, bodies: dict[str, tuple[str, str]]) -> None:
    """A row for each tool, whose gold agent does the task first and then calls the tool."""
    written = [
        f"@R.tool(parameters={{}})\n{kind} {name}():\n{indented(body)}\n"
        for name, (kind, body) in bodies.items()
    ]
    tools(before=IMPORTS, after="\n".join(written))
    bundle.rows(
        *(
            {"id": name, "actions": [*GOLD, {"name": name, "arguments": {}}], "n_rollouts": 1}
            for name in bodies
        ),
        {"id": "sound", "actions": GOLD, "n_rollouts": 4},
    )


@pytest.mark.parametrize("together", [True, False], ids=["together", "one-by-one"])
def test_what_tools_do_to_the_process_costs_their_call(
    agent_eval: Command, bundle: Bundle, tools: Writer, together: bool
) -> None:
    """Where all modules are gone for a moment, what others import just then fails: one by one."""
    bodies = {
        name: (kind, body)
        for name, (kind, body, _) in SURVIVED.items()
        if not together or "modules" not in name
    }
    hostile_rows(bundle, tools, bodies)
    ran = agent_eval(*GOLD_RUN, *([] if together else ["--max-concurrency", "1"]))
    ran.tidy()
    assert (ran.code, ran.result["status"], ran.result["score"]) == (0, "complete", 1.0), ran.err
    assert ran.result["finished"] == len(bodies) + 4
    for name, row in zip(bodies, ran.result["rows"], strict=False):
        (rollout,) = row["rollouts"]
        assert SURVIVED[name][2] in rollout["tool_faults"][name]["first"], name


FORKS = """\
import multiprocessing, signal, time
fork = multiprocessing.get_context("fork")

def handlers(answer):
    answer.put([signal.getsignal(signal.SIGINT) is signal.default_int_handler,
                signal.getsignal(signal.SIGTERM) is signal.SIG_DFL])
"""
BOUNDS = """\
child = fork.Process(target=time.sleep, args=(600,))
child.start()
child.terminate()
child.join(60)
answer = fork.Queue()
asked = fork.Process(target=handlers, args=(answer,))
asked.start()
fork.Process(target=time.sleep, args=(600,), daemon=True).start()
return [child.exitcode, answer.get(timeout=60)]"""


DEBUGS = """\
asyncio.get_running_loop().set_debug(True)
asyncio.get_running_loop().slow_callback_duration = 0
"""


def test_what_is_written_after_a_tool_has_changed_the_umask_or_the_loops_debug_mode_is_as_before(
    agent_eval: Command, bundle: Bundle, tools: Writer
) -> None:
    hostile_rows(bundle, tools, {"masks": ("def", "os.umask(0o777)"), "debugs": ("async def", DEBUGS)})
    ran = agent_eval(*GOLD_RUN, "--max-concurrency", "1")
    ran.tidy()
    assert (ran.code, ran.result["score"]) == (0, 1.0)
    assert all(path.stat().st_mode & 0o400 for path in (bundle.folder / "runs").rglob("*"))
    assert "Executing" not in ran.err


@pytest.mark.parametrize("workers", ["1", "2"])
def test_signals_that_a_tool_sends_to_its_children_are_theirs(
    agent_eval: Command, bundle: Bundle, tools: Writer, workers: str
) -> None:
    """One call in a process at a time: a child that another thread forks meanwhile holds the pipe by which
    ``join`` sees the end of this one.
    """
    tools(before=FORKS, after=f"@R.tool(parameters={{}})\ndef bounds():\n{indented(BOUNDS)}\n")
    bundle.rows({"actions": [{"name": "bounds", "arguments": {}}], "n_rollouts": 2})
    ran = agent_eval(*GOLD_RUN, "--workers", workers, "--max-concurrency", workers)
    ran.tidy()
    assert (ran.result["status"], ran.result["finished"]) == ("complete", 2)
    assert "nterrupted" not in ran.err
    for file in (bundle.folder / "runs").glob("*/roll_*.json"):
        (call,) = json.loads(file.read_text())["tool_calls"]
        assert call["content"] == "[-15, [true, true]]"


REWARDS = {
    "cancels_all": ("async def", f"{CANCELS_ALL}\n{SCORE}", "cannot cancel the tasks of others"),
    "cancels_itself": (
        "async def",
        "asyncio.current_task().cancel()\nraise ValueError('done')",
        "ValueError: done",
    ),
    "leaves": ("def", "os._exit(0)", "SystemExit: os._exit(0)"),
    "interrupts": ("async def", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    "unreadable": (
        "def",
        "class E(Exception):\n    @property\n    def __traceback__(self): raise RuntimeError('no')\nraise E",
        "raised",
    ),
    "score": (
        "def",
        (
            "class F(float):\n    def __float__(self): raise RuntimeError('no float')\n"
            "made = RewardOutput(score=1.0)\nmade.score = F(1)\nreturn made"
        ),
        "returned a result that cannot be read: reward.py",
    ),
    "metrics": (
        "def",
        "made = RewardOutput(score=1.0)\nmade.metrics = {'a': {}}\nreturn made",
        "returned a result that cannot be read",
    ),
    "dump": (
        "def",
        (
            "class E(EvaluateResult):\n    def model_dump(self, **k): raise RuntimeError('no dump')\n"
            "return E(score=1.0, reason='', metrics={})"
        ),
        "RuntimeError: no dump",
    ),
    "keys": (
        "def",
        (
            "class E(EvaluateResult):\n    def model_dump(self, **k): return {(1, 2): object()}\n"
            "return E(score=1.0, reason='', metrics={})"
        ),
        "expected an EvaluateResult",
    ),
}


def test_what_rewards_do_to_the_process_or_give_back_costs_their_rollout(
    agent_eval: Command, bundle: Bundle
) -> None:
    functions = [
        f"{kind} f{number}(messages, **kwargs):\n{indented(body)}\n"
        for number, (kind, body, _) in enumerate(REWARDS.values())
    ]
    breaks = "sys.modules.clear()\n    sys.path = None"
    functions.append(f"def f{len(REWARDS)}(messages, **kwargs):\n    {breaks}\n    {SCORE}\n")
    bundle.write(
        "reward.py",
        f"{IMPORTS}\nfrom reward_kit import EvaluateResult, RewardOutput\n" + "\n".join(functions),
    )
    row_for_each_reward(bundle, len(functions))
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.code, ran.result["status"], ran.result["finished"]) == (1, "complete", len(functions)), (
        ran.err
    )
    assert ran.result["unjudged"] == {"reward_error": len(REWARDS)}
    for number, (_, _, part) in enumerate(REWARDS.values()):
        (line,) = (line for line in ran.err.splitlines() if line.startswith(f"row{number} #1 not judged"))
        assert part in line


BEYOND_REPAIR = {
    "cancels_past_the_guard": (
        "async def",
        (
            "for task in asyncio.all_tasks():\n"
            "    with contextlib.suppress(RuntimeError): asyncio.Task.cancel(task)"
        ),
        "cancelled the tasks that the evaluation runs in",
    ),
    "closes_descriptors": ("def", "os.closerange(3, 1000)", "Bad file descriptor"),
    "replaces_asyncio": (
        "def",
        f"{FAILS}\nasyncio.ensure_future = asyncio.wait = fails",
        "RuntimeError: broken",
    ),
}


@pytest.mark.parametrize("name", BEYOND_REPAIR)
def test_what_cannot_be_mended_is_one_error_that_names_the_tool_and_the_rest_is_kept(
    agent_eval: Command, bundle: Bundle, tools: Writer, name: str
) -> None:
    kind, body, part = BEYOND_REPAIR[name]
    hostile_rows(bundle, tools, {name: (kind, body)})
    bundle.rows(
        {"id": "first", "actions": GOLD, "n_rollouts": 1},
        {"id": name, "actions": [{"name": name, "arguments": {}}], "n_rollouts": 1},
        {"id": "last", "actions": GOLD, "n_rollouts": 1},
    )
    ran = agent_eval(*GOLD_RUN, "--max-concurrency", "1", "--eval-id", "e")
    ran.refused(f"after the tool {name} was called", part, "--workers 2")
    log = (bundle.folder / "runs/evals/e.jsonl").read_text().splitlines()
    assert [json.loads(line).get("row_id") for line in log] == [None, "first"]


def test_with_workers_what_cannot_be_mended_costs_its_rollout(
    agent_eval: Command, bundle: Bundle, tools: Writer
) -> None:
    hostile_rows(bundle, tools, {name: (kind, body) for name, (kind, body, _) in BEYOND_REPAIR.items()})
    ran = agent_eval(*GOLD_RUN, "--workers", "2", timeout=100)
    ran.tidy()
    assert (ran.code, ran.result["finished"]) == (1, len(BEYOND_REPAIR) + 4)
    judged: dict[str, list[Any]] = {
        row["id"]: [rollout["reward"] for rollout in row["rollouts"]] for row in ran.result["rows"]
    }
    assert judged["sound"] == [1.0] * 4
    assert judged["closes_descriptors"] == judged["replaces_asyncio"] == [None]
    assert "its process was broken off: tools.py" in ran.err


def test_with_workers_a_tool_that_takes_all_files_costs_its_rollout(
    agent_eval: Command, bundle: Bundle, tools: Writer
) -> None:
    body = (
        "import resource\n"
        "most = len(os.listdir('/dev/fd')) + 5\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))\n"
        "kept = R.kept = []\n"
        "with contextlib.suppress(OSError):\n"
        "    while True: kept.append(open(os.devnull))"
    )
    hostile_rows(bundle, tools, {"takes_all_files": ("def", body)})
    ran = agent_eval(*GOLD_RUN, "--workers", "2", "--retries", "1", timeout=100)
    ran.tidy()
    rewards = {row["id"]: [one["reward"] for one in row["rollouts"]] for row in ran.result["rows"]}
    assert rewards == {"sound": [1.0] * 4, "takes_all_files": [None]}
    assert "its process was broken off: " in ran.err


AGENT = """\
import asyncio

class Player:
    async def respond(self, rollout):
        self.row = rollout.row.id
        return "Sorry."

    async def close(self):
        await getattr(self, self.row)()

    async def exits(self):
        raise SystemExit(0)

    async def interrupts(self):
        raise KeyboardInterrupt

    async def closes(self):
        raise GeneratorExit

    async def cancels(self):
        asyncio.current_task().cancel()
        await asyncio.sleep(1)

    async def cancels_all(self):
        for task in asyncio.all_tasks():
            task.cancel()

    async def raises(self):
        raise ValueError

    async def deaf(self):
        while True:
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                pass

class Unreadable(Player):
    @property
    def close(self):
        raise SystemExit(0)
"""
WAYS = ("exits", "interrupts", "closes", "cancels", "cancels_all", "raises", "deaf")


@pytest.mark.parametrize("player", ["Player", "Unreadable"])
def test_an_agent_that_cannot_be_closed_costs_nothing(
    agent_eval: Command, bundle: Bundle, player: str
) -> None:
    short = "import reward_kit.agent.orchestrator\nreward_kit.agent.orchestrator.CANCELLATION_GRACE = 0.3\n"
    bundle.write("own.py", short + AGENT)
    bundle.rows(*({"id": way, "n_rollouts": 1} for way in WAYS))
    ran = agent_eval("-d", "task.jsonl", "--agent", f"own:{player}", "--no-sim-user", "--retries", "0")
    ran.tidy()
    assert (ran.code, ran.result["finished"], ran.result["unjudged"]) == (0, len(WAYS), {}), ran.err
    assert {one["stop_reason"] for row in ran.result["rows"] for one in row["rollouts"]} == {"agent_done"}


def test_an_agent_whose_making_exits_is_one_error(agent_eval: Command, bundle: Bundle) -> None:
    bundle.write(
        "own.py",
        "class Player:\n    def __init__(self):\n        raise SystemExit(0)\n"
        "    async def respond(self, rollout): ...\n",
    )
    agent_eval("-d", "task.jsonl", "--agent", "own:Player", "--no-sim-user").refused(
        "own:Player() raised own.py:3: SystemExit"
    )


def test_from_python_the_tasks_of_others_are_guarded_as_well(bundle: Bundle, tools: Writer) -> None:
    hostile_rows(bundle, tools, {"cancels": ("async def", CANCELS_ALL)})
    for _ in range(5):  # in another order each time
        result = agent_eval(bundle.dataset, agent="gold", retries=0, output_dir=str(bundle.folder / "runs"))
        assert (result.status, len(result.outcomes), result.score) == ("complete", 5, 1.0)


class Started:
    """Progress that says when rollouts begin."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def started(self, tally: Tally) -> None:
        self.event.set()

    def ended(self, outcome: RolloutOutcome, tally: Tally) -> None: ...

    def closed(self, tally: Tally) -> None: ...


async def test_a_task_that_runs_an_evaluation_can_be_cancelled(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle.write(
        "waiting_agent.py", "import asyncio\nasync def waits(rollout):\n    await asyncio.sleep(60)\n"
    )
    monkeypatch.chdir(bundle.folder)
    config = EvaluationConfig(dataset=str(bundle.dataset), agent="waiting_agent:waits", user="none")
    progress = Started()
    task = asyncio.ensure_future(run_evaluation(config, progress=progress))
    await asyncio.wait_for(progress.event.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


LEAVING = """\
import os, signal
from reward_kit.agent.bundles.breakage import kept_process
try:
    with kept_process():
        raise KeyboardInterrupt
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGINT)
print("still here")
"""


AT_IMPORTS = """\
import os, signal
from reward_kit import cli
cli._is_own_process = {own}
before = signal.getsignal(signal.SIGINT)
with cli.ended_by_ctrl_c():
    if {interrupt}:
        os.kill(os.getpid(), signal.SIGINT)
print(signal.getsignal(signal.SIGINT) is before)
"""


@pytest.mark.parametrize(
    ("own", "interrupt", "code", "out", "err"),
    [
        (True, True, 130, "", "Interrupted.\n"),
        (True, False, 0, "True\n", ""),
        (False, False, 0, "True\n", ""),
    ],
)
def test_ctrl_c_in_the_midst_of_imports_ends_the_command_without_a_traceback(
    own: bool, interrupt: bool, code: int, out: str, err: str
) -> None:
    text = AT_IMPORTS.format(own=own, interrupt=interrupt)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


def test_ctrl_c_in_the_midst_of_imports_is_the_affair_of_a_program_that_calls_the_command() -> None:
    text = AT_IMPORTS.format(own=False, interrupt=True)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert "KeyboardInterrupt" in done.stderr


def test_a_second_ctrl_c_on_the_way_out_ends_the_command_without_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


SEEN = """\
import sys

SEEN = "reward_kit.agent.database.sqlalchemy_result"


class Looks:
    async def respond(self, rollout):
        return f"{SEEN in sys.modules}"
"""


@pytest.mark.parametrize(
    ("returned", "imported"),
    [
        ("{'score': db.execute('SELECT 1').scalar()}", "True"),
        ("{'score': float(db.equals(db))}", "False"),  # and whoever needs it not is not kept waiting for it
    ],
)
def test_what_a_reward_s_queries_need_is_imported_before_others_can_break_that(
    agent_eval: Command, bundle: Bundle, returned: str, imported: str
) -> None:
    bundle.write("reward.py", f"def evaluate(messages, *, db, **kwargs):\n    return {returned}\n")
    bundle.write("looks.py", SEEN)
    bundle.rows({"n_rollouts": 1})
    ran = agent_eval("-d", "task.jsonl", "--agent", "looks:Looks", "--user", "none")
    assert ran.code == 0, ran.err
    (rollout,) = ran.result["rows"][0]["rollouts"]
    said = json.loads((bundle.folder / "runs" / rollout["file"]).read_text())["messages"][-1]
    assert said["content"] == imported
