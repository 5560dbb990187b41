"""The workflow of ``examples/ci``: its steps as a runner runs them, offline, with pip and gh replaced."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command import run_command, stand_in
from flight_bundle import GOLD, flight_bundle

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
WORKFLOW = Path(__file__).parents[2] / "examples" / "ci" / "agent-gate.yml"
COMMENT = "gh pr comment 7 --body-file comment.md --edit-last --create-if-none"


@pytest.mark.parametrize(
    ("options", "failed", "said"),
    [
        ("--agent lazy:answer", "Judge", "Worse"),
        ("--agent gold --margin 60", None, "Better or equal"),
        ("--agent gold --max-cost 0", None, "Cannot tell"),
        ("--agent nobody", "Evaluate", None),
    ],
)
def test_its_steps_pass_or_fail_and_comment(tmp_path: Path, options: str, failed: Any, said: Any) -> None:
    flight_bundle(tmp_path).rows(*({"id": name, "actions": GOLD} for name in "abc"))
    (tmp_path / "lazy.py").write_text("async def answer(rollout):\n    return 'Sorry.'\n")
    evaluate = "agent-eval -d flight_task --no-sim-user --quiet --agent gold --eval-id main"
    for command in (evaluate, "export main --format card --out baseline.json"):
        assert run_command(*command.split(), cwd=tmp_path).code == 0
    for name in ("pip", "gh"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >> called\n')
        (tmp_path / name).chmod(0o755)
    stand_in(tmp_path)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    wheel = "./reward_kit-0.5.0-py3-none-any.whl"
    given = {
        "BUNDLE": "flight_task",
        "REWARD_KIT": wheel,
        "OPTIONS": f"--no-sim-user {options}",
        "NUMBER": "7",
    }
    environment = {**os.environ, **given, "PATH": path, "GITHUB_STEP_SUMMARY": "summary.md"}
    ended: dict[str, int] = {}
    output = ""
    for step in yaml.safe_load(WORKFLOW.read_text())["jobs"]["gate"]["steps"]:
        condition = step.get("if", "" if any(ended.values()) else "always()")
        if "run" in step and "always()" in condition:
            if "hashFiles('comment.md')" in condition and not (tmp_path / "comment.md").exists():
                continue
            line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
            done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
            ended[step["name"]] = done.returncode
            output += done.stdout + done.stderr
    assert [name for name, code in ended.items() if code] == [failed] * bool(failed), output
    called = [f"pip install {wheel}", *[COMMENT] * bool(said)]
    assert (tmp_path / "called").read_text().splitlines() == called
    if said is not None:
        assert (tmp_path / "summary.md").read_text().startswith(f"### {said}: `pr` against `main`")
        assert ("::warning::" in output) == (said == "Cannot tell")
