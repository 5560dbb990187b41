"""The page of a rollout: the verdict, the timeline of messages, calls and changed rows, the costs.

An expected call that was never made stands where it is missing, or beside the call made in its place. Every
value that differs at the end is marked once: at the last call that changed its row, else at the call that
should have.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.encoding import normal
from reward_kit.agent.base.text import call_line, cut, json_text
from reward_kit.agent.database.changes import RowChange
from reward_kit.agent.rollout.outcome import is_success
from reward_kit.agent.scoring.failures.classify import expected_calls
from reward_kit.agent.scoring.failures.first_fault import ExpectedCall, align, made_instead
from reward_kit.agent.store.evaluation_file import read_gold_calls
from reward_kit.agent.store.transcript import conversation, end_facts, player_facts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from reward_kit.agent.after.explainer import Explanation
    from reward_kit.agent.reports.listings import TreeLine
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.store.transcript import CallEntry, Entry

Identity = tuple[str, str]
DONE = {"insert": "inserted", "update": "changed", "delete": "deleted"}
LONGEST_ARGUMENT = 120


class Neighbours(NamedTuple):
    """The rollouts of the same evaluation that a page links to; ``query`` is the end of their addresses.

    ``place`` is the number of this one among ``total`` that were selected; 0 if it was not.
    """

    before: Outcome | None = None
    after: Outcome | None = None
    next_failed: Outcome | None = None
    of_row: Sequence[Outcome] = ()
    query: str = ""
    place: int = 0
    total: int = 0


def rollout_values(
    record: Trace,
    around: Neighbours,
    explanation: Explanation | None = None,
    branches: Sequence[TreeLine] = (),
) -> dict[str, Any]:
    """The values of the template ``rollout.html``; ``around`` are its links to other rollouts."""
    metrics = (record.result or {}).get("metrics") or {}
    steps = timeline(record)
    return {
        "title": f"{record.row_id} #{record.index + 1}",
        "root": "../",
        "record": record,
        "around": around,
        "passed": record.reward is not None and is_success(record.reward),
        "reason": (record.result or {}).get("reason") or "",
        "parts": {name: part for name, part in metrics.items() if isinstance(part, dict)},
        "failure": record.failure or {},
        "not_compared": ignored_columns(record.failure or {}),
        "facts": [*player_facts(record), *end_facts(record)],
        "steps": steps,
        "has_rows": any(step.rows or step.expected for step in steps),
        "verdict": verdict_on(record, steps),
        "gold": [call_line(action.name, action.arguments) for action in record.gold],
        "explanation": explanation,
        "branches": branches,
    }


# -- the timeline


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
    source = record.stored
    expected = expected_calls(*read_gold_calls(source.file, record.row_id)) if source is not None else []
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
        own = [step for step in steps if step.entry is not None and step.entry.role == "assistant"]
        last = own[-1] if own and own[-1].call is None else None  # a text that no call follows
        anchor = next(filter(None, following), last)
        at = next((at for at, step in enumerate(steps) if step is anchor), len(steps))
        steps.insert(at, Step(expected=want))


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
    unwanted, known = first["expected"] is None, first.get("key") or {}
    values = (first["got"] if unwanted else first["expected"]) or {}
    shown = {column: one for column, one in values.items() if one is not None and column not in known}
    cells = [Cell(column, [one]) for column, one in shown.items()]
    yield ShownRow(name, "", cells, "not wanted" if unwanted else "missing")


# -- the verdict


class Verdict(NamedTuple):
    """Both lines; ``wanted`` may be empty. ``is_told`` is False if ``happened`` is all that is known."""

    wanted: str
    happened: str
    is_told: bool = True


def verdict_on(record: Trace, steps: Sequence[Step]) -> Verdict:
    """The verdict on a rollout, passed or not."""
    failure = record.failure or {}
    reason = str((record.result or {}).get("reason") or "")
    if record.reward is None:
        return Verdict("", record.error or record.stop_detail or record.stop_reason or "", is_told=False)
    detail = str(failure.get("detail") or "")
    expected, made = failure.get("expected"), failure.get("made")
    if failure.get("kind") in (None, "other") and expected is None:
        return Verdict("", reason or detail, is_told=False)
    if expected is None and made is None:
        unsaid = [json_text(one, LONGEST_ARGUMENT) for one in failure.get("unsaid") or ()]
        if not unsaid:
            return Verdict("", detail)
        return Verdict(f"the agent says {', '.join(unsaid)}", "it was never said")
    ignored = ignored_columns(failure)
    differing = {one["argument"] for one in failure.get("arguments") or ()}
    names = differing - ignored or differing
    wanted = "no such call" if expected is None else _call_words(expected, names, ignored)
    if expected is not None and (more := sum(step.expected is not None for step in steps) - 1) > 0:
        wanted += f", and {more} more {'call' if more == 1 else 'calls'}"
    happened = "it was never called" if made is None else _call_words(made, names)
    if made is not None and made.get("status", "ok") != "ok":
        happened += f": {made['status']}, {made.get('answer', '')}"
    if failure["kind"] not in ("wrong_arguments", "wrong_tool", "unintended_action", "partially_completed"):
        happened = f"{happened}; {detail}" if made else detail
    return Verdict(wanted, happened)


def ignored_columns(failure: Mapping[str, Any]) -> set[str]:
    """The columns that the reward does not compare, without their tables."""
    return {name.rpartition(".")[2] for name in failure.get("not_compared") or () if "." in name}


def _call_words(
    call: Mapping[str, Any], names: Collection[str | None] = (), ignored: Collection[str] = ()
) -> str:
    """A call as Python writes it, without arguments ``ignored``; only ``names``, if there are any."""
    arguments = call["arguments"]
    if not isinstance(arguments, dict):
        return f"{call['name']}({cut(str(arguments), LONGEST_ARGUMENT)})"
    chosen = [name for name in arguments if (name in names if names else name not in ignored)]
    shown = [f"{name}={json_text(arguments[name], LONGEST_ARGUMENT)}" for name in chosen]
    return f"{call['name']}({', '.join(['…'] * (len(chosen) < len(arguments)) + shown)})"
