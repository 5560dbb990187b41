"""A ``reward.py`` that does its worst: it costs its own rollouts, and nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest
from flight_bundle import GOLD, Bundle
from hostile import GOLD_RUN, VALIDATE, Ran, indented, row_for_each_reward

Command = Callable[..., Ran]
Writer = Callable[..., None]
ONCE = {"n_rollouts": 1}
FAULTY = [
    ("import sys; sys.exit(0)", "SystemExit"),
    ("class Own(BaseException): pass\nraise Own('x')", "Own: x"),
    ("raise KeyboardInterrupt", "Interrupt"),
    ("import asyncio\nraise asyncio.CancelledError", "CancelledError"),
    ("raise GeneratorExit", "GeneratorExit"),
    ("from reward_kit.agent.rollout import RolloutStopped\nraise RolloutStopped('x')", "RolloutStopped"),
    ("return evaluate(messages, db=db, **kwargs)", "RecursionError"),
    ("return {'score': float('nan')}", "nan"),
    ("return {'score': float('inf')}", "inf"),
    ("return {'score': 10**400}", "score"),
    ("return lambda: 1", "function"),
    ("yield 1", "generator"),
    ("class R:\n  def __repr__(self): raise ValueError\nreturn R()", "repr() failed"),
    ("class E(Exception):\n  def __str__(self): raise ValueError\nraise E", "E"),
    ("return {'score': 1.0, 'metrics': {1: 2}}", "metrics"),
    ("from reward_kit import EvaluateResult\nreturn EvaluateResult.model_construct()", "cannot be read"),
]


def test_each_reward_that_fails_leaves_its_own_rollout_unjudged(agent_eval: Command, bundle: Bundle) -> None:
    sound = "return {'score': 1.0, 'reason': ''}"
    bodies = [sound, *(body for body, _ in FAULTY), sound]
    functions = [
        f"def f{number}(messages, *, db, **kwargs):\n{indented(body.replace('evaluate(', f'f{number}('))}"
        for number, body in enumerate(bodies)
    ]
    bundle.write("reward.py", "\n".join(functions))
    row_for_each_reward(bundle, len(bodies))
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert ran.code == 1
    assert (ran.result["status"], ran.result["finished"]) == ("complete", len(bodies))
    assert ran.result["unjudged"] == {"reward_error": len(FAULTY)}
    assert ran.result["score"] == 1.0
    for number, (_, part) in enumerate(FAULTY, start=1):
        (line,) = (line for line in ran.err.splitlines() if line.startswith(f"row{number} #1 not judged"))
        assert f"f{number}" in line
        assert part in line


def test_an_async_reward_that_closes_itself_leaves_the_others_alone(
    agent_eval: Command, bundle: Bundle
) -> None:
    bundle.write(
        "reward.py",
        "async def closes(messages, **kwargs):\n    raise GeneratorExit\n"
        "def evaluate(messages, **kwargs):\n    return {'score': 1.0, 'reason': ''}\n",
    )
    bundle.rows(
        {"id": "closes", "reward": "flight_task.reward:closes", "actions": GOLD, "n_rollouts": 1},
        {"id": "sound", "actions": GOLD, "n_rollouts": 2},
    )
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.code, ran.result["finished"], ran.result["score"]) == (1, 3, 1.0)
    assert ran.result["unjudged"] == {"reward_error": 1}
    assert "raised reward.py:2: GeneratorExit" in ran.err


@pytest.mark.parametrize("body", ["raise KeyboardInterrupt", "class B(BaseException): pass\nraise B"])
def test_validation_names_a_reward_that_fails(agent_eval: Command, reward: Writer, body: str) -> None:
    reward(body)
    ran = agent_eval(*VALIDATE)
    ran.tidy()
    assert ran.code == 2
    assert "the gold actions cannot be judged" in ran.out


UNABASHED = [
    "import os; os.chdir('/')",
    "import os; os.fork()",
    "import sys; sys.stdout.close()",
    "import sys; sys.stdout = None",
    "getattr(db, 'close', lambda: None)(); kwargs['rollout'].database.close()",
    "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()",
    "import pathlib\nfor p in pathlib.Path(__file__).parent.glob('*.*'): p.unlink(missing_ok=True)",
]


@pytest.mark.parametrize(
    "body", UNABASHED, ids=["chdir", "fork", "stdout", "no-stdout", "database", "thread", "unlink"]
)
def test_a_reward_that_meddles_and_scores_is_a_reward(agent_eval: Command, reward: Writer, body: str) -> None:
    reward(f"{body}\nreturn {{'score': 1.0, 'reason': ''}}")
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert ran.code == 0, ran.err
    assert (ran.result["finished"], ran.result["score"]) == (2, 1.0)
    assert ran.out.count("results   runs/evals/") == 1


def test_what_a_reward_does_to_its_arguments_stays_with_it(
    agent_eval: Command, bundle: Bundle, reward: Writer
) -> None:
    reward(
        "for message in messages:\n"
        "  for call in message.get('tool_calls') or ():\n"
        "    call['function']['name'] = 'forged'\n"
        "  message['content'] = 'forged'\n"
        "kwargs['actions'][0]['arguments'].clear()\n"
        "kwargs['metadata']['list'].append('forged')\n"
        "kwargs['own']['deep'].append('forged')\n"
        "return {'score': float(kwargs['metadata']['list'] == ['forged']), 'reason': ''}"
    )
    bundle.rows({"actions": GOLD, "n_rollouts": 3, "metadata": {"list": []}, "own": {"deep": []}})
    ran = agent_eval(*GOLD_RUN, "--max-concurrency", "1")
    ran.tidy()
    assert ran.result["score"] == 1.0, "a later rollout saw what an earlier reward had done"
    for path in bundle.folder.glob("runs/flight.booking.001/roll_*.json"):
        assert "forged" not in path.read_text().replace('"forged"]', ""), path
        record = json.loads(path.read_text())
        assert record["fields"]["own"] == {"deep": []}


@pytest.mark.parametrize("score", ["sys.float_info.max", "-sys.float_info.max"])
def test_rewards_near_the_largest_number_are_reported(
    agent_eval: Command, bundle: Bundle, reward: Writer, score: str
) -> None:
    reward(f"import sys\nreturn {{'score': {score} if kwargs['id'] == 'huge' else 1.0}}")
    bundle.rows(*({"id": name, "actions": GOLD, "n_rollouts": 2} for name in ("huge", "sound")))
    for options in ((*GOLD_RUN, "--eval-id", "e"), ("--resume", "e")):
        ran = agent_eval(*options)
        ran.tidy()
        assert (ran.code, ran.result["status"]) == (0, "complete"), ran.err
        assert abs(ran.result["averages"]["reward"]["value"]) == pytest.approx(sys.float_info.max / 2)
        assert max(map(len, ran.out.splitlines())) < 150, "no number of three hundred digits"


def test_a_reward_of_huge_or_odd_values_is_kept_as_text(agent_eval: Command, reward: Writer) -> None:
    reward("return {'score': 1.0, 'reason': '\\ud800' + 'x' * 5_000_000, 'extra': object()}")
    ran = agent_eval(*GOLD_RUN)
    ran.tidy()
    assert (ran.code, ran.result["score"]) == (0, 1.0)


def test_a_reward_that_removes_the_results_is_told_as_a_fault_of_the_disk(
    agent_eval: Command, reward: Writer
) -> None:
    reward(
        "import shutil, pathlib\nshutil.rmtree(pathlib.Path(__file__).parent / 'runs')\n"
        "return {'score': 1.0, 'reason': ''}"
    )
    ran = agent_eval(*GOLD_RUN)
    ran.refused("cannot be written")
