"""One rollout does something odd beside six others: the run ends, they score 1.0, and all can be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import run_command, run_patched
from flight_bundle import Bundle, flight_bundle
from hostile import indented
from thorough import often

from reward_kit.agent import export, load_evaluation, load_rollout

pytestmark = pytest.mark.timeout(300)
NEIGHBOURS = 6
AGENT = {
    "stops with an exception": "rollout.stop('agent_error', ValueError())",
    "stops with a number": "rollout.stop('agent_done', 5)",
    "stops with bytes": "rollout.stop('agent_done', b'x')",
    "stops for an unknown reason": "rollout.stop('<script>')",
    "stops for a list": "rollout.stop(['agent_done'])",
    "stops with half a pair": "rollout.stop('agent_done', 'half \\ud83d')",
    "stops for the user": "rollout.stop('user_error')",
    "stops for the engine": "rollout.stop('infrastructure_error', 'no luck')",
    "stops with a long text": "rollout.stop('agent_error', LONG)",
    "counts up to an overflow": "most = Usage(input_tokens=2**53)\n"
    "for _ in range(1200): rollout.count_usage(most, model='m')",
    "counts floats to infinity": "for _ in range(9): rollout.count_usage(Usage(cost=1.7e308), model='m')",
    "counts for a tuple": "rollout.count_usage(Usage(calls=1), model='m', role=('a', object()))",
    "counts a numbered model": "rollout.count_usage(Usage(calls=1), model=5)",
    "counts no finish": "rollout.count_usage(Usage(calls=1), model='m', finish_reason=None)",
    "counts half a pair": "rollout.count_usage(Usage(calls=1), model='\\ud83d')",
    "counts nan": "rollout.count_usage(Usage(calls=1), model='m', seconds=float('nan'))",
    "counts from a text": "rollout.count_usage(Usage(calls=1), model='m', started='')",
    "changes what it counted": "u = Usage(calls=1)\nrollout.count_usage(u, model='m')\nu.cost = object()",
    "replies with an exception": "return ValueError('no')",
    "replies with half a pair": "return 'half \\ud83d'",
    "replies in depth": "m = {'role': 'assistant', 'content': 'x'}\ni = m\n"
    "for _ in range(3000): i['more'] = {}; i = i['more']\nreturn m",
    "replies with itself": "m = {'role': 'assistant', 'content': 'x'}\nm['self'] = m\nreturn m",
    "replies with a long number": "return {'role': 'assistant', 'content': 'x', 'n': 10 ** 6000}",
    "replies with nan": "return {'role': 'assistant', 'content': 'x', 'n': float('nan')}",
    "replies with a set": "return {'role': 'assistant', 'content': 'x', 'n': {1, 2}}",
    "replies with bytes": "return {'role': 'assistant', 'content': b'x'}",
    "replies with strange names": "return {'role': 'assistant', 'content': 'x', 5: 6, '\\ud83d': 1}",
    "replies with a long text": "return LONG",
    "calls half a pair": "await rollout.call_tool('echo', '{\"text\": \"half \\\\ud83d\"}')",
    "calls a long name": "await rollout.call_tool(LONG, {})",
    "calls no name": "await rollout.call_tool(None, {})",
    "calls half a name": "await rollout.call_tool('\\ud83d', {})",
    "calls with itself": "a = {}\na['a'] = a\nawait rollout.call_tool('echo', a)",
    "calls in depth": "await rollout.call_tool('echo', '[' * 5000 + ']' * 5000)",
    "calls with objects": "await rollout.call_tool('echo', {'text': object()})",
    "calls under a strange id": "await rollout.call_tool('echo', {'text': 'x'}, call_id=5)",
    "records nothing": "rollout.record(None)",
    "records itself": "m = {'role': 'assistant'}\nm['tool_calls'] = [m]\nrollout.record(m)",
    "records strange calls": "c = [{'id': 1, 'function': 5}]\n"
    "rollout.record({'role': 'assistant', 'tool_calls': c})",
    "offers nonsense": "rollout.tools = object()\nrollout.tools",
    "offers itself": "t = []\nt.append(t)\nrollout.tools = t",
    "offers half a pair": "rollout.tools = [{'type': 'function', 'function': {'name': '\\ud83d'}}]",
    "raises": "raise ValueError('\\ud83d' + LONG)",
    "raises the end of a generator": "raise GeneratorExit",
    "raises an interrupt": "raise KeyboardInterrupt",
    "raises an exit": "raise SystemExit(0)",
    "raises a cancellation": "raise asyncio.CancelledError",
    "raises the end of a rollout": "raise RolloutStopped('x')",
    "raises the user's fault": "raise SimulatedUserError('x')",
    "raises the disk's fault": "raise StorageError('x')",
    "raises deep": "def f(): f()\nf()",
    "raises without words": "class E(Exception):\n def __str__(self): raise ValueError\nraise E",
    "cancels itself": "asyncio.current_task().cancel()\nawait asyncio.sleep(0)",
    "blocks": "time.sleep(3.3)",
    "sleeps": "await asyncio.sleep(60)",
    "leaves a task": "async def f(): raise KeyError('later')\nasyncio.ensure_future(f())",
    "leaves a thread": "threading.Thread(target=time.sleep, args=(30,), daemon=True).start()",
}
"""Bodies of an agent's turn, ``rollout`` at hand; those that return nothing reply "Done"."""
TOOL = {
    "stops with an exception": "rollout.stop('agent_error', ValueError())",
    "returns half a pair": "return 'half \\ud83d'",
    "returns a long number": "return 10 ** 6000",
    "returns itself": "a = []\na.append(a)\nreturn a",
    "returns a very long text": "return LONG * 4",
    "returns a generator": "return (one for one in [1])",
    "raises with a long text": "raise ValueError(LONG)",
    "raises half a pair": "raise ValueError('\\ud83d')",
    "raises an interrupt": "raise KeyboardInterrupt",
    "raises the end of a generator": "raise GeneratorExit",
    "counts an overflow": "for _ in range(1200): rollout.count_usage(Usage(output_tokens=2**53), model='m')",
}
REWARD = {
    "gives 2": "return RewardOutput(score=2.0, reason='x')",
    "gives half a pair": "return RewardOutput(score=1.0, reason='\\ud83d')",
    "gives odd metrics": "m = {'score': 1.0, 'reason': 'x'}\nreturn {**m, 'metrics': {'\\ud83d': m}}",
    "gives nan": "return RewardOutput(score=float('nan'), reason='x')",
    "gives text": "return '1.0'",
    "raises half a pair": "raise ValueError('\\ud83d')",
    "raises an interrupt": "raise KeyboardInterrupt",
    "raises a long text": "raise ValueError(LONG)",
    "counts nonsense": "rollout.count_usage(5, model='m')",
    "counts to infinity": "for _ in range(9): rollout.count_usage(Usage(cost=1.7e308), model='m')",
    "reads in depth": "def f(): return f()\nreturn f()",
}
USER = {
    "says half a pair": "return 'half \\ud83d'",
    "says an exception": "return ValueError()",
    "stops for the engine": "rollout.stop('infrastructure_error')",
    "raises an interrupt": "raise KeyboardInterrupt",
    "raises a long text": "raise ValueError(LONG)",
    "blocks": "time.sleep(3.3)",
    "says a long text": "return LONG",
}
KINDS = {"agent": AGENT, "tool": TOOL, "reward": REWARD, "user": USER}
CASES = {f"{kind} {name}": body for kind, bodies in KINDS.items() for name, body in bodies.items()}
ENDING = {
    "agent exits": "os._exit(3)",
    "agent crashes": "import ctypes\nctypes.string_at(0)",
    "agent is killed": "os.kill(os.getpid(), 9)",
    "agent stops answering": "import ctypes\nctypes.PyDLL(None).sleep(60)",
    "tool exits": "os._exit(3)",
    "agent has no files": "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))",
    "agent writes no files": "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))",
    "agent closes files": "os.closerange(3, 200)",
    "agent moves away": "os.chdir('/')",
    "agent takes signals": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "agent lowers the recursion limit": "sys.setrecursionlimit(120)",
    "agent breaks JSON": "json.dumps = None",
}
"""These end or spoil their process, and are played with ``--workers`` only.

A function of a ``PyDLL`` holds the interpreter's lock, as a regular expression that backtracks does.
"""
HEAD = f"""
LONG = "x" * {often(50_000_000, 2_000_000)}  # more than any limit
import asyncio, json, os, sys, threading, time
from reward_kit import RewardOutput, reward_function
from reward_kit.agent import RolloutStopped, Usage
from reward_kit.errors import SimulatedUserError, StorageError
"""
TOOLS = """
from reward_kit.agent import ToolRegistry
R = ToolRegistry("odd")

@R.tool(parameters={})
async def good(db):
    await asyncio.sleep(0.2)
    await db.execute("INSERT INTO bookings VALUES ('b', 1, 'Alice', 'paid')")
    return "good"

@R.tool(parameters={"text": str})
async def echo(text):
    return text
"""
CALLED = """
@R.tool(parameters={})
async def odd(rollout):
    return await ODD[rollout.metadata["case"]](rollout)
"""
REWARD_HEAD = """
@reward_function
def evaluate(messages, *, db, end_goal_sql, metadata=None, rollout=None, **kwargs):
    act = ODD.get((metadata or {}).get("case"))
    if act is not None:
        return act(rollout)
    return RewardOutput(score=float(db.execute(end_goal_sql).scalar_one()), reason="judged")
"""
PLAYERS = """
class Agent:
    async def respond(self, rollout):
        case = rollout.metadata.get("case", "")
        if case.startswith("agent ") and rollout.turns == 1:
            reply = await ODD[case](rollout)
            if reply is not None:
                return reply
        else:
            if case.startswith("tool "):
                await rollout.call_tool("odd", {})
            await rollout.call_tool("good", {})
        return "Done"

class User:
    async def respond(self, rollout):
        case = rollout.metadata.get("case", "")
        if case.startswith("user "):
            line = await ODD[case](rollout)
            if line is not None:
                return line
        return "###STOP###"
"""


