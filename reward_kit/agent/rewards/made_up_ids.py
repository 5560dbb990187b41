"""Equality of two states up to the ids that tools made up.

Two states are equal if some bijection of the made-up ids turns the changes of the one into those of the
other: two bookings made in another order are equal, a payment for the wrong booking is not. Colour refinement
with individualisation, which is exact, finds the bijection (McKay and Piperno 2014, arXiv 1301.1493).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.database.changes import Changes, RowChange, typed
from reward_kit.agent.rewards.checks import EQUAL, check_of, database_equal
from reward_kit.errors import RewardError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from reward_kit.agent.database import ReadOnlyDatabase
    from reward_kit.models import MetricResult

SHORTEST_TEXT = 4
"""Characters of a made-up text id that is recognised in any column; shorter ones occur by chance."""
MOST_FAILED = 500
"""Pairs of ids that are tried in vain before the search gives up."""

Column = tuple[str, str]
"""Table and column, casefolded as SQLite folds names."""


class MadeUpId(NamedTuple):
    """An id that a tool made up, in the column that defines it."""

    column: Column
    value: Any


Part = Any
"""A piece of a value: a ``MadeUpId``, or anything else that stands for itself."""


class Fact(NamedTuple):
    """A row change: its ids in order, and a number for everything else in it."""

    shape: int
    ids: tuple[MadeUpId, ...]


def database_equal_up_to_ids(
    db: ReadOnlyDatabase,
    gold_db: ReadOnlyDatabase | None,
    rollout: Any = None,
    *,
    ids: Collection[str] | None = None,
    ignore: Collection[str] = (),
) -> MetricResult:
    """As ``database_equal``, but the ids that tools made up in inserted rows may be others.

    ``ids`` names their columns (``"bookings.id"``). Without it they are the keys of one column with which a
    call of ``rollout``, or a gold action, inserted a row without having been given that value. Rows refer to
    them by foreign keys, by columns such as ``booking_id`` for ``bookings.id``, and to text ids of at least
    four characters anywhere. Raises ``RewardError`` if the rows are too alike to be matched.
    """
    exact = database_equal(db, gold_db, ignore=ignore)
    if exact.score or gold_db is None:
        return exact
    ours, theirs = db.changes().ignoring(ignore), gold_db.changes().ignoring(ignore)
    if ours.equals(theirs):
        return exact  # of different seeds
    inserted = [each for each in (*ours, *theirs) if each.op == "insert" and len(each.key or ()) == 1]
    foreign = _foreign_keys(db, {change.table for change in (*ours, *theirs)})
    if ids is None:
        made_up = _made_up_columns(inserted, theirs, rollout, foreign)
    else:
        made_up = {_column(table, name) for table, _, name in (one.rpartition(".") for one in ids)}
    if not made_up:
        return exact
    sides = [_Side(changes, made_up, foreign) for changes in (ours, theirs)]
    shapes: dict[Any, int] = {}
    facts = [list(side.facts(shapes)) for side in sides]
    if _same_up_to_ids(facts[0], facts[1]):
        return check_of([], f"{EQUAL}, up to made-up ids")
    columns = {_column(change.table, name) for change in (*ours, *theirs) for name in change.content}
    masked = [".".join(column) for column in columns if any(sides[0].targets(column))]
    others = f"rows refer to other made-up ids than expected ({exact.reason})"
    return check_of(ours.describe(theirs, masked) or [others], "")


# --- columns


def _column(table: str, name: str) -> Column:
    return table.casefold(), name.casefold()


def _foreign_keys(db: ReadOnlyDatabase, tables: Iterable[str]) -> dict[Column, Column]:
    """The declared references of one column of ``tables``; a target column that is not named is empty."""
    query = 'SELECT "from", "table", "to" FROM pragma_foreign_key_list(:table)'
    return {
        _column(table, row[0]): _column(row[1], row[2] or "")
        for table in tables
        for row in map(list, db.execute(query, {"table": table}).all())
    }


def _made_up_columns(
    inserted: Iterable[RowChange], gold: Changes, rollout: Any, foreign: Mapping[Column, Column]
) -> set[Column]:
    """The key columns for which a call inserted a row with a value that it was not given."""
    keys = {_column(change.table, name) for change in inserted for name in change.key or ()}
    calls = getattr(rollout, "tool_calls", None) or ()
    evidence = [(Changes.from_json(call.changes), _leaves(call.arguments)) for call in calls]
    if hasattr(rollout, "gold"):
        evidence.append((gold, _leaves([action.arguments for action in rollout.gold])))
    found = {
        _column(change.table, name)
        for changes, given in evidence
        for change in changes
        if change.op == "insert" and change.key is not None and len(change.key) == 1
        for name in change.key
        if not _was_given(change, name, given)
    }
    targets = keys - foreign.keys()
    return {
        column
        for column in found & targets
        if not any(_is_named_after(column, other) for other in targets if other[0] != column[0])
    }


def _was_given(change: RowChange, name: str, given: Iterable[str]) -> bool:
    """True if the value of a column was in the arguments ``given``, and not for another column of the row."""
    others = {_squeezed(value) for column, value in change.content.items() if column != name}
    key = _squeezed(change.content[name])
    for leaf in set(given) - others:
        shorter, longer = sorted((key, leaf), key=len)
        if key == leaf or (len(shorter) >= SHORTEST_TEXT and shorter in longer):
            return True
    return False


def _leaves(arguments: Any) -> list[str]:
    """The texts and numbers in tool arguments, squeezed: a tool may make ``#W12`` of ``w12``."""
    if isinstance(arguments, dict):
        arguments = [] if "$result" in arguments else list(arguments.values())
    if isinstance(arguments, list):
        return [leaf for value in arguments for leaf in _leaves(value)]
    return [_squeezed(arguments)]


