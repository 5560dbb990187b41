"""The output of ``agent-eval`` at the end: the report, ``--json`` and ``--format``."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, BinaryIO

from reward_kit.agent.base.printing import say
from reward_kit.agent.base.text import count, from_here, tallied
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.scoring.results import EvaluationResult


@contextmanager
def output_for_the_report(config: EvaluationConfig) -> Iterator[BinaryIO | None]:
    """Standard output for ``--json -``; everything else that is printed goes to stderr meanwhile.

    The file descriptor is redirected too, so that subprocesses of tools do not write into the document.
    """
    if config.json != "-":
        yield None
        return
    stdout = sys.stdout
    stdout.flush()
    try:
        descriptor = stdout.fileno()
        kept = os.dup(descriptor)
    except (OSError, ValueError):  # a stream in memory, as in tests
        with redirect_stdout(sys.stderr):
            yield stdout.buffer
        return
    output = os.fdopen(kept, "wb", closefd=False)
    try:
        os.dup2(sys.stderr.fileno(), descriptor)
        with redirect_stdout(sys.stderr):
            yield output
    finally:
        with suppress(OSError):  # a failed write was raised where it happened
            output.close()
        with suppress(OSError):
            stdout.flush()  # what was printed past the redirection
        os.dup2(kept, descriptor)
        os.close(kept)


def print_result(result: EvaluationResult, config: EvaluationConfig) -> None:
    """Print the report, or with ``--quiet`` the scores; raises ``StorageError`` if the output fails."""
    from reward_kit.agent.reports.console import print_report
    from reward_kit.agent.reports.facts import scores_line
    from reward_kit.agent.reports.tables import plain_console

    stream: Any = sys.stderr if config.json == "-" else sys.stdout
    try:
        if config.quiet:
            say(scores_line(result), file=stream)
            if result.unjudged:
                say(_unjudged_line(result), err=True)
            explained = result.explanations
            if explained is not None and not explained.complete:
                say(f"{explained.missing} explanations are missing: {explained.reason}", err=True)
            return
        # A stream that cannot encode a character shows a substitute instead of failing after all the work.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
        print_report(result, plain_console(stream))
        if result.agreement is not None:
            say("\n" + "\n".join(result.agreement.lines()), file=stream)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        fault = f"the report cannot be printed: {error.strerror or error}"
        raise StorageError(fault, remedy=_where_results_are(result)) from error


def write_asked(
    result: EvaluationResult, config: EvaluationConfig, numbers: Mapping[str, int], output: BinaryIO | None
) -> bool:
    """Write the files of ``--json`` and ``--format``; returns False if one could not be written."""
    from reward_kit.agent.base.files import write_output
    from reward_kit.agent.reports.json_report import report_parts
    from reward_kit.agent.tau_bench.results_file import results_parts

    target = config.json
    if config.format == "tau-bench":
        target = target or str(result.results_path.with_suffix(".tau-bench.json"))
        parts = results_parts(result, numbers)
    else:
        parts = report_parts(result)
    if target is None:
        return True
    try:
        write_output(parts, target, output)
    except BrokenPipeError:
        raise
    except StorageError as error:
        return _not_written(f"{error.place}: {error.fault}", result)
    except OSError as error:
        return _not_written(f"standard output: {error.strerror or error}", result)
    if config.json is None and not config.quiet:
        say(f"tau-bench's layout: {target}")
    return True


def _not_written(fault: str, result: EvaluationResult) -> bool:
    say(f"Error: --json is not written: {fault}. {_where_results_are(result)}", err=True)
    return False


def _where_results_are(result: EvaluationResult) -> str:
    state = "The evaluation is complete" if result.status == "complete" else "Finished rollouts are kept"
    return f"{state}; its results are in {from_here(result.results_path)}."


def _unjudged_line(result: EvaluationResult) -> str:
    example = next(outcome for outcome in result.outcomes if not outcome.judged)
    number = f"{result.unjudged.total()} of {count(result.planned, 'rollout')} not judged"
    instance = f"{example.row_id} #{example.index + 1}: {example.trouble}"
    return " ".join(f"{number}: {tallied(result.unjudged)}; for instance {instance}".split())
