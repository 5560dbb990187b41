"""The page of a rollout: its end and the reason, the final data, the conversation, the costs."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.text import call_line
from reward_kit.agent.rollout.outcome import is_success
from reward_kit.agent.store.transcript import conversation, end_facts, failure_facts, player_facts
from reward_kit.errors import DatabaseError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reward_kit.agent.after.explanation import Explanation
    from reward_kit.agent.database.changes import RowChange
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.rollout.trace import Trace


class Neighbours(NamedTuple):
    """The rollouts of the same evaluation that a page links to; ``query`` is the end of their addresses.

    ``place`` is the number of this one among ``total`` that were selected; 0 if it is none of them.
    """

    before: Outcome | None = None
    after: Outcome | None = None
    next_failed: Outcome | None = None
    of_row: Sequence[Outcome] = ()
    query: str = ""
    place: int = 0
    total: int = 0


class Difference(NamedTuple):
    """The final state beside gold, or in ``fault`` why it is not known.

    ``rows`` are those that the gold actions or the rollout change: name, wanted and made change (None: none).
    ``wrong`` counts those that are not as wanted; None without gold actions.
    """

    rows: Sequence[tuple[str, RowChange | None, RowChange | None]] = ()
    wrong: int | None = None
    fault: str = ""


def rollout_values(
    record: Trace, around: Neighbours, explanation: Explanation | None = None
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


def difference_from_gold(record: Trace) -> Difference:
    """The changed rows of the final state beside those of the gold state."""
    if record.stored is None:
        return Difference(fault="the record was read from a file that has no databases")
    try:
        with ExitStack() as opened:
            final, gold = (record.stored.open(kind, "overlay", opened) for kind in ("final", "gold"))
            if final is None:
                return Difference(fault="the final database was not kept (--keep-db delta keeps it)")
            rows = _paired(gold.changes() if gold else (), final.changes())
            return Difference(rows, sum(wanted != made for _, wanted, made in rows) if gold else None)
    except (StorageError, DatabaseError) as error:
        return Difference(fault=str(error))


def _paired(
    wanted: Sequence[RowChange], made: Sequence[RowChange]
) -> list[tuple[str, RowChange | None, RowChange | None]]:
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
    return [(both[one].name(), sides[0].get(one), sides[1].get(one)) for one in ordered]


def _reason(result: Mapping[str, Any] | None, parts: Mapping[str, Mapping[str, Any]]) -> str:
    """The reason of a reward, unless it repeats the reasons of its ``parts``."""
    reason = rest = str((result or {}).get("reason") or "")
    for part in parts.values():
        rest = rest.replace(str(part.get("reason") or " "), " ")
    return reason if any(character.isalnum() for character in rest) else ""
