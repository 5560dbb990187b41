"""A ``reward.py`` that does its worst: it costs its own rollouts, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable

from flight_bundle import GOLD, ROW, Bundle
from hostile import GOLD_RUN, Ran, indented, row_for_each_reward, trajectories

Command = Callable[..., Ran]
Writer = Callable[..., None]
ONCE = {"n_rollouts": 1}
FAULTY = [
    ("import sys; sys.exit(0)", "SystemExit"),
    ("class Own(BaseException): pass\nraise Own('x')", "Own: x"),
    ("import asyncio\nraise asyncio.CancelledError", "CancelledError"),
    (
        "from reward_kit.agent.rollout.rollout import RolloutStopped\nraise RolloutStopped('x')",
        "RolloutStopped",
    ),
    ("return evaluate(messages, db=db, **kwargs)", "RecursionError"),
    ("return {'score': float('nan')}", "nan"),
    ("return {'score': float('inf')}", "inf"),
    ("return {'score': 10**400}", "score"),
    ("return lambda: 1", "function"),
    ("yield 1", "generator"),
    ("class R:\n  def __repr__(self): raise ValueError\nreturn R()", "cannot be read"),
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
    records = trajectories(bundle, ROW["id"])
    assert len(records) == 3
    for record in records:
        assert "forged" not in json.dumps([record["messages"], record["fields"]])
