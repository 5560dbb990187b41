"""Equality of two states up to the ids that tools made up.

Two states are equal if some bijection of the made-up ids turns the changes of the one into those of the
other: two bookings made in another order are equal, a payment for the wrong booking is not. Colour refinement
with individualisation, which is exact, finds the bijection (McKay and Piperno 2014, arXiv 1301.1493).
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.encoding import normal, typed
from reward_kit.agent.database.changes import Changes, RowChange, in_one_spelling
from reward_kit.agent.rewards.checks import EQUAL, check_of, database_equal
from reward_kit.errors import RewardError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from reward_kit.agent.database import ReadOnlyDatabase
    from reward_kit.models import MetricResult

SHORTEST_TEXT = 4
"""Characters of a made-up text id that is recognised in any column; shorter ones occur by chance."""
MOST_FAILED = 500
"""Pairs of ids that are tried without success before the search gives up."""

_COLUMNS = "SELECT m.name, c.name FROM sqlite_schema m, pragma_table_xinfo(m.name) c WHERE m.type = 'table'"
Column = tuple[str, str]
"""Table and column, casefolded as SQLite folds names."""


class MadeUpId(NamedTuple):
    """An id that a tool made up, in the column that defines it; ``side`` is 0 for ours, 1 for gold's."""

    side: int
    column: Column
    value: Any


Colours = dict[MadeUpId, int]


class Fact(NamedTuple):
    """A row change: everything in it but ids, and the ids in order; None for one that is nowhere else."""

    shape: tuple[Any, ...]
    ids: tuple[MadeUpId | None, ...]


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
    them by foreign keys, by columns such as ``booking_id`` for ``bookings.id``, and to text ids of four or
    more characters anywhere. Raises ``RewardError`` for rows too alike to match, and ``ids`` of no column.
    """
    db, gold_db = getattr(db, "sync", db), getattr(gold_db, "sync", gold_db)  # of an async reward
    exact = database_equal(db, gold_db, ignore=ignore)
    if exact.score or gold_db is None:
        return exact
    theirs, ours = in_one_spelling(*(side.changes().ignoring(ignore) for side in (gold_db, db)))
    if ours.equals(theirs):
        return exact  # of different seeds
    foreign = _foreign_keys(db, {change.table for change in (*ours, *theirs)})
    if ids is None:
        made_up = _made_up_columns((*ours, *theirs), theirs, rollout, foreign)
    else:
        named = [ids] if isinstance(ids, str) else ids
        made_up = {_column(table, name) for table, _, name in (one.rpartition(".") for one in named)}
        known = {_column(*row) for side in (db, gold_db) for row in side.execute(_COLUMNS)}
        if unknown := made_up - known:
            fault = f"ids names {'.'.join(min(unknown)).lstrip('.')!r}, which is no column of the database"
            raise RewardError(fault, remedy='Write "table.column".')
    if not made_up:
        return exact
    targets = cache(partial(_targets, made_up, foreign))
    if _same_up_to_ids([[*_facts(side, changes, targets)] for side, changes in enumerate((ours, theirs))]):
        return check_of([], f"{EQUAL}, up to made-up ids")
    columns = {_column(change.table, name) for change in (*ours, *theirs) for name in change.content}
    masked = [".".join(column) for column in columns if targets(column)]
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
    both: Iterable[RowChange], gold: Changes, rollout: Any, foreign: Mapping[Column, Column]
) -> set[Column]:
    """The key columns for which a call inserted a row with a value that it was not given."""
    actions = getattr(rollout, "gold", None) or ()
    tools = {getattr(one, "name", None) for one in actions} - {None}
    evidence = [
        (Changes.from_json(call.changes), _leaves(call.arguments), True, not tools or call.name in tools)
        for call in getattr(rollout, "tool_calls", None) or ()
    ]
    if hasattr(rollout, "gold"):  # of several actions, another one may have been given the value
        evidence.append((gold, _leaves([one.arguments for one in actions]), len(actions) == 1, True))
    found: dict[Column, set[bool | None]] = {}
    for changes, given, is_sure, is_golds in evidence:
        for column, change in _inserted(changes):
            was_given = _was_given(change, given, is_sure)
            if is_golds or was_given:  # a key that gold names no other tool may choose
                found.setdefault(column, set()).add(was_given)
    not_given = {column for column, answers in found.items() if False in answers or True not in answers}
    keys = {column for column, _ in _inserted(both)} - foreign.keys()
    return {
        column
        for column in not_given & keys
        if _is_named_after(column, (column[0], "id"))  # of its own table
        or not any(
            _is_named_after(column, (table, key)) and (column[1] != key or "_" in key)
            for table, key in keys
            if table != column[0]
        )
    }


def _inserted(changes: Iterable[RowChange]) -> Iterator[tuple[Column, RowChange]]:
    """The inserted rows with a key of one column, and that column."""
    for change in changes:
        if change.op == "insert" and change.key is not None and len(change.key) == 1:
            yield _column(change.table, *change.key), change


def _was_given(change: RowChange, given: Iterable[str], is_sure: bool) -> bool | None:
    """True if the key was in the arguments ``given``; None for a short one that may be there by chance."""
    ((name, value),) = (change.key or {}).items()
    key, leaves = _squeezed(value), Counter(given)
    others = Counter(_squeezed(other) for column, other in change.content.items() if column != name)

    def fits(some: Counter[str]) -> bool:
        near = [leaf for leaf in some if min(len(key), len(leaf)) >= SHORTEST_TEXT]
        return key in some or any(key in leaf or leaf in key for leaf in near)

    if not fits(leaves):
        return False
    given_itself = fits(leaves - others)  # not as the value of another column
    if len(key) >= SHORTEST_TEXT:
        return given_itself or any(key in leaf for leaf in leaves)
    return (is_sure and given_itself) or None


def _leaves(arguments: Any) -> list[str]:
    """The texts and numbers in tool arguments, squeezed: a tool may make ``#W12`` of ``w12``."""
    if isinstance(arguments, dict):
        arguments = [] if "$result" in arguments else list(arguments.values())
    if isinstance(arguments, list):
        return [leaf for value in arguments for leaf in _leaves(value)]
    return [_squeezed(arguments)]


