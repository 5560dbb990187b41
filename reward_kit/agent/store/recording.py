"""Recorded rollouts, for the replay agent and the replay user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.base.text import cut
from reward_kit.agent.store.evaluation_file import SUFFIX, reading
from reward_kit.agent.store.loading import read_file, read_rollouts
from reward_kit.agent.store.schema import FINAL
from reward_kit.errors import BundleError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from reward_kit.agent.rollout.trace import Trace


class Recordings:
    """Recorded rollouts by row id and index."""

    def __init__(self, recordings: Iterable[Trace], source: Path) -> None:
        """Raises ``BundleError`` without recordings, and if a rollout is recorded twice."""
        self.source = source
        self.redacted: list[Trace] = []
        self._rows: dict[str, dict[int, Trace]] = {}
        for recording in recordings:
            self.redacted += [recording] if recording.redacted else []
            row = self._rows.setdefault(recording.row_id, {})
            other = row.setdefault(recording.index, recording)
            if other is not recording:
                raise BundleError(
                    f"rollout {recording.index} of row {recording.row_id} is recorded twice, "
                    f"as {other.id} and {recording.id}",
                    place=str(source),
                    remedy="Replay one evaluation: runs/evals/NAME.db.",
                )
        if not self._rows:
            raise BundleError("no recorded rollouts are there", place=str(source))

    @classmethod
    def load(cls, source: Path) -> Recordings:
        """Read a ``roll_*.json``, a folder of them (also nested), or an evaluation ``runs/evals/NAME.db``.

        Raises ``BundleError`` for a missing or faulty file, and if no rollout is found.
        """
        try:
            return cls(_records(source), source)
        except StorageError as error:
            fault = f"the recording cannot be read: {error.fault.removeprefix('cannot be read: ')}"
            remedy = None if source.exists() else f"Name a file, such as runs/evals/{source.name}.db"
            raise BundleError(fault, place=error.place or str(source), remedy=remedy) from error

    def check(self, row_id: str) -> None:
        """Raise ``BundleError`` if no rollout of the row was recorded."""
        if row_id not in self._rows:
            raise BundleError(f"no rollout of row {row_id} is recorded there", place=str(self.source))

    def check_rollouts(self, row_id: str, n_rollouts: int) -> None:
        """Raise ``BundleError`` unless rollouts 0 to ``n_rollouts`` - 1 of the row can all be replayed.

        If an evaluation or folder holds one rollout of the row, it answers for one, whatever its index; a
        single file answers for as many as are asked for.
        """
        self.check(row_id)
        recorded = self._rows[row_id]
        if len(recorded) == 1 and (n_rollouts == 1 or self.source.suffix == ".json"):
            return
        missing = min(set(range(n_rollouts)) - recorded.keys(), default=None)
        if missing is None:
            return
        most = max(missing, int(len(recorded) == 1))
        raise BundleError(
            f"row {row_id}: {n_rollouts} rollouts asked for, recorded {_listed(recorded)}",
            place=str(self.source),
            remedy=f"Replay fewer: --n-rollouts {most}." if most else None,
        )

    def with_user(self, row_id: str) -> bool:
        """True if a user takes part in the row's recorded rollouts, beyond what the row begins with."""
        return any(recording.user != "none" for recording in self._rows.get(row_id, {}).values())

    def find(self, row_id: str, index: int) -> Trace:
        """A recorded rollout; if only one of its row is recorded, that one, whatever its index."""
        self.check(row_id)
        found = self.find_or_none(row_id, index)
        if found is None:
            fault = f"row {row_id}: rollout {index} asked for, recorded {_listed(self._rows[row_id])}"
            raise BundleError(fault, place=str(self.source))
        return found

    def find_or_none(self, row_id: str, index: int) -> Trace | None:
        """As ``find``, but None if there is no such recording."""
        recorded = self._rows.get(row_id, {})
        return next(iter(recorded.values())) if len(recorded) == 1 else recorded.get(index)


def _records(source: Path) -> Iterator[Trace]:
    if source.suffix != SUFFIX or source.is_dir():
        return map(read_file, sorted(source.rglob("roll_*.json")) if source.is_dir() else [source])
    query = f"SELECT id FROM rollouts WHERE {FINAL} ORDER BY seq"  # noqa: S608
    with reading(source) as connection:
        return read_rollouts(source, [rollout for (rollout,) in connection.execute(query)])


def _listed(indices: Iterable[int]) -> str:
    return f"only {cut(', '.join(map(str, sorted(indices))), 80)}"