def _squeezed(value: Any) -> str:
    return re.sub(r"[\W_]+", "", str(value).casefold())


def _is_named_after(column: Column, target: Column) -> bool:
    """True for ``payments.booking_id`` and ``bookings.id`` (or ``bookings.booking_id``)."""
    name, (table, key) = column[1], target
    stems = {table, table.removesuffix("s"), table.removesuffix("es"), re.sub("ies$", "y", table)}
    return (name == key and key != "id") or any(
        name in (f"{stem}_{key}", f"{stem}_id", f"{stem}id") for stem in stems
    )


# --- facts


class _Side:
    """The changes of one state, and the ids made up in its inserted rows."""

    def __init__(
        self, changes: Changes, made_up: Collection[Column], foreign: Mapping[Column, Column]
    ) -> None:
        self.changes = changes
        ids = [
            MadeUpId(_column(change.table, name), value)
            for change in changes
            if change.op == "insert"
            for name, value in change.content.items()
            if value is not None and _column(change.table, name) in made_up
        ]
        self._known = {(one.column, typed([one.value])) for one in ids}
        self._made_up = made_up
        self._foreign = foreign
        texts = {one.value: one for one in ids if isinstance(one.value, str)}
        self._texts = {text: one for text, one in texts.items() if len(text) >= SHORTEST_TEXT}
        words = "|".join(map(re.escape, sorted(self._texts, key=len, reverse=True)))
        self._in_text = re.compile(rf"(?<!\w)({words})(?!\w)") if words else None

    def facts(self, shapes: dict[Any, int]) -> Iterator[Fact]:
        """The changes as facts; ``shapes`` numbers what they have besides ids, for both sides."""
        rows = [(change, self._cells(change)) for change in self.changes]
        uses = Counter(part for _, cells in rows for _, parts in cells for part in parts if _is_id(part))
        for change, cells in rows:
            shape: list[Any] = [change.table.casefold(), change.op]
            ids = []
            for place, parts in cells:
                shape.append(place)
                for part in parts:
                    # an id that nothing refers to need not be matched
                    alone = _is_id(part) and uses[part] == 1
                    shape.append(("id", part.column, alone) if _is_id(part) else typed([part]))
                    ids += [part] if _is_id(part) and not alone else []
            yield Fact(shapes.setdefault(tuple(shape), len(shapes)), tuple(ids))

    def _cells(self, change: RowChange) -> list[tuple[str, list[Part]]]:
        """The values of a change in a fixed order, in parts; NULL is left out of whole rows."""
        return [
            (f"{kind}.{name.casefold()}", [value] if kind == "before" else self._parts(change, name, value))
            for kind in (("after",) if change.op == "insert" else ("key", "before", "after"))
            for name, value in sorted((getattr(change, kind) or {}).items())
            if value is not None or change.op == "update"
        ]

    def _parts(self, change: RowChange, name: str, value: Any) -> list[Part]:
        """``value`` in parts: made-up ids, and what is between them."""
        column = _column(change.table, name)
        identity = typed([value])
        for target in self.targets(column):
            if (target, identity) in self._known:
                return [MadeUpId(target, value)]
        if self._in_text is None or not isinstance(value, str):
            return [value]
        pieces = self._in_text.split(value)
        return [self._texts[piece] if place % 2 else piece for place, piece in enumerate(pieces)]

    def targets(self, column: Column) -> Iterator[Column]:
        """The columns of made-up ids whose values ``column`` may hold."""
        if column in self._made_up:
            yield column
        elif column in self._foreign:
            table, key = self._foreign[column]
            yield from (one for one in self._made_up if one[0] == table and key in ("", one[1]))
        else:
            yield from (one for one in self._made_up if one != column and _is_named_after(column, one))