def _squeezed(value: Any) -> str:
    return re.sub(r"[\W_]+", "", str(normal(value)).casefold())


def _is_named_after(column: Column, target: Column) -> bool:
    """True for ``payments.booking_id`` and ``bookings.id`` (or ``bookings.booking_id``)."""
    name, (table, key) = column[1], target
    stems = {table, table.removesuffix("s"), table.removesuffix("es"), re.sub("ies$", "y", table)}
    named_after = {f"{stem}{end}" for stem in stems for end in (f"_{key}", "_id", "id")}
    return name in named_after or name == key != "id"


def _targets(made_up: Collection[Column], foreign: Mapping[Column, Column], column: Column) -> list[Column]:
    """The columns of made-up ids whose values ``column`` may hold."""
    if column in made_up:
        return [column]
    if column in foreign:
        table, key = foreign[column]
        return [one for one in made_up if one[0] == table and key in ("", one[1])]
    return [one for one in made_up if _is_named_after(column, one)]


# --- facts


def _facts(side: int, changes: Changes, targets: Callable[[Column], Sequence[Column]]) -> Iterator[Fact]:
    """The changes of one side as facts; the values of a column may be ids of its ``targets``."""
    ids = {
        (column, typed([normal(value)])): MadeUpId(side, column, normal(value))
        for change in changes
        if change.op == "insert"
        for name, value in change.content.items()
        if value is not None and (column := _column(change.table, name)) in targets(column)
    }
    texts = {one.value: one for one in ids.values() if isinstance(one.value, str)}
    words = [text for text in sorted(texts, key=len, reverse=True) if len(text) >= SHORTEST_TEXT]
    in_text = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, words)) or '(?!)'})(?!\w)")

    def parts(column: Column, value: Any) -> list[Any]:
        """The made-up ids in a value, and what is between them."""
        for target in targets(column):
            if (one := ids.get((target, typed([value])))) is not None:
                return [one]
        pieces = in_text.split(value) if isinstance(value, str) else [value]
        return [texts[piece] if place % 2 else piece for place, piece in enumerate(pieces)]

    rows: list[tuple[RowChange, list[tuple[str, Any]]]] = []
    for change in changes:
        cells: list[tuple[str, Any]] = []
        for kind in ("after",) if change.op == "insert" else ("key", "before", "after"):
            for name, value in sorted(normal(getattr(change, kind) or {}).items()):
                if value is not None or change.op == "update":  # NULL is left out of whole rows
                    found = [value] if kind == "before" else parts(_column(change.table, name), value)
                    cells += [(f"{kind}.{name.casefold()}", part) for part in found]
        rows.append((change, cells))
    uses = Counter(part for _, cells in rows for _, part in cells if isinstance(part, MadeUpId))
    for change, cells in rows:
        shape = [(at, part.column if isinstance(part, MadeUpId) else typed([part])) for at, part in cells]
        within = [part for _, part in cells if isinstance(part, MadeUpId)]
        matched = tuple(one if uses[one] > 1 else None for one in within)
        yield Fact((change.table.casefold(), change.op, *shape), matched)


