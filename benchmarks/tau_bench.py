"""Ported bundles against τ-bench and τ²-bench: their tasks, the gold actions, the reward.

    git clone https://github.com/sierra-research/tau-bench DIR
    git clone https://github.com/sierra-research/tau2-bench DIR2
    python benchmarks/tau_bench.py [--checkout DIR] [--tau2 DIR2] [--tasks 115] [--repeats 3]

CPU time per rollout, all threads and child processes counted; each measurement in a process of its own, in
turn:

- *bundle*: ``evaluate`` with the gold agent: fork, tool calls, ground truth, reward; outcome, trajectory and
  final state stored. With one and with four rollouts of each row, after another evaluation in the same runs
  folder, which keeps the ground truth's states; with one also as the first there, which replays the ground
  truth. Against τ-bench on ``task_classic.jsonl`` of the retail bundle, which holds the benchmark's own
  tasks; against τ²-bench on the bundles that ``reward-kit port tau2`` writes.
- *τ-bench*: its retail environment, made anew for each task as its runner does; the gold actions are its
  steps. A user without a model gives the instruction and then stops, upon which it computes the reward. It
  stores nothing.
- *τ²-bench*: the gold actions are calls in a new environment, and ``evaluate_simulation`` judges them,
  without the sentences that need a model. It stores nothing.

Imports and one task to warm up are not counted. τ-bench needs LiteLLM, which the package depends on;
τ²-bench runs in the interpreter with its dependencies that ``make test-tau2`` sets up (``TAU2_PYTHON`` names
another). With ``--tau2`` also the time of ``reward-kit port tau2 --domain all``, and of ``reward-kit
validate`` with the 2 285 rows of telecom.
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
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATASET = ROOT / "tau_retail_task" / "task_classic.jsonl"
STOP = "###STOP###"
TAU2_PYTHON = os.environ.get("TAU2_PYTHON", str(ROOT / ".venv-tau2" / "bin" / "python"))
TAU2_DOMAINS = ("airline", "retail", "telecom", "banking_knowledge")
CASES = {
    "1 rollout a row, the first": ("1", "--first"),
    "1 rollout a row": ("1",),
    "4 rollouts a row": ("4",),
}


def measure_bundle(dataset: Path, tasks: int, rollouts: int, *, first: bool) -> float:
    """CPU milliseconds per rollout."""
    from reward_kit.agent import evaluate

    os.environ["MODEL_JUDGE"] = "none"

    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"agent": "gold", "no_sim_user": True, "quiet": True, "output_dir": folder}
        evaluate(dataset, **options, max_tasks=1 if first else tasks)
        started = _cpu_seconds()
        result = evaluate(dataset, **options, max_tasks=tasks, n_rollouts=rollouts)
        seconds = _cpu_seconds() - started
    played = len(result.outcomes)
    if not played or played > tasks * rollouts:
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


def measure_tau2_bench(checkout: Path, domain: str, tasks: int) -> float:
    """CPU milliseconds per task."""
    sys.path.insert(0, str(checkout / "src"))
    os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "TAU2_DATA_DIR": str(checkout / "data")}
    os.environ.setdefault("LOGURU_LEVEL", "CRITICAL")
    from tau2.data_model.message import AssistantMessage, ToolCall, UserMessage
    from tau2.data_model.simulation import SimulationRun
    from tau2.data_model.tasks import RewardType
    from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
    from tau2.registry import registry
    from tau2.runner.build import _derive_read_log_allowlist

    def play(task: Any) -> float:
        options: dict[str, Any] = {}
        if domain == "banking_knowledge":
            options = {
                "retrieval_variant": "bm25_grep",
                "read_log_allowlist": _derive_read_log_allowlist(task),
            }
        environment = registry.get_env_constructor(domain)(**options)
        start, criteria = task.initial_state, task.evaluation_criteria
        messages: list[Any] = list(start.message_history or []) if start else []
        if start:
            environment.set_state(start.initialization_data, start.initialization_actions, messages)
        for number, action in enumerate(criteria.actions or []):
            call = ToolCall(
                id=str(number), name=action.name, arguments=action.arguments, requestor=action.requestor
            )
            kind = UserMessage if action.requestor == "user" else AssistantMessage
            messages.append(kind(role=action.requestor, content=None, tool_calls=[call]))
            messages.append(environment.get_response(call))
        said = " ".join(criteria.communicate_info or []) or "Done."
        messages.append(AssistantMessage(role="assistant", content=said))
        criteria.reward_basis = [one for one in criteria.reward_basis if one != RewardType.NL_ASSERTION]
        times = {"start_time": "", "end_time": "", "duration": 0.0}
        run = SimulationRun(
            id="run", task_id=task.id, termination_reason="user_stop", messages=messages, **times
        )
        kind_of_judgement = EvaluationType.ALL
        info = evaluate_simulation(run, task, kind_of_judgement, False, domain, env_kwargs=options)
        return float(info.reward)

    load = registry.get_tasks_loader(domain)
    chosen = load()[:tasks]
    play(chosen[0])
    started = _cpu_seconds()
    rewards = [play(task) for task in chosen]
    seconds = _cpu_seconds() - started
    if sum(rewards) < 0.7 * len(chosen):
        raise SystemExit(f"only {sum(rewards):.0f} of {len(chosen)} gold runs earned the reward")
    return 1000 * seconds / len(chosen)


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _in_own_process(*arguments: str, python: str = sys.executable) -> float:
    done = subprocess.run([python, __file__, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _timed(*arguments: str) -> tuple[float, float]:
    """CPU and wall seconds of a command of the package."""
    cpu, wall = _cpu_seconds(), perf_counter()
    command = [sys.executable, "-m", "reward_kit", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return _cpu_seconds() - cpu, perf_counter() - wall


def _print_medians(title: str, name: str, theirs: list[float], ours: dict[str, list[float]]) -> None:
    print(title)
    print(f"  {name:35}{median(theirs):8.2f} ms")
    for case, found in ours.items():
        ratio = median(theirs) / median(found)
        print(f"  {'bundle, ' + case:35}{median(found):8.2f} ms  {ratio:.0f}x less", flush=True)


def compare_with_tau_bench(options: argparse.Namespace) -> None:
    """Retail in τ-bench's own environment, and as a bundle."""
    theirs: list[float] = []
    ours: dict[str, list[float]] = {name: [] for name in CASES}
    count = ("--tasks", str(options.tasks))
    for _ in range(options.repeats):
        theirs.append(_in_own_process("--measure", "tau-bench", "--checkout", str(options.checkout), *count))
        for name, chosen in CASES.items():
            ours[name].append(_in_own_process("--measure", "bundle", *count, "--rollouts", *chosen))
    title = f"{options.tasks} tasks, medians of {options.repeats}, CPU per rollout"
    _print_medians(title, "τ-bench", theirs, ours)


