"""The same task in several harnesses: rollouts per second, CPU per turn, wall and ideal, memory, start-up.

    python benchmarks/peers/run.py [--only verifiers] [--repeats 3] [--json results.json] [--resume]

Each harness has a virtual environment of its own (made in ``.venv-peers``, or where PEERS_FOLDER says, on
first use) and plays ``harnesses/conversation.py``: ten model turns and eight tool calls per rollout. The
model is a stub in the process, at the harness's own extension point: no HTTP, no model client. Every run is
a fresh process, and the harnesses take turns, so that a busy machine slows all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from environments import CONTENDERS, FOLDER, Contender, make_environment
from scenarios import ANSWER_SECONDS, Scenario, run_once, scenarios, time_line
from table import TURNS, make_table

SMALL = Scenario("small", 1, 1, 0.0)


def main() -> None:
    arguments = parse_arguments()
    if arguments.show:
        show(json.loads(arguments.show.read_text()))
        return
    asked = [one for one in CONTENDERS if not arguments.only or one.distribution in arguments.only]
    results: dict[str, Any] = {
        "machine": machine(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "contenders": {},
        "missing": {},
    }
    if arguments.resume and arguments.json.exists():
        results = json.loads(arguments.json.read_text())
    results["crowds"] = arguments.crowds
    contenders = []
    for contender in asked:
        fault = make_environment(contender)
        if fault:
            results["missing"][contender.name] = fault
            print(f"{contender.name} does not install: {fault}", file=sys.stderr)
            continue
        contenders.append(contender)
        empty: dict[str, Any] = {"runs": {}, "import": [], "help": [], "small": []}
        found = results["contenders"].setdefault(contender.name, empty)
        found["durable"] = contender.durable
        found["asked"] = max(arguments.repeats, found.get("asked", 0))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for scenario in scenarios(arguments.rollouts, arguments.crowds):
            measure_scenario(contenders, scenario, results, arguments, folder)
        measure_starts(contenders, results, arguments, folder)
    show(results)
    print(f"\nAll runs are in {arguments.json}")


def keep(results: dict[str, Any], path: Path) -> None:
    """Write what there is so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")


def show(results: dict[str, Any]) -> None:
    """Print the table."""
    print(f"\n{results['machine']}, {results['date']}; load during the runs: {loads(results)}\n")
    print(make_table(results, results["crowds"], TURNS * ANSWER_SECONDS))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = sorted({one.distribution for one in CONTENDERS})
    parser.add_argument("--only", nargs="+", choices=names, help="only these harnesses")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, the median counts")
    parser.add_argument("--rollouts", type=int, default=300, help="at zero latency, 100 at once")
    parser.add_argument(
        "--crowds", type=int, nargs="*", default=[500, 2000], help="at once, 200 ms an answer"
    )
    parser.add_argument("--limit", type=float, default=480, help="seconds after which a run is ended")
    parser.add_argument(
        "--repeat-below", type=float, default=60, help="a run that took longer (seconds) is not repeated"
    )
    parser.add_argument(
        "--json", type=Path, default=FOLDER / "results.json", help="where all runs are written"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the runs of the file, make those it lacks"
    )
    parser.add_argument("--show", type=Path, help="measure nothing, print the table of such a file")
    return parser.parse_args()


def measure_starts(
    contenders: list[Contender], results: dict[str, Any], arguments: argparse.Namespace, folder: Path
) -> None:
    """Import, help, and a process with the smallest run: medians."""
    for number in range(arguments.repeats):
        for contender in contenders:
            found = results["contenders"][contender.name]
            if len(found["small"]) > number:
                continue
            small = run_once(contender, SMALL, arguments.limit, folder)
            found["small"].append(None if "failed" in small else small["process_s"])
            if not contender.variant:
                found["import"].append(time_line(contender.import_line(), arguments.limit, folder))
                if contender.command:
                    found["help"].append(time_line(contender.help_line(), arguments.limit, folder))
            keep(results, arguments.json)
            print(f"start          {contender.name}", file=sys.stderr, flush=True)


def measure_scenario(
    contenders: list[Contender],
    scenario: Scenario,
    results: dict[str, Any],
    arguments: argparse.Namespace,
    folder: Path,
) -> None:
    """All repeats of one scenario, the contenders in turn."""
    for number in range(arguments.repeats):
        for contender in contenders:
            runs = results["contenders"][contender.name]["runs"].setdefault(scenario.name, [])
            slow = bool(runs) and runs[-1]["process_s"] > arguments.repeat_below
            if slow or len(runs) > number:
                continue
            run = run_once(contender, scenario, arguments.limit, folder)
            runs.append(run)
            keep(results, arguments.json)
            told = (
                run.get("failed")
                or f"{run['wall_s']:.2f} s, CPU {run['cpu_s']:.2f} s, load {run['load']:.1f}"
            )
            print(f"{scenario.name:14} {contender.name:45} {told}", file=sys.stderr, flush=True)


def loads(results: dict[str, Any]) -> str:
    """The range of the machine's load over all runs."""
    found = [
        run["load"]
        for contender in results["contenders"].values()
        for runs in contender["runs"].values()
        for run in runs
        if "load" in run
    ]
    return f"{min(found):.1f} to {max(found):.1f}" if found else "none"


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
