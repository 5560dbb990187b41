"""τ²-bench's own reading of a results file, as a program of its own: ``their_results.py FILE NUMBER``.

It prints JSON: whether its check of submissions finds the tasks and the trials right, Pass^1, and the rewards
in the file beside those that its evaluator gives the first NUMBER simulations (no model is asked).
"""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any


def read(path: str, number: int) -> dict[str, Any]:
    """Load the file, check it, and judge its first simulations again."""
    checks = importlib.import_module("tau2.scripts.leaderboard.verify_trajectories_public")
    evaluator = importlib.import_module("tau2.evaluator.evaluator")
    metrics = importlib.import_module("tau2.metrics.agent_metrics")
    results, is_valid, fault = checks.check_format(path)
    assert is_valid, fault
    tasks = {task.id: task for task in results.tasks}
    domain = results.info.environment_info.domain_name
    rewards = []
    for one in results.simulations[:number]:
        judged = evaluator.evaluate_simulation(
            one, tasks[one.task_id], evaluator.EvaluationType.ENV, solo_mode=False, domain=domain
        )
        rewards.append([one.reward_info.reward, judged.reward])
    passed = metrics.compute_metrics(results).pass_hat_ks[1]
    return {
        "tasks": checks.check_tasks(results)[0],
        "trials": checks.check_num_trials(results)[0],
        "pass^1": passed,
        "rewards": rewards,
    }


if __name__ == "__main__":
    if checkout := os.environ.get("TAU2_BENCH"):
        sys.path.insert(0, str(Path(checkout) / "src"))
        os.environ.setdefault("TAU2_DATA_DIR", str(Path(checkout) / "data"))
    sys.stdout.write(json.dumps(read(sys.argv[1], int(sys.argv[2]))))