# --- the bijection


def _same_up_to_ids(facts: Sequence[Sequence[Fact]]) -> bool:
    """True if a bijection of the ids turns the facts of one side into those of the other.

    Ids of one colour may stand for one another. As long as there are several, one of them is tried with each
    of the other side, by giving both a new colour.
    """
    ids = [one for side in facts for fact in side for one in fact.ids if one is not None]
    waiting: list[tuple[Colours, tuple[MadeUpId, ...]]] = [(dict.fromkeys(ids, 0), ())]
    failed = 0
    while waiting:
        colours, pair = waiting.pop()
        refined = _refined(facts, {**colours, **dict.fromkeys(pair, -1)})
        if refined is None:
            failed += 1
            if failed > MOST_FAILED:
                fault = (
                    f"the inserted rows are so alike that {MOST_FAILED} attempts to match their ids failed"
                )
                raise RewardError(fault, remedy="Ignore fewer columns, or name the columns of the ids.")
            continue
        sizes = Counter(refined.values())
        alike = [one for one, colour in refined.items() if sizes[colour] > 2]
        if not alike:
            return True
        chosen = min(alike, key=lambda one: (one.side, sizes[refined[one]]))
        others = [one for one in alike if one.side and refined[one] == refined[chosen]]
        waiting += [(refined, (chosen, other)) for other in reversed(others)]
    return False


def _refined(facts: Sequence[Sequence[Fact]], colours: Colours) -> Colours | None:
    """The colours split by the facts that each id is in, until they are stable; None if the sides differ.

    Ids of one colour are in the same number of facts of each form.
    """
    while True:
        seen: dict[MadeUpId, Counter[Any]] = {one: Counter() for one in colours}
        contents: list[Counter[Any]] = [Counter(), Counter()]
        for side, content in zip(facts, contents, strict=True):
            for shape, ids in side:
                form = shape, tuple(one and colours[one] for one in ids)
                content[form] += 1
                for place, one in enumerate(ids):
                    if one is not None:
                        seen[one][place, form] += 1
        palette: dict[Any, int] = {}
        new = {
            one: palette.setdefault((colours[one], frozenset(forms.items())), len(palette))
            for one, forms in seen.items()
        }
        sides = Counter((colour, one.side) for one, colour in new.items())
        if contents[0] != contents[1] or any(sides[colour, 0] != sides[colour, 1] for colour, _ in sides):
            return None
        if len(palette) == len(set(colours.values())):
            return new
        colours = new
