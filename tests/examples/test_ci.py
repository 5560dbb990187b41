"""The workflow of ``examples/ci``: its steps as a runner runs them, offline, with pip and gh replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import run_command
from flight_bundle import GOLD, flight_bundle

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
WORKFLOW = Path(__file__).parents[2] / "examples" / "ci" / "agent-gate.yml"
LAZY = "async def answer(rollout):\n    return 'Sorry.'\n"


@pytest.mark.parametrize(
    ("options", "codes", "said"),
    [
        ("--agent lazy:answer", {"Judge": 1}, "### Worse: `pr` against `main`"),
        ("--agent gold --margin 60", {}, "### Better or equal: `pr` against `main`"),
        ("--agent gold --max-cost 0", {}, "### Cannot tell: `pr` against `main`"),
        ("--agent nobody", {"Evaluate": 1}, None),
    ],
)
def test_its_steps_pass_or_fail_and_comment(
    tmp_path: Path, options: str, codes: dict[str, int], said: str | None
) -> None:
    flight_bundle(tmp_path).rows(*({"id": name, "actions": GOLD, "n_rollouts": 4} for name in "abc"))
    (tmp_path / "lazy.py").write_text(LAZY)
    common = ("--no-sim-user", "--quiet", "--agent", "gold", "--eval-id", "main")
    assert run_command("agent-eval", "-d", "flight_task", *common, cwd=tmp_path).code == 0
    written = run_command("gate", "--baseline", "baseline.json", "--write-baseline", "main", cwd=tmp_path)
    assert written.code == 0, written.err
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("pip", "gh"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> called\n')
        (programs / name).chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "BUNDLE": "flight_task", "GITHUB_STEP_SUMMARY": "summary.md",
                   "OPTIONS": f"--no-sim-user {options}", "NUMBER": "7"}  # fmt: skip
    (job,) = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    ended, output = {}, ""
    for step in job["steps"]:
        always = "always()" in step.get("if", "")
        if "run" not in step or (any(ended.values()) and not always):
            continue
        if "hashFiles('comment.md')" in step.get("if", "") and not (tmp_path / "comment.md").exists():
            continue
        line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        ended[step["name"]] = done.returncode
        output += done.stdout + done.stderr
    failed = {name: code for name, code in ended.items() if code}
    assert failed == codes, output
    called = (tmp_path / "called").read_text().splitlines()
    assert called[0] == "pip install reward-kit"
    if said is None:
        assert len(called) == 1
        return
    assert called[1] == "gh pr comment 7 --body-file comment.md --edit-last --create-if-none"
    assert (tmp_path / "summary.md").read_text().startswith(said)
    assert ("::warning::" in output) == ("Cannot tell" in said)
