"""Recorded rollouts, for the replay agent and the replay user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.records.evaluation_file import FINAL, SUFFIX, reading
from reward_kit.agent.records.rollout_record import RolloutRecord, read_record
from reward_kit.errors import BundleError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


class Recordings:
    """Recorded rollouts by row id and index."""

    def __init__(self, recordings: Iterable[RolloutRecord], source: Path) -> None:
        """Raises ``BundleError`` without recordings, and if a rollout is recorded twice."""
        self.source = source
        self._rows: dict[str, dict[int, RolloutRecord]] = {}
        for recording in recordings:
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
            fault = f"the recording cannot be read: {error.fault}"
            raise BundleError(fault, place=error.place or str(source)) from error
        except (OSError, UnicodeDecodeError) as error:
            raise BundleError(f"the recording cannot be read: {error}", place=str(source)) from error

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
        are = " is" if len(recorded) == 1 else "s are"
        fault = f"row {row_id}: {len(recorded)} rollout{are} recorded, {n_rollouts} asked for"
        if len(recorded) >= n_rollouts:
            fault = f"row {row_id}: rollout {missing} is not recorded, only {_listed(recorded)}"
        most = max(missing, int(len(recorded) == 1))
        remedy = f"Replay fewer: --n-rollouts {most}." if most else None
        raise BundleError(fault, place=str(self.source), remedy=remedy)

    def with_user(self, row_id: str) -> bool:
        """True if a user takes part in the row's recorded rollouts, beyond what the row begins with."""
        return any(recording.user != "none" for recording in self._rows.get(row_id, {}).values())

    def find(self, row_id: str, index: int) -> RolloutRecord:
        """A recorded rollout; if only one of its row is recorded, that one, whatever its index."""
        self.check(row_id)
        found = self.find_or_none(row_id, index)
        if found is None:
            fault = f"rollout {index} of row {row_id} is not recorded, only {_listed(self._rows[row_id])}"
            raise BundleError(fault, place=str(self.source))
        return found

    def find_or_none(self, row_id: str, index: int) -> RolloutRecord | None:
        """As ``find``, but None if there is no such recording."""
        recorded = self._rows.get(row_id, {})
        return next(iter(recorded.values())) if len(recorded) == 1 else recorded.get(index)


def _records(source: Path) -> Iterator[RolloutRecord]:
    if source.suffix == SUFFIX and not source.is_dir():
        query = f"SELECT id, json FROM rollouts JOIN trajectories ON rollout = id WHERE {FINAL} ORDER BY seq"  # noqa: S608
        with reading(source) as connection:
            for rollout, text in connection.execute(query):
                yield read_record(text, source / rollout)
        return
    for file in sorted(source.rglob("roll_*.json")) if source.is_dir() else [source]:
        yield read_record(file.read_text(encoding="utf-8"), file)


def _listed(indices: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(indices)))
