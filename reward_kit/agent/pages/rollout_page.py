"""The page of a rollout: its end and the reason, the final data, the conversation, the costs."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.text import call_line
from reward_kit.agent.explain.explanation import Explanation
from reward_kit.agent.records.loading import load_rollout
from reward_kit.agent.records.outcome import is_success
from reward_kit.agent.reports.rollout_facts import conversation, end_facts, failure_facts, player_facts
from reward_kit.agent.storage.stored_evaluation import read_notes
from reward_kit.errors import DatabaseError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.database.changes import Changes, RowChange
    from reward_kit.agent.records.outcome import RolloutOutcome
    from reward_kit.agent.records.rollout_record import RolloutRecord


class Neighbours(NamedTuple):
    """The rollouts of the same evaluation that a page links to; ``query`` is the end of their addresses.

    ``place`` is the number of this one among ``total`` that were selected; 0 if it is none of them.
    """

    before: RolloutOutcome | None = None
    after: RolloutOutcome | None = None
    next_failed: RolloutOutcome | None = None
    of_row: Sequence[RolloutOutcome] = ()
    query: str = ""
    place: int = 0
    total: int = 0


class RowDifference(NamedTuple):
    """A changed row: the change that the gold actions make, and that of the rollout; None for neither."""

    name: str
    wanted: RowChange | None
    made: RowChange | None

    @property
    def is_same(self) -> bool:
        """True if the rollout made the wanted change."""
        return self.wanted == self.made


class Difference(NamedTuple):
    """The rows that the rollout or the gold actions change, or in ``fault`` why they are not known."""

    rows: Sequence[RowDifference] = ()
    fault: str = ""
    has_gold: bool = True

    @property
    def wrong(self) -> int:
        """The number of rows that differ from gold."""
        return sum(not row.is_same for row in self.rows) if self.has_gold else 0


def rollout_values(
    record: RolloutRecord, around: Neighbours, explanation: Explanation | None = None
) -> dict[str, Any]:
    """The values of the template ``rollout.html``; ``around`` are its links to other rollouts."""
    failure = record.failure or {}
    metrics = (record.result or {}).get("metrics") or {}
    parts = {name: part for name, part in metrics.items() if isinstance(part, dict)}
    difference = difference_from_gold(record)
    facts = [(name, text) for name, text in failure_facts(failure) if name != "data" or difference.fault]
    return {
        "title": f"{record.row_id} #{record.index + 1}",
        "root": "../",
        "record": record,
        "around": around,
        "passed": record.reward is not None and is_success(record.reward),
        "reason": _reason(record.result, parts),
        "parts": parts,
        "failure": failure,
        "failure_facts": facts,
        "facts": [*player_facts(record), *end_facts(record)],
        "difference": difference,
        "entries": list(conversation(record)),
        "gold": [call_line(action.name, action.arguments) for action in record.gold],
        "explanation": explanation,
    }


def stored_values(path: Path, rollout: str, around: Neighbours) -> dict[str, Any]:
    """The values of a rollout of the evaluation at ``path``, with its last usable explanation."""
    made = [note for note in read_notes(path, "explanation") if note.get("rollout") == rollout]
    explanation = Explanation.from_json(made[-1]) if made else None
    usable = explanation if explanation is not None and explanation.author is not None else None
    return rollout_values(load_rollout(path / rollout), around, usable)


def difference_from_gold(record: RolloutRecord) -> Difference:
    """The changed rows of the final state beside those of the gold state."""
    if record.stored is None:
        return Difference(fault="the record was read from a file that has no databases")
    try:
        with ExitStack() as opened:
            final, gold = (record.stored.open(kind, "overlay", opened) for kind in ("final", "gold"))
            if final is None:
                return Difference(fault="the final database was not kept (--keep-db delta keeps it)")
            return Difference(_paired(gold.changes() if gold else (), final.changes()), "", gold is not None)
    except (StorageError, DatabaseError) as error:
        return Difference(fault=str(error))


def _paired(wanted: Changes | Sequence[RowChange], made: Changes) -> list[RowDifference]:
    """The changes of each row side by side, by table and key."""
    sides: list[dict[Any, RowChange]] = [{}, {}]
    for side, changes in zip(sides, (wanted, made), strict=True):
        seen: Counter[Any] = Counter()  # of rows without a key several may be alike
        for change in changes:
            identity = change.row_identity()
            side[identity, seen[identity]] = change
            seen[identity] += 1
    both = {**sides[0], **sides[1]}
    ordered = sorted(both, key=lambda identity: both[identity].sort_key())
    return [RowDifference(both[one].name(), *(side.get(one) for side in sides)) for one in ordered]


def _reason(result: Mapping[str, Any] | None, parts: Mapping[str, Mapping[str, Any]]) -> str:
    """The reason of a reward, unless it repeats the reasons of its ``parts``."""
    reason = rest = str((result or {}).get("reason") or "")
    for part in parts.values():
        rest = rest.replace(str(part.get("reason") or " "), " ")
    return reason if any(character.isalnum() for character in rest) else ""
