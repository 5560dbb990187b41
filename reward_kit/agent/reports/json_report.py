"""The ``--json`` report: the results with the whole trajectory of each rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.base.strict_json import json_bytes
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.records.outcome import RolloutOutcome
    from reward_kit.agent.scoring.results import EvaluationResult


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


def _trajectory(result: EvaluationResult, outcome: RolloutOutcome) -> bytes:
    try:
        with result.record(outcome) as record:
            return json_bytes(record.to_json())
    except StorageError:  # one damaged rollout must not spoil the report
        return b"null"
