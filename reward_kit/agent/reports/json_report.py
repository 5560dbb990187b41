"""Everything of an evaluation in one JSON file: results, and the whole trajectories of its rollouts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from reward_kit.agent.runs.atomic_file import json_bytes, storage_error, temporary_beside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from reward_kit.agent.results import EvaluationResult, RowResult

TO_OUTPUT = "-"


def write_parts(parts: Iterable[bytes], target: str, output: BinaryIO | None = None) -> None:
    """Write a document to a file (whole or not at all) or, for ``-``, to ``output`` (standard output).

    Raises ``StorageError``.
    """
    if target == TO_OUTPUT:
        stream = output or sys.stdout.buffer
        try:
            for part in parts:
                stream.write(part)
            stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise storage_error(error, "standard output") from error
        return
    path = Path(target)
    temporary = temporary_beside(path)
    try:
        with temporary.open("xb") as file:
            for part in parts:
                file.write(part)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise storage_error(error, path) from error


def report_parts(result: EvaluationResult) -> Iterator[bytes]:
    """The report piece by piece: ``EvaluationResult.to_json()`` with, beside each rollout's outcome, its
    ``trajectory``.

    Trajectories are copied from their files, one in memory at a time.
    """
    head = result.to_json()
    del head["rows"]
    yield json_bytes(head)[:-1] + b', "rows": ['
    for number, row in enumerate(result.rows):
        yield b",\n" if number else b"\n"
        yield from _row_parts(row, result.folder)
    yield b"]}\n"


def _row_parts(row: RowResult, folder: Path) -> Iterator[bytes]:
    head = row.to_json()
    del head["rollouts"]
    yield json_bytes(head)[:-1] + b', "rollouts": ['
    for number, outcome in enumerate(row.outcomes):
        yield b",\n" if number else b"\n"
        yield (
            json_bytes(outcome.to_json())[:-1]
            + b', "trajectory": '
            + _trajectory(folder / outcome.file)
            + b"}"
        )
    yield b"]}"


def _trajectory(path: Path) -> bytes:
    """The file as it is, if it is JSON: one damaged file must not spoil the report."""
    try:
        data = path.read_bytes()
        json.loads(data)
    except (OSError, ValueError):
        return b"null"
    return data
