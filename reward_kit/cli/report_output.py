"""The output of ``agent-eval`` at the end: the report, ``--json`` and ``--format``."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, BinaryIO

from reward_kit.agent.base.encoding import json_bytes
from reward_kit.agent.base.files import TO_OUTPUT, write_output
from reward_kit.agent.base.printing import print_lines, say, warn
from reward_kit.agent.base.text import count, from_here
from reward_kit.agent.scoring.numbers import tallied
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.store.results import EvaluationResult


def print_result(result: EvaluationResult, config: EvaluationConfig) -> None:
    """Print the report, or with ``--quiet`` the scores; raises ``StorageError`` if the output fails."""
    from reward_kit.agent.reports.console import screen_lines
    from reward_kit.agent.reports.facts import scores_line

    to_stderr = config.json == TO_OUTPUT
    quiet = [scores_line(result), *([str(result.decision)] if result.decision is not None else [])]
    width = shutil.get_terminal_size().columns
    try:
        print_lines(quiet if config.quiet else screen_lines(result, width), err=to_stderr)
        (sys.stderr if to_stderr else sys.stdout).flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        fault = f"the report cannot be printed: {error.strerror or error}"
        raise StorageError(fault, remedy=_where_results_are(result)) from error
    if config.quiet:
        _print_troubles(result)


def _print_troubles(result: EvaluationResult) -> None:
    """Print a line on faults of most rollouts, on those that were not judged, and on missing explanations."""
    for fault in result.shared_faults:
        if fault.kind != "same_error" or not result.unjudged:
            warn(fault.text)
    if result.unjudged:
        example = next(outcome for outcome in result.outcomes if not outcome.scored)
        number = f"{result.unjudged.total()} of {count(result.planned, 'rollout')} not judged"
        instance = f"{example.row_id} #{example.index + 1}: {example.trouble}"
        line = f"{number}: {tallied(result.unjudged)}; for instance {instance}"
        say(" ".join(line.split()), err=True)
    explained = result.explanations
    if explained is not None and not explained.complete:
        say(f"{explained.missing} explanations are missing: {explained.reason}", err=True)


def write_asked(result: EvaluationResult, config: EvaluationConfig, output: BinaryIO | None) -> None:
    """Write the file of ``--json`` or ``--format``; raises ``StorageError`` if it cannot be written."""
    target = config.json
    if config.format == "tau-bench":
        from reward_kit.agent.bundles.bundle import read_bundle
        from reward_kit.agent.tau.results.file import task_numbers
        from reward_kit.agent.tau.results.tau_bench import results_parts

        target = target or str(result.results_path.with_suffix(".tau-bench.json"))
        with read_bundle(config.dataset, config.task_dir) as read:
            parts = results_parts(result, task_numbers(read.rows))
    elif target is None:
        return
    else:
        parts = report_parts(result)
    try:
        write_output(parts, target, output)
    except BrokenPipeError:
        raise
    except (StorageError, OSError) as error:
        place = "standard output" if target == TO_OUTPUT else target
        why = error.fault if isinstance(error, StorageError) else error.strerror or error
        raise StorageError(
            f"--json is not written: {place}: {why}", remedy=_where_results_are(result)
        ) from error
    if config.json is None and not config.quiet:
        say(f"tau-bench's layout: {target}")


def _where_results_are(result: EvaluationResult) -> str:
    state = "The evaluation is complete" if result.status == "complete" else "Finished rollouts are kept"
    return f"{state}; its results are in {from_here(result.results_path)}."


def report_parts(result: EvaluationResult) -> Iterator[bytes]:
    """``EvaluationResult.to_json()`` in pieces, with a ``trajectory`` in each rollout.

    One trajectory is in memory at a time; null stands for one that cannot be read.
    """
    head = result.to_json()
    del head["rows"]
    yield json_bytes(head)[:-1] + b', "rows": ['
    for number, row in enumerate(result.rows):
        plain = row.to_json()
        del plain["rollouts"]
        yield (b",\n" if number else b"\n") + json_bytes(plain)[:-1] + b', "rollouts": ['
        for place, outcome in enumerate(row.outcomes):
            separator = b",\n" if place else b"\n"
            trajectory = _trajectory(result, outcome)
            yield separator + json_bytes(outcome.to_json())[:-1] + b', "trajectory": ' + trajectory + b"}"
        yield b"]}"
    yield b"]}\n"


def _trajectory(result: EvaluationResult, outcome: Outcome) -> bytes:
    try:
        with result.record(outcome) as record:
            return json_bytes(record.to_json())
    except StorageError:  # one damaged rollout must not spoil the report
        return b"null"
