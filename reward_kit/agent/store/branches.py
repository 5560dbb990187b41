"""Branches: rollouts that continue from a step of another one, which is their origin.

The configuration of their evaluation names the origin (``branch_of``), a rollout in the same runs folder. A
rollout that was branched knows nothing of it: its branches are found in the folder.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.option import NAME
from reward_kit.agent.store.evaluation_file import SUFFIX, file_within, reading, stored_files
from reward_kit.agent.store.schema import checked, read_outcomes
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from reward_kit.agent.rollout.outcome import Outcome


class Origin(NamedTuple):
    """The rollout (its evaluation and its id) and the step that branches continue from.

    ``tool_result`` is what their agent sees in place of the result of that step's tool call.
    """

    evaluation: str
    rollout: str
    step: int
    tool_result: str | None = None

    def file(self, evals: Path) -> Path:
        """The file of its evaluation; raises ``StorageError`` for a name that leads elsewhere."""
        name = checked(self.evaluation, NAME, "the name of an evaluation", evals)
        return file_within(evals.parent, f"{evals.name}/{name}{SUFFIX}")

    def outcome(self, evals: Path) -> Outcome | None:
        """The rollout; None if it or its evaluation is gone, or cannot be read."""
        with suppress(StorageError):
            file = self.file(evals)
            with reading(file) as connection:
                return next(read_outcomes(connection, file, "id = ?", [self.rollout]), None)
        return None


def origin_of(branch_of: Mapping[str, Any] | None) -> Origin | None:
    """The origin that a configuration names; None for rollouts from the beginning of their row.

    Raises ``StorageError`` for what names none.
    """
    if not branch_of:
        return None
    try:
        found = Origin(**branch_of)
        return found._replace(rollout=str(found.rollout), step=int(found.step))
    except (TypeError, ValueError) as error:
        fault = f"branch_of={json.dumps(branch_of)} is not the origin of branches: the evaluation is damaged"
        raise StorageError(fault) from error


def branches_in(evals: Path) -> Iterator[tuple[Origin, Path]]:
    """The origin and the file of each evaluation in the folder ``evals`` whose rollouts are branches."""
    for file in stored_files(evals):
        with suppress(StorageError, OSError):
            origin = _origin_in(file, file.stat().st_mtime_ns)
            if origin is not None:
                yield origin, file


@lru_cache(maxsize=4096)
def _origin_in(file: Path, _changed: int) -> Origin | None:
    """The origin of the evaluation in ``file``; the time stands for the content."""
    with reading(file) as connection:
        query = "SELECT configuration -> 'branch_of' FROM evaluation ORDER BY run LIMIT 1"
        found = connection.execute(query).fetchone()
    if found is None:
        raise StorageError("holds no run of an evaluation", place=str(file))
    return origin_of(json.loads(found[0] or "null"))
