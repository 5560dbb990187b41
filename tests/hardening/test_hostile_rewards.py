"""A ``reward.py`` that does its worst: it costs its own rollouts, and nothing else."""

from flight_bundle import Bundle
from hostile import GOLD_RUN, Command, indented, row_for_each_reward

FAULTY = [
    ("raise KeyError('seat')", "KeyError: 'seat'"),
    ("return 0.5", "0.5"),
    ("return {'score': 'high'}", "score"),
    ("import sys; sys.exit(0)", "SystemExit"),
    ("class Own(BaseException): pass\nraise Own('x')", "Own: x"),
    ("import asyncio\nraise asyncio.CancelledError", "CancelledError"),
    ("return evaluate(messages, db=db, **kwargs)", "RecursionError"),
    ("return {'score': float('nan')}", "nan"),
    ("yield 1", "generator"),
    ("class R:\n  def __repr__(self): raise ValueError\nreturn R()", "ValueError"),
    ("return {'score': 1.0, 'metrics': {1: 2}}", "metrics"),
    ("from reward_kit import EvaluateResult\nreturn EvaluateResult.model_construct()", "AttributeError"),
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
