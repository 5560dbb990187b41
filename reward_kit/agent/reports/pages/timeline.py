"""The timeline of a rollout: each message and call beside the rows that it changed.

An expected call that was never made stands where it is missing, or beside the call made in its place. Every
value that differs at the end is marked once: at the last call that changed its row, else at the call that
should have.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.strict_json import normal
from reward_kit.agent.database.changes import RowChange
from reward_kit.agent.scoring.failures.first_fault import ExpectedCall, align, made_instead
from reward_kit.agent.store.evaluation_file import read_gold_calls
from reward_kit.agent.store.transcript import conversation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.store.transcript import CallEntry, Entry

Identity = tuple[str, str]
DONE = {"insert": "inserted", "update": "changed", "delete": "deleted"}


class Cell(NamedTuple):
    """A column of a changed row, with its ``values`` before and after.

    ``wanted`` is the right value, in a list; None if the value is right.
    """

    name: str
    values: Sequence[Any]
    wanted: Sequence[Any] | None = None


class ShownRow(NamedTuple):
    """A row beside a call; ``fault`` is what is wrong with the whole row."""

    name: str
    done: str
    cells: Sequence[Cell] = ()
    fault: str = ""

    @property
    def is_wrong(self) -> bool:
        return bool(self.fault) or any(cell.wanted for cell in self.cells)


@dataclass(slots=True)
class Step:
    """A message, or one call, or a call that is missing; with the rows that it changed, or should have."""

    entry: Entry | None = None
    call: CallEntry | None = None
    expected: ExpectedCall | None = None
    rows: list[ShownRow] = field(default_factory=list)

    @property
    def changes(self) -> Sequence[dict[str, Any]]:
        return self.call.made.changes if self.call and self.call.made else ()


def timeline(record: Trace, *, with_expected: bool = True) -> list[Step]:
    """The conversation in steps, with what was expected; the last step holds rows that belong to no call."""
    steps: list[Step] = []
    for entry in conversation(record):
        if entry.text or entry.thought or not entry.calls:
            steps.append(Step(replace(entry, calls=[])))
        steps += [Step(entry, call) for call in entry.calls]
    failure = record.failure or {}
    differing = list(failure.get("rows") or ())
    if differing and with_expected:
        _add_expected(steps, record, differing)
    left = _mark(steps, differing)
    if failure.get("more_rows"):
        left.append(ShownRow(f"and {failure['more_rows']} more values", "", fault="differ"))
    return [*steps, Step(rows=left)] if left else steps


def _add_expected(steps: list[Step], record: Trace, differing: Sequence[Any]) -> None:
    expected = _expected_calls(record)
    places = {step.call.made.index: step for step in steps if step.call and step.call.made}
    matched = {call.index: place for place, call in align(record.tool_calls, expected).matched}
    for position, (want, made) in sorted(made_instead(record.tool_calls, expected, differing).items()):
        if made is not None and made.index in places:
            places[made.index].expected = want
            continue
        later = {one.name for one in expected[position + 1 :] if one.writes}
        following = (
            places.get(call.index)
            for call in record.tool_calls
            if matched.get(call.index, position if call.name not in later else len(expected)) > position
        )
        anchor = next(filter(None, following), None) or _last_reply(steps)
        at = next((at for at, step in enumerate(steps) if step is anchor), len(steps))
        steps.insert(at, Step(expected=want))


def _last_reply(steps: Sequence[Step]) -> Step | None:
    """The agent's last text, unless a call follows it."""
    own = [step for step in steps if step.entry is not None and step.entry.role == "assistant"]
    return own[-1] if own and own[-1].call is None else None


def _expected_calls(record: Trace) -> list[ExpectedCall]:
    """The gold actions as they were replayed."""
    if record.stored is None:
        return []
    gold, is_known = read_gold_calls(record.stored.file, record.row_id)
    return [
        ExpectedCall(
            one["name"],
            one["arguments"],
            bool(one["changes"]),
            one["changes"],
            one["content"] if is_known and not one["changes"] else None,
            one.get("by", "agent"),
        )
        for one in gold
    ]


def _identity(row: Mapping[str, Any]) -> Identity | None:
    """Table and key; None for a row without a key."""
    return None if row.get("key") is None else (row["table"], json.dumps(normal(row["key"])))


def _mark(steps: Sequence[Step], differing: Sequence[Mapping[str, Any]]) -> list[ShownRow]:
    """Add to each step its rows, with the values that are wrong; returns the rows that belong to no step."""
    faults: dict[Identity | None, list[Mapping[str, Any]]] = {}
    for row in differing:
        faults.setdefault(_identity(row), []).append(row)
    left = faults.pop(None, [])
    for step in reversed(steps):
        rows = [_changed(change, faults.pop(_identity(change), ())) for change in reversed(step.changes)]
        step.rows[:0] = reversed(rows)
    expecting = [(step, step.expected.changes) for step in steps if step.expected]
    for step, changes in expecting:
        for change in changes:
            step.rows += _untouched(faults.pop(_identity(change), ()))
    for step, changes in expecting:  # the keys of gold may be random, and others in each rollout
        tables = {change["table"] for change in changes}
        for identity in [one for one in faults if one is not None and one[0] in tables]:
            step.rows += _untouched(faults.pop(identity))
    left += [row for rows in faults.values() for row in rows]
    return [one for row in left for one in _untouched([row])]


def _changed(change: Mapping[str, Any], faults: Sequence[Mapping[str, Any]]) -> ShownRow:
    """A row that a call changed, and its ``faults`` at the end."""
    row = RowChange.from_json(change)
    wanted = {fault["column"]: [fault["expected"]] for fault in faults if fault["column"] is not None}
    before, after = change.get("before") or {}, change.get("after") or {}
    known = change.get("key") or {}
    columns = {} if row.op == "delete" else after
    cells = [
        Cell(name, [before.get(name), value] if row.op == "update" else [value], wanted.pop(name, None))
        for name, value in columns.items()
        if name in wanted or row.op == "update" or (value is not None and name not in known)
    ]
    got = {fault["column"]: fault["got"] for fault in faults}
    cells += [Cell(name, [got[name]], value) for name, value in wanted.items()]
    whole = next((fault for fault in faults if fault["column"] is None), None)
    note = "" if whole is None else "not wanted" if whole["expected"] is None else "wanted"
    return ShownRow(row.name(), DONE[row.op], cells, note)


def _untouched(faults: Sequence[Mapping[str, Any]]) -> Iterator[ShownRow]:
    """A row that no call changed as it was wanted."""
    if not faults:
        return
    first = faults[0]
    name = RowChange.from_json({"table": first["table"], "op": "update", "key": first.get("key")}).name()
    if first["column"] is not None:
        cells = [Cell(one["column"], [one["got"]], [one["expected"]]) for one in faults]
        yield ShownRow(name, "not changed", cells)
        return
    values, fault = first["expected"], "missing"
    if values is None:
        values, fault = first["got"], "not wanted"
    known = first.get("key") or {}
    cells = [
        Cell(column, [value])
        for column, value in (values or {}).items()
        if value is not None and column not in known
    ]
    yield ShownRow(name, "", cells, fault)
