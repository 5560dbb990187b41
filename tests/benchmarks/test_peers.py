"""The comparison with other harnesses: our own part of it runs, and its table tells what was measured."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"


def test_our_harness_plays_the_whole_task_and_writes_its_figures(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    script = PEERS / "harnesses" / "with_reward_kit.py"
    done = subprocess.run(
        [sys.executable, str(script), "--rollouts", "3", "--at-once", "2", "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert figures["rollouts"] == 3
    assert figures["saved_bytes"] > 0


def test_a_rollout_that_does_less_than_the_task_is_refused() -> None:
    lines = [
        "import conversation",
        "conversation.COUNTER.model_turns, conversation.COUNTER.tool_calls = 19, 16",
        "conversation.COUNTER.check(passed=2, rollouts=2)",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=PEERS / "harnesses",
    )
    assert "(19, 16, 2) instead of (20, 16, 2)" in done.stderr


def test_the_table_shows_medians_and_says_where_runs_failed_or_are_few() -> None:
    def run(wall: float) -> dict[str, Any]:
        return {"rollouts": 10, "wall_s": wall, "cpu_s": 1.0, "rss_peak_kb": 4096, "rss_before_kb": 2048}

    starts = {"import": [0.1, 0.3, 0.2], "help": [None], "small": []}
    one = {"asked": 3, "runs": {"saved": [run(1.0), run(5.0), run(2.0)], "7 at once": [run(4.0)]}, **starts}
    other = {"asked": 3, "runs": {"saved": [{"failed": "over 9 s"}]}, **starts}
    table = _table_module().make_table({"contenders": {"one": one, "other": other}}, [7], ideal=2.0)
    rows = {
        line.split(" | ")[0].strip("| "): line.rstrip(" |").split(" | ")[1:] for line in table.splitlines()
    }
    assert rows["rollouts/s, saved"] == ["5", "over 9 s"]
    assert rows["7 at once: / ideal"] == ["2.00 (1)", "not run"]
    assert rows["import, s"] == ["0.20", "0.20"]
    assert rows["`--help`, s"] == ["failed", "failed"]


def _table_module() -> Any:
    spec = importlib.util.spec_from_file_location("peers_table", PEERS / "table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
