"""``export --format tau2``: τ²-bench loads the file, accepts it as a submission, and grades it as we do."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from oracle import CHECKOUT, PYTHON, missing

from reward_kit.cli import main

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
JUDGED_AGAIN = 12


@pytest.mark.parametrize(("domain", "tasks"), [("retail", 114), ("telecom", 114)])
def test_an_export_is_a_submission(
    domain: str, tasks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_JUDGE", "none")
    monkeypatch.chdir(tmp_path)
    source = ["--source", CHECKOUT] if CHECKOUT else []
    assert main(["port", "tau2", "--domain", domain, ".", *source]) == 0
    bundle = f"tau2_{domain}"
    assert (
        main(["agent-eval", bundle, "--agent", "gold", "--no-sim-user", "--eval-id", "gold", "--quiet"]) == 0
    )
    assert main(["export", "gold", "--format", "tau2", "--out", "ours.json"]) == 0
    program = [PYTHON, str(Path(__file__).with_name("their_results.py")), "ours.json", str(JUDGED_AGAIN)]
    done = subprocess.run(program, env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rewards = found.pop("rewards")
    assert found == {"tasks": True, "trials": True, "pass^1": 1.0}
    assert rewards == [[1.0, 1.0]] * JUDGED_AGAIN
    assert main(["port", "results", "ours.json", "--dataset", bundle, "--eval-id", "again"]) == 0
    results = json.loads(Path("runs/evals/again.json").read_text(encoding="utf-8"))
    assert results["agreement"]["compared"] == tasks
    assert results["agreement"]["different_results"] == []
