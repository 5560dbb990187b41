"""What a row said when it was evaluated: its trajectories tell, whatever the dataset says by now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reward_kit.agent.runs.rollout_record import load_rollout
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path

    from reward_kit.agent.results import RowResult


def row_fields(row: RowResult, folder: Path) -> dict[str, Any] | None:
    """A row's fields as its first rollout that can be read got them; None where none of them is over yet.

    ``folder`` is the runs folder. Raises ``StorageError`` where no trajectory can be read.
    """
    fault: StorageError | None = None
    for outcome in row.outcomes:
        try:
            fields = load_rollout(folder / outcome.file).fields
        except StorageError as error:
            fault = fault or error
            continue
        if isinstance(fields, dict):
            return fields
        fault = fault or StorageError("is a damaged record of a rollout", place=str(folder / outcome.file))
    if fault is not None:
        raise fault
    return None
