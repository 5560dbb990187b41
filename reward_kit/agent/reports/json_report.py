"""Everything of an evaluation in one JSON file: results, and the whole trajectories of its rollouts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from reward_kit.agent.runs.atomic_file import json_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from reward_kit.agent.results import EvaluationResult, RowResult


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