def compare_with_tau2_bench(options: argparse.Namespace, folder: Path) -> None:
    """The domains of τ²-bench in its own environment, and as ported bundles."""
    cpu, wall = _timed("port", "tau2", "--domain", "all", str(folder), "--source", str(options.tau2))
    print(f"port tau2 --domain all: {cpu:.1f} s of CPU, {wall:.1f} s")
    cpu, wall = _timed("validate", str(folder / "tau2_telecom" / "task_full.jsonl"))
    print(f"validate tau2_telecom/task_full.jsonl: {cpu:.1f} s of CPU, {wall:.1f} s", flush=True)
    count = ("--tasks", str(options.tasks))
    for domain in options.domains.split(","):
        theirs: list[float] = []
        ours: dict[str, list[float]] = {name: [] for name in CASES}
        named = ("--tau2", str(options.tau2), "--domains", domain)
        dataset = ("--dataset", str(folder / f"tau2_{domain}" / "task.jsonl"))
        for _ in range(options.repeats):
            theirs.append(_in_own_process("--measure", "tau2-bench", *named, *count, python=TAU2_PYTHON))
            for name, chosen in CASES.items():
                ours[name].append(
                    _in_own_process("--measure", "bundle", *dataset, *count, "--rollouts", *chosen)
                )
        title = f"{domain}: up to {options.tasks} tasks, medians of {options.repeats}, CPU per rollout"
        _print_medians(title, "τ²-bench", theirs, ours)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkout", type=Path, help="a clone of sierra-research/tau-bench")
    parser.add_argument("--tau2", type=Path, help="a clone of sierra-research/tau2-bench")
    parser.add_argument("--domains", default=",".join(TAU2_DOMAINS), help="of τ²-bench, with commas")
    parser.add_argument("--tasks", type=int, default=115)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", choices=["bundle", "tau-bench", "tau2-bench"], help=argparse.SUPPRESS)
    parser.add_argument("--dataset", type=Path, default=DATASET, help=argparse.SUPPRESS)
    parser.add_argument("--rollouts", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--first", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure == "bundle":
        print(
            json.dumps(measure_bundle(options.dataset, options.tasks, options.rollouts, first=options.first))
        )
        return
    clones = {"tau_bench": (options.checkout, "tau-bench"), "src/tau2": (options.tau2, "tau2-bench")}
    for part, (folder, name) in clones.items():
        if folder is not None and not (folder / part).is_dir():
            parser.error(f"no folder {part} in {folder}: it is no clone of sierra-research/{name}")
    if options.measure == "tau-bench":
        print(json.dumps(measure_tau_bench(options.checkout, options.tasks)))
        return
    if options.measure == "tau2-bench":
        print(json.dumps(measure_tau2_bench(options.tau2, options.domains, options.tasks)))
        return
    if options.checkout is None and options.tau2 is None:
        print("skipped: name a clone of sierra-research/tau-bench with --checkout, of tau2-bench with --tau2")
    if options.checkout is not None:
        compare_with_tau_bench(options)
    if options.tau2 is not None:
        if not Path(TAU2_PYTHON).is_file():
            parser.error(f"no interpreter {TAU2_PYTHON}: run make test-tau2, or set TAU2_PYTHON")
        with tempfile.TemporaryDirectory() as folder:
            compare_with_tau2_bench(options, Path(folder))


if __name__ == "__main__":
    main()
