"""The rollouts of a row, of all evaluations, a line for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.reports.plain_table import table_lines
from reward_kit.agent.reports.wording import NOTHING, from_here, one_line
from reward_kit.agent.runs.rollout_record import load_rollout
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from reward_kit.agent.runs.rollout_record import RolloutRecord

HEADINGS = ("evaluation", "number", "reward", "what came of it", "file")


def rollout_lines(folder: Path) -> Iterator[str]:
    """A table of the rollouts in a row's ``folder``, those begun first at the top; then what is damaged."""
    read = [(_read(path), path) for path in sorted(folder.glob("roll_*.json"))]
    found = [(record, path) for record, path in read if not isinstance(record, str)]
    found.sort(key=lambda each: each[0].started)
    yield from table_lines([HEADINGS, *(_cells(record, path) for record, path in found)])
    yield from (fault for fault, _ in read if isinstance(fault, str))


def _read(path: Path) -> RolloutRecord | str:
    """The rollout, or a line on why there is none."""
    try:
        return load_rollout(path)
    except StorageError as error:
        return one_line(str(error))


def _cells(record: RolloutRecord, path: Path) -> tuple[str, ...]:
    failed = record.failure["kind"] if record.failure else record.stop_reason
    attempt = f", attempt {record.attempt + 1}" if record.attempt else ""
    return (
        record.eval_id,
        f"{record.index + 1}{attempt}",
        NOTHING if record.reward is None else f"{record.reward:g}",
        "reward_error" if record.error is not None else failed,
        str(from_here(path)),
    )
