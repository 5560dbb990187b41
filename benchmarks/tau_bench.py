"""The retail bundle against τ-bench and τ²-bench: retail tasks, their gold actions, the reward.

    git clone https://github.com/sierra-research/tau-bench DIR
    git clone https://github.com/sierra-research/tau2-bench DIR2
    python benchmarks/tau_bench.py --checkout DIR [--tau2 DIR2] [--tasks 115] [--repeats 3]

CPU time per rollout, all threads and child processes counted; each measurement in a process of its own, in
turn:

- *bundle*: ``evaluate`` with the gold agent on ``task_classic.jsonl``, which holds the benchmark's own tasks:
  fork, tool calls, ground truth, reward; outcome, trajectory and final state stored. With one and with four
  rollouts of each row, after another evaluation in the same runs folder, which keeps the ground truth's
  states; with one also as the first there, which replays the ground truth.
- *τ-bench*: its retail environment, made anew for each task as its runner does; the gold actions are its
  steps. A user without a model gives the instruction and then stops, upon which it computes the reward. It
  stores nothing.
- *τ²-bench*: its own 114 retail tasks. The gold actions are calls in a new environment, and its evaluator of
  the final data judges them. It stores nothing.

Imports and one task to warm up are not counted. τ-bench needs LiteLLM, which the package depends on; the
dependencies of τ²-bench have to be importable (``PYTHONPATH``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATASET = ROOT / "tau_retail_task" / "task_classic.jsonl"
STOP = "###STOP###"


def measure_bundle(tasks: int, rollouts: int, *, first: bool) -> float:
    """CPU milliseconds per rollout."""
    from reward_kit.agent import evaluate

    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"agent": "gold", "no_sim_user": True, "quiet": True, "output_dir": folder}
        evaluate(DATASET, **options, max_tasks=1 if first else tasks)
        started = _cpu_seconds()
        result = evaluate(DATASET, **options, max_tasks=tasks, n_rollouts=rollouts)
        seconds = _cpu_seconds() - started
    played = len(result.outcomes)
    if played != tasks * rollouts:
        raise SystemExit(f"{played} rollouts instead of {tasks * rollouts}")
    return 1000 * seconds / played


def measure_tau_bench(checkout: Path, tasks: int) -> float:
    """CPU milliseconds per task."""
    sys.path.insert(0, str(checkout))
    from tau_bench.envs.retail import MockRetailDomainEnv
    from tau_bench.envs.user import UserStrategy
    from tau_bench.types import Action

    class Customer:
        """A user that gives the instruction, and then stops."""

        def reset(self, instruction: str | None = None) -> str:
            return instruction or ""

        def step(self, content: str) -> str:  # noqa: ARG002 - the benchmark's signature
            return STOP

        def get_total_cost(self) -> float:
            return 0.0

    def play(index: int) -> float:
        env = MockRetailDomainEnv(UserStrategy.HUMAN, task_split="test", task_index=index)
        env.user = Customer()
        env.reset(task_index=index)
        for action in env.task.actions:
            answer = env.step(action)
            if answer.done:
                return float(answer.reward)
        reply = " ".join(env.task.outputs) or "Done."
        return float(env.step(Action(name="respond", kwargs={"content": reply})).reward)

    play(0)
    started = _cpu_seconds()
    rewards = [play(index) for index in range(tasks)]
    seconds = _cpu_seconds() - started
    if sum(rewards) < 0.9 * tasks:
        raise SystemExit(f"only {sum(rewards):.0f} of {tasks} gold runs earned the reward")
    return 1000 * seconds / tasks


def measure_tau2_bench(checkout: Path, tasks: int) -> float:
    """CPU milliseconds per task."""
    sys.path.insert(0, str(checkout / "src"))
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network
    from tau2.data_model.message import AssistantMessage, ToolCall
    from tau2.domains.retail.environment import get_environment, get_tasks
    from tau2.evaluator.evaluator_env import EnvironmentEvaluator

    def play(task: Any) -> float:
        environment = get_environment()
        messages: list[Any] = []
        for number, action in enumerate(task.evaluation_criteria.actions or []):
            call = ToolCall(
                id=str(number), name=action.name, arguments=action.arguments, requestor=action.requestor
            )
            messages.append(AssistantMessage(role="assistant", content=None, tool_calls=[call]))
            messages.append(environment.get_response(call))
        return float(EnvironmentEvaluator.calculate_reward(get_environment, task, messages).reward)

    chosen = get_tasks("base")[:tasks]
    play(chosen[0])
    started = _cpu_seconds()
    rewards = [play(task) for task in chosen]
    seconds = _cpu_seconds() - started
    if sum(rewards) < 0.9 * len(chosen):
        raise SystemExit(f"only {sum(rewards):.0f} of {len(chosen)} gold runs earned the reward")
    return 1000 * seconds / len(chosen)


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _in_own_process(*arguments: str) -> float:
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkout", type=Path, help="a clone of sierra-research/tau-bench")
    parser.add_argument("--tau2", type=Path, help="a clone of sierra-research/tau2-bench")
    parser.add_argument("--tasks", type=int, default=115)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", choices=["bundle", "tau-bench", "tau2-bench"], help=argparse.SUPPRESS)
    parser.add_argument("--rollouts", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--first", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure == "bundle":
        print(json.dumps(measure_bundle(options.tasks, options.rollouts, first=options.first)))
        return
    if options.checkout is None:
        print("skipped: name a clone of sierra-research/tau-bench with --checkout")
        return
    if not (options.checkout / "tau_bench").is_dir():
        parser.error(
            f"no folder tau_bench in {options.checkout}: it is no clone of sierra-research/tau-bench"
        )
    if options.measure == "tau-bench":
        print(json.dumps(measure_tau_bench(options.checkout, options.tasks)))
        return
    if options.measure == "tau2-bench":
        print(json.dumps(measure_tau2_bench(options.tau2, options.tasks)))
        return
    count = ("--tasks", str(options.tasks))
    checkout = ("--checkout", str(options.checkout))
    theirs: list[float] = []
    tau2: list[float] = []
    cases = {
        "1 rollout a row, the first": ("1", "--first"),
        "1 rollout a row": ("1",),
        "4 rollouts a row": ("4",),
    }
    ours: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(options.repeats):
        theirs.append(_in_own_process("--measure", "tau-bench", *checkout, *count))
        if options.tau2 is not None:
            second = ("--tau2", str(options.tau2))
            tau2.append(_in_own_process("--measure", "tau2-bench", *checkout, *second, *count))
        for name, chosen in cases.items():
            ours[name].append(_in_own_process("--measure", "bundle", *count, "--rollouts", *chosen))
    print(f"{options.tasks} tasks, medians of {options.repeats}, CPU per rollout")
    print(f"{'τ-bench':35}{median(theirs):8.2f} ms")
    if tau2:
        print(f"{'τ²-bench':35}{median(tau2):8.2f} ms")
    for name, found in ours.items():
        ratio = median(theirs) / median(found)
        print(f"{'bundle, ' + name:35}{median(found):8.2f} ms  {ratio:.0f}x less")


if __name__ == "__main__":
    main()
