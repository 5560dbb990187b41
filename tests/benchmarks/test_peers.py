"""The comparison with other harnesses: our own part of it runs, and its table tells what was measured."""

import json
from pathlib import Path

from command import new_python

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"


def test_our_harness_plays_the_whole_task_and_writes_its_figures(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    script = PEERS / "harnesses" / "with_reward_kit.py"
    done = new_python(script, "--rollouts", "3", "--at-once", "2", "--out", out, timeout=120)
    assert done.code == 0, done.err
    figures = json.loads(out.read_text())
    assert figures["rollouts"] == 3
    assert figures["saved_bytes"] > 0


def test_a_rollout_that_does_less_than_the_task_is_refused() -> None:
    lines = [
        "import conversation",
        "conversation.COUNTER.model_turns, conversation.COUNTER.tool_calls = 19, 16",
        "conversation.COUNTER.check(passed=2, rollouts=2)",
    ]
    done = new_python("-c", "\n".join(lines), cwd=PEERS / "harnesses")
    assert "(19, 16, 2) instead of (20, 16, 2)" in done.err