def _is_id(part: Part) -> bool:
    return isinstance(part, MadeUpId)


# --- the bijection


Colours = dict[MadeUpId, int]


def _same_up_to_ids(ours: Sequence[Fact], theirs: Sequence[Fact]) -> bool:
    """True if a bijection of the ids turns the facts of one side into those of the other."""
    sides = ours, theirs
    start = [dict.fromkeys((one for fact in facts for one in fact.ids), 0) for facts in sides]
    waiting: list[Iterator[tuple[Colours, Colours]]] = [iter([(start[0], start[1])])]
    failed = 0
    while waiting:
        colours = next(waiting[-1], None)
        if colours is None:
            waiting.pop()
            continue
        refined = _refined(sides, colours)
        if refined is None:
            failed += 1
            if failed > MOST_FAILED:
                raise RewardError(
                    f"the inserted rows are so alike that {MOST_FAILED} attempts to match their ids failed",
                    remedy="Ignore fewer columns, or name the columns of the ids.",
                )
            continue
        sizes = Counter(refined[0].values())
        alike = [one for one, colour in refined[0].items() if sizes[colour] > 1]
        if not alike:
            return True
        waiting.append(_choices(refined, min(alike, key=lambda one: sizes[refined[0][one]]), len(sizes)))
    return False


def _choices(
    colours: tuple[Colours, Colours], chosen: MadeUpId, fresh: int
) -> Iterator[tuple[Colours, Colours]]:
    """``chosen`` matched with each id of its colour, by a ``fresh`` colour for both."""
    ours, theirs = colours
    for partner, colour in theirs.items():
        if colour == ours[chosen]:
            yield {**ours, chosen: fresh}, {**theirs, partner: fresh}


def _refined(
    sides: tuple[Sequence[Fact], Sequence[Fact]], colours: tuple[Colours, Colours]
) -> tuple[Colours, Colours] | None:
    """The colours split by the facts that each id is in, until they are stable; None if the sides differ.

    Ids of one colour are in the same number of facts of each form.
    """
    while True:
        palette: dict[Any, int] = {}
        new: list[Colours] = []
        contents = []
        for facts, old in zip(sides, colours, strict=True):
            seen: dict[MadeUpId, list[Any]] = {one: [] for one in old}
            for shape, ids in facts:
                form = (shape, tuple(old[one] for one in ids))
                for place, one in enumerate(ids):
                    seen[one].append((place, form))
            new.append(
                {
                    one: palette.setdefault((old[one], one.column, tuple(sorted(forms))), len(palette))
                    for one, forms in seen.items()
                }
            )
            contents.append(Counter((shape, tuple(old[one] for one in ids)) for shape, ids in facts))
        if contents[0] != contents[1] or Counter(new[0].values()) != Counter(new[1].values()):
            return None
        is_stable = len(set(new[0].values())) == len(set(colours[0].values()))
        colours = (new[0], new[1])
        if is_stable:
            return colours
