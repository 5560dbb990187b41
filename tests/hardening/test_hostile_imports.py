"""A ``tools.py`` that does its worst while it is imported: one clear error, or as if it had not."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from flight_bundle import Bundle
from hostile import GOLD_RUN, VALIDATE, Ran

Command = Callable[..., Ran]
Writer = Callable[..., None]


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        ("import sys; sys.exit(0)", ["tools.py:1", "SystemExit", "must not exit"]),
        ("class Own(BaseException): pass\nraise Own('x')", ["tools.py:2", "Own: x"]),
        ("raise GeneratorExit", ["tools.py:1", "GeneratorExit"]),
        ("import asyncio\nraise asyncio.CancelledError", ["tools.py:2", "CancelledError"]),
        ("def f(): return f()\nf()", ["tools.py:1", "RecursionError"]),
        ("class E(Exception):\n  def __str__(self): raise ValueError\nraise E", ["tools.py:3", "E"]),
        ("import sys; sys.modules['json'] = None", ["json"]),
        ("\0", ["null bytes"]),
    ],
    ids=["exit", "BaseException", "GeneratorExit", "cancel", "recursion", "mute", "modules", "NUL"],
)
def test_one_error_with_the_line(agent_eval: Command, tools: Writer, code: str, parts: list[str]) -> None:
    tools(code)
    agent_eval(*VALIDATE).refused("task.jsonl:1", "flight_task.tools", *parts)


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.chdir('..')",
        "import os; os.fork()",
        "import sys; sys.stdout.close()",
        "import sys; sys.stderr.close()",
        "import os; os.close(1)",
        "import sys; sys.stdout = None",
        "import io, sys; sys.stdout = io.StringIO()",
        "import json, sys; json.dumps = lambda *_, **__: str(); sys.setrecursionlimit(100)",
        "import sys; sys.path.clear()",
        "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()",
        "print('x' * 10_000_000)",
    ],
    ids=[
        "chdir",
        "fork",
        "stdout",
        "stderr",
        "descriptor",
        "no-stdout",
        "buffer",
        "limit",
        "path",
        "thread",
        "chatter",
    ],
)
def test_the_evaluation_goes_on_as_if_nothing_had_happened(
    agent_eval: Command, tools: Writer, code: str
) -> None:
    tools(code)
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert ran.code == 0, ran.err
    assert (ran.result["finished"], ran.result["score"]) == (2, 1.0)
    assert ran.out.count("results   runs/evals/") == 1


@pytest.mark.parametrize("code", ["import os; os.fork()", "import sys; sys.stdout.close()"])
def test_so_does_a_validation(agent_eval: Command, tools: Writer, code: str) -> None:
    tools(code)
    ran = agent_eval(*VALIDATE)
    ran.tidy()
    assert ran.code == 0, ran.err
    assert ran.out.count("Task bundle successfully validated.") == 1


@pytest.mark.parametrize("name", ["tools.py", "reward.py"])
def test_a_module_that_cannot_be_looked_into_is_one_error(
    agent_eval: Command, bundle: Bundle, name: str
) -> None:
    bundle.write(name, "def __getattr__(name):\n    return {}[name]\n")
    agent_eval(*VALIDATE).refused("task.jsonl:1", f"{name}:2: KeyError: ")


def test_a_bundle_that_prints_without_end_is_ended_by_ctrl_c(
    bundle: object, world: Path, tools: Writer
) -> None:

    tools("while True: print('x', flush=True)")
    process = subprocess.Popen(
        [sys.executable, "-m", "reward_kit", "agent-eval", *VALIDATE],
        cwd=world / "flight_task",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "x\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "name", ["json", "asyncio", "sqlite3", "logging", "rich", "pydantic", "sqlalchemy", "apsw"]
)
def test_a_module_of_the_bundle_does_not_stand_in_for_an_installed_one(
    agent_eval: Command, bundle: Bundle, name: str
) -> None:
    """It is started in the bundle's folder, which Python searches first."""
    bundle.write(f"{name}.py", "raise RuntimeError('not this one')\n")
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.code, ran.result["score"]) == (0, 1.0), ran.err


@pytest.mark.parametrize("name", ["json", "logging"])
def test_nor_does_it_in_a_process_that_plays_rollouts(agent_eval: Command, bundle: Bundle, name: str) -> None:
    bundle.write(f"{name}.py", "raise RuntimeError('not this one')\n")
    ran = agent_eval(*GOLD_RUN, "--workers", "2")
    ran.tidy()
    assert (ran.code, ran.result["score"]) == (0, 1.0), ran.err


def test_a_reward_that_does_not_say_what_it_takes_is_refused(agent_eval: Command, bundle: Bundle) -> None:
    bundle.write("reward.py", "evaluate = dict\n")
    agent_eval(*GOLD_RUN).refused(
        "task.jsonl:1", "does not say what it takes", "def evaluate(messages, *, db"
    )


IMPORTED_MEANWHILE = """
import gc, itertools, sys, types
from reward_kit.agent.bundles.footing import footing
from reward_kit.agent.bundles.ground import KeptFunctions

for number in range(3000):
    sys.modules[f"there_{number}"] = types.ModuleType("there")
numbers = itertools.count()
# stands in for a thread that imports: a collection may let others run
gc.callbacks.append(lambda *_: sys.modules.setdefault(f"new_{next(numbers)}", types.ModuleType("new")))
gc.set_threshold(200)
for _ in range(20):
    footing("the reward")
    with KeptFunctions():
        pass
print(next(numbers) > 0)
"""


def test_what_is_imported_meanwhile_breaks_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED_MEANWHILE], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
