"""A ``reward.py`` that does its worst costs its own rollouts; a module that fails on import is one error."""

import pytest
from flight_bundle import Bundle
from hostile import GOLD_RUN, VALIDATE, Command, Writer, indented, row_for_each_reward

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
    ("class R:\n  def __repr__(self): raise ValueError\nreturn R()", "returned <"),
    ("class R:\n  def __repr__(self): raise ValueError\nreturn {'score': R()}", "'score' is <"),
    ("return {'score': 1.0, 'reason': 10**5000}", "'reason' is <int object"),
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
        assert "reward.py" in line
        assert f"f{number}" in line
        assert part in line


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        ("import sys; sys.exit(0)", ["tools.py:1", "SystemExit", "must not exit"]),
        ("import os\nraise ValueError(os.environ['SHOP_TOKEN'])", ["tools.py:2: ValueError: [hidden]"]),
    ],
    ids=["exit", "secret"],
)
def test_one_error_with_the_line(
    agent_eval: Command, tools: Writer, monkeypatch: pytest.MonkeyPatch, code: str, parts: list[str]
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "canary-4711")
    tools(code)
    agent_eval(*VALIDATE).refused("task.jsonl:1", "flight_task.tools", *parts)


def test_a_reward_without_a_signature_is_refused(agent_eval: Command, bundle: Bundle) -> None:
    bundle.write("reward.py", "evaluate = dict\n")
    agent_eval(*GOLD_RUN).refused("task.jsonl:1", "has no signature", "def evaluate(messages, *, db")