def functions(kinds: tuple[str, ...], cases: dict[str, str], head: str) -> str:
    """Python text of a table ``ODD`` of the cases of these kinds."""
    text = []
    names = []
    for name, body in cases.items():
        if name.startswith(kinds):
            names.append(f"    {name!r}: odd_{len(names)},")
            text.append(f"{head} odd_{len(text)}(rollout):\n{indented(body)}\n")
    return "\n".join([*text, "ODD = {", *names, "}"])


def bundle_of(folder: Path, cases: dict[str, str]) -> Bundle:
    """A bundle with six sound rows, and one for each of the cases."""
    bundle = flight_bundle(folder)
    tool = functions(("tool",), cases, "async def")
    bundle.write("tools.py", f"{HEAD}{TOOLS}\n{tool}\n{CALLED}")
    bundle.write("reward.py", f"{HEAD}{functions(('reward',), cases, 'def')}\n{REWARD_HEAD}")
    bundle.write("own.py", f"{HEAD}{functions(('agent', 'user'), cases, 'async def')}\n{PLAYERS}")
    sound = [{"id": f"sound-{number}", "n_rollouts": 1} for number in range(NEIGHBOURS)]
    odd = [
        {"id": f"odd-{number}", "n_rollouts": 1, "max_steps": 5, "metadata": {"case": name}}
        for number, name in enumerate(cases)
    ]
    bundle.rows(*sound[: NEIGHBOURS // 2], *odd, *sound[NEIGHBOURS // 2 :])
    return bundle


OPTIONS = ("--agent", "own:Agent", "--user", "own:User", "--eval-id", "e", "--keep-db", "delta")
LIMITS = ("--timeout", "3", "--retries", "0", "--retry-user-errors", "0", "--max-concurrency", "100")


def played(folder: Path, cases: dict[str, str], *more: str) -> dict[str, Any]:
    """Play the cases beside the six; returns their outcomes once all has been checked and read."""
    bundle = bundle_of(folder, cases)
    arguments = ("agent-eval", "-d", "task.jsonl", *OPTIONS, *LIMITS, *more)
    ran = run_patched({"reward_kit.agent.evaluation.workers.HANG_GRACE": 2.0}, *arguments, cwd=bundle.folder)
    assert ran.code in (0, 1), ran.err
    if cases is not ENDING:  # of these Python itself tells how the process ended
        assert "Traceback" not in ran.out + ran.err
    runs = bundle.folder / "runs"
    stored = load_evaluation("e", runs)
    outcomes = {one.row_id: one for one in stored.outcomes if one.final}
    sound = {name: one.reward for name, one in outcomes.items() if name.startswith("sound-")}
    assert sound == {f"sound-{number}": 1.0 for number in range(NEIGHBOURS)}, ran.err
    for one in outcomes.values():
        json.dumps(load_rollout(f"e {one.row_id}#1", runs).to_json())
    odd = {name: outcomes[f"odd-{number}"] for number, name in enumerate(cases)}
    assert len(list(export("e", runs, unjudged=True))) == len(outcomes)
    assert run_command("rescore", "e", cwd=bundle.folder).code in (0, 1)
    return odd


@pytest.mark.parametrize("more", [(), ("--workers", "2")], ids=["in process", "workers"])
@pytest.mark.parametrize("kind", KINDS)
def test_six_neighbours_of_odd_code_score_1(tmp_path: Path, kind: str, more: tuple[str, ...]) -> None:
    odd = played(tmp_path, {f"{kind} {name}": body for name, body in KINDS[kind].items()}, *more)
    if kind == "agent":  # no agent leaves a rollout out of Pass^k
        unjudged = {name: one.stop_detail for name, one in odd.items() if one.reward is None}
        assert unjudged == {}


def test_six_neighbours_of_code_that_breaks_its_process_score_1(tmp_path: Path) -> None:
    played(tmp_path, ENDING, "--workers", "2")
