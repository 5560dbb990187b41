"""The rows or rollouts that a page lists: filtered and sorted by SQL, a page at a time.

The address of a page holds its selection: ``evals/NAME.html?by=rollouts&result=wrong_tool&page=2``.
"""

from __future__ import annotations

import json
import re
from array import array
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, TypeVarTuple
from urllib.parse import urlencode

from reward_kit.agent.base.encoding import json_text
from reward_kit.agent.base.redaction import hide_bytes, known_secrets
from reward_kit.agent.rollout.outcome import SUCCESS_THRESHOLD
from reward_kit.agent.scoring.failures.classify import FAILURE_KINDS
from reward_kit.agent.scoring.metrics import row_results
from reward_kit.agent.store.evaluation_file import reading
from reward_kit.agent.store.schema import FINAL, among, read_outcomes
from reward_kit.agent.store.writer import writer_of
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.scoring.metrics import RowResult

Ts = TypeVarTuple("Ts")
R = TypeVar("R")
S = TypeVar("S", "list[Any]", "array[int]")
PAGE = 50
"""Lines of one page."""
CACHED = 16
"""Selections whose order is kept in memory."""
PASSED = f"reward >= {SUCCESS_THRESHOLD}"
_NUMBERS = {"reward": "reward", "steps": "steps", "turns": "turns", "time": "seconds", "cost": "cost"}
_RATE = f"total({PASSED}) / count(*)"
_WORST_FIRST = f"iif(count(seq), {_RATE}, NULL)"
"""The order of rows unless another is asked for; rows without a rollout are the last."""
SORTS = {
    "rows": {"row": "rows.row_id", "passed": _RATE} | {name: f"avg({sql})" for name, sql in _NUMBERS.items()},
    "rollouts": {"row": "row_id", "result": "coalesce(failure, stop_reason)", **_NUMBERS},
}
"""Columns that sort, by what is listed; each with its SQL."""
RESULTS = {
    "passed": ("passed", PASSED),
    "failed": ("did not pass", f"seq AND NOT ifnull({PASSED}, 0)"),
    "unjudged": ("not judged", "seq AND reward IS NULL"),
}
"""Results of rollouts that a selection can ask for beside failure classes, in words and as SQL."""
_OTHER_RESULT = (
    ":result IN (failure, stop_reason, iif(error IS NULL, NULL, 'reward_error'))"
    f" AND NOT (:result IN {FAILURE_KINDS} AND ifnull({PASSED}, 0))"  # by a stop reason of that name
)
KINDS = {
    "always": ("passed always", "judged > 0 AND passed = judged"),
    "sometimes": ("passed sometimes", "passed > 0 AND passed < judged"),
    "never": ("never passed", "judged > 0 AND passed = 0"),
    "open": ("not judged", "judged = 0"),
}
"""Kinds of rows."""
_STRICT = "(SELECT configuration GLOB '*errors_as_failures?:true*' FROM evaluation ORDER BY run DESC LIMIT 1)"
_ALL_OF_ONE_ATTEMPT = (
    "(SELECT count(*) FROM rollouts) = (SELECT count(*) FROM (SELECT DISTINCT row_id, idx FROM rollouts))"
)
_LATEST = f"(final AND {_ALL_OF_ONE_ATTEMPT} OR {FINAL})"
"""``FINAL``, which SQLite evaluates for each rollout, in half the time if no rollout was repeated."""
_CALLS = (
    "EXISTS (SELECT 1 FROM traces t, json_each(t.json, '$.tool_calls') call"
    " WHERE t.rollout = rollouts.id AND call.value ->> 'name' = :tool)"
)
_LIKE = "json LIKE ? ESCAPE '\\'"
_MOVED = "SELECT t.rowid, seq FROM traces t LEFT JOIN rollouts ON id = rollout WHERE seq IS NOT t.rowid"
"""SQL: the traces that are not in the place of their rollout, and the numbers of the rollouts."""
_UNSEARCHED = ("role", "type", "id", "tool_call_id")
"""Members of messages, as the system prompt."""
_TEXT = rb'"[^"\\]*(?:\\(?:u....|[^u])[^"\\]*)*'
_UP_TO_TEXT = re.compile(
    rb'{"role":(?!"system")(?:[^"}]*%b")*?[^"}]*"(?:content|arguments|name|text)":%b' % (_TEXT, _TEXT)
)
"""A message from its beginning to a place within a text that is searched."""
_AFTER_MESSAGES = b'},"tool_calls":['
"""The field of a trace after the messages of both sides; one of them may have such a member, too."""
_UNSAID = (
    *(b'"role":"%b"' % role for role in (b"user", b"assistant", b"tool")),
    *(b'"%b":' % name for name in (b"content", b"tool_calls", b"function", b"name", b"arguments")),
    *(b'"%b":' % name for name in (b"id", b"tool_call_id", b"text", b"user_messages")),
    *(b'"type":"%b"' % kind for kind in (b"function", b"text")),
)
"""Members of messages, and their names, as no text has them."""


def until_written(size: int) -> Callable[[Callable[[*Ts], R]], Callable[[*Ts], R]]:
    """Decorator: keep the last ``size`` results until an evaluation (a ``Path`` argument) is written to.

    Results are shared, and must not be changed.
    """

    def decorate(function: Callable[[*Ts], R]) -> Callable[[*Ts], R]:
        kept = lru_cache(size)(lambda _, *arguments: function(*arguments))
        return lambda *given: kept(tuple(_state(one) for one in given if isinstance(one, Path)), *given)

    return decorate


def _state(path: Path) -> tuple[Any, ...]:
    """Identities, times and sizes of an evaluation's files, and the process that writes them."""
    found: list[Any] = [writer_of(path)]
    for file in (path, path.with_name(f"{path.name}-wal")):
        with suppress(OSError):
            status = file.stat()
            found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Selection:
    """A choice of rows or rollouts (``by``), and its order and page.

    ``row`` is a part of row ids, ``kind`` one of ``KINDS``. The others choose rollouts, or rows that have
    such a rollout: ``result`` is one of ``RESULTS``, a failure class or a stop reason, ``tool`` the name of a
    tool that was called, ``text`` occurs in the conversation (letters A to Z in any case; the system prompt
    is left out). ``sort`` is a column of ``SORTS``, after ``-`` descending; without it, rows that failed most
    come first.
    """

    by: str = "rows"
    row: str = ""
    kind: str = ""
    result: str = ""
    tool: str = ""
    text: str = ""
    sort: str = ""
    page: int = 1

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Self:
        """Read the parameters of an address; others are ignored. Raises ``UsageError`` for a wrong value."""
        given: dict[str, Any] = {one.name: query.get(one.name, "").strip() for one in fields(cls)}
        found = cls(**{**given, "by": given["by"] or "rows", "page": page_number(query)})
        for name, values in (("by", SORTS), ("kind", KINDS), ("sort", SORTS.get(found.by, ()))):
            value = getattr(found, name)
            value = value.removeprefix("-") if name == "sort" else value
            if value and value not in values:
                remedy = f"There are: {', '.join(values)}."
                raise UsageError(f"{name}={value!r:.90} is unknown", remedy=remedy)
        return found

    def query(self, **changes: Any) -> str:
        """The end of an address that selects this with ``changes``: empty, or begins with ``?``."""
        found = asdict(replace(self, **changes))
        given = {one.name: found[one.name] for one in fields(self) if found[one.name] != one.default}
        return f"?{urlencode(given)}" if given else ""

    def sorted_by(self, column: str) -> str:
        """The end of the address that sorts by ``column``, or turns its order round."""
        return self.query(sort=f"-{column}" if self.sort == column else column, page=1)

    @property
    def rollouts(self) -> Selection:
        """The selected rollouts, in the order in which a person goes through them."""
        return replace(self, by="rollouts", sort=self.sort if self.by == "rollouts" else "", page=1)

    def statement(self) -> tuple[str, dict[str, Any]]:
        """SQL that gives the numbers in order, below 0 if not passed; ``said`` tells which have the text."""
        result = RESULTS.get(self.result, ("", _OTHER_RESULT))[1]
        chosen = [(self.result, result), (self.tool, _CALLS), (self.text, "said(seq)")]
        condition = " AND ".join(sql for value, sql in chosen if value) or "1"
        unsorted = _WORST_FIRST if self.by == "rows" else "NULL"
        sort = SORTS[self.by].get(self.sort.removeprefix("-"), unsorted)
        way = "DESC" if self.sort.startswith("-") else "ASC"
        kind = KINDS[self.kind][1] if self.kind else "1"
        columns = f", {sort} AS sort, max({condition}) AS matching" if self.by == "rows" else ""
        rows = (
            f"SELECT rows.rowid AS number, rows.row_id, count(iif({_STRICT}, seq, reward)) AS judged,"  # noqa: S608
            f" total({PASSED}) AS passed, n_rollouts = 0 AS dropped, position{columns}"
            f" FROM rows LEFT JOIN rollouts ON rollouts.row_id = rows.row_id AND {_LATEST}"
            " WHERE rows.row_id LIKE :row ESCAPE '\\' GROUP BY rows.row_id HAVING n_rollouts OR count(seq)"
        )
        if self.by == "rows":
            order_by = f"sort IS NULL, sort {way}, dropped, position"
            sql = f"SELECT number FROM ({rows}) WHERE matching AND {kind} ORDER BY {order_by}"  # noqa: S608
        else:
            in_rows = f"row_id IN (SELECT row_id FROM ({rows}) WHERE {kind})"  # noqa: S608
            first = f"{sort} IS NULL, {sort} {way}, " if self.sort else ""
            sql = (
                f"SELECT iif({PASSED}, seq, -seq) AS number FROM rows CROSS JOIN rollouts USING (row_id)"  # noqa: S608
                f" WHERE {_LATEST} AND {in_rows if self.kind or self.row else 1} AND {condition}"
                f" ORDER BY {first}n_rollouts = 0, position, idx"
            )
        return sql, {**asdict(self), "row": _like(self.row)}


def page_number(query: Mapping[str, str]) -> int:
    """The parameter ``page``, from 1; raises ``UsageError`` for any other text."""
    page = query.get("page") or "1"
    if not page.isdecimal() or len(page) > 9 or int(page) < 1:
        raise UsageError(f"page={page!r:.90} is no number of a page")
    return int(page)


def page_of(lines: S, number: int) -> tuple[S, int, int]:
    """The lines of a page, or of the last one for a later ``number``; its number, and that of all pages."""
    pages = max(1, -(-len(lines) // PAGE))
    at = min(number, pages)
    return lines[(at - 1) * PAGE : at * PAGE], at, pages


def _like(text: str) -> str:
    escaped = re.sub(r"([\\%_])", r"\\\1", text)
    return f"%{escaped}%"


def _saying(text: str, evaluation: sqlite3.Connection) -> set[int | None]:
    """The numbers of the rollouts with ``text``."""
    written = json_text(text)[1:-1]
    given, wanted = text.encode(errors="replace").lower(), written.encode().lower()
    unsaid = {one: number for one in _UNSAID if (number := one.count(wanted))}
    secrets = [_like(secret.core) for secret in known_secrets()]
    has_secret = " OR ".join([_LIKE] * len(secrets)) or "0"
    query = f"SELECT rowid, CAST(json AS BLOB), {has_secret} FROM traces WHERE {_LIKE}"  # noqa: S608
    found: set[int | None] = set()
    decided, says = b"-", False
    for number, stored, is_secret in evaluation.execute(query, (*secrets, _like(written))):
        trace = hide_bytes(stored) if is_secret else stored  # as the pages show it
        start = trace.find(b"[")
        if not trace.startswith(decided, start):  # many conversations begin as the one before
            says, end = _says(trace, start, wanted, given, unsaid)
            decided = trace[start:end]
        if says:
            found.add(number)
    moved = dict(evaluation.execute(_MOVED).fetchall()) if found else {}
    return {moved.get(number, number) for number in found} if moved else found


def _says(
    trace: bytes, start: int, wanted: bytes, given: bytes, unsaid: Mapping[bytes, int]
) -> tuple[bool, int]:
    """True if a text of a trace has ``given``, which is ``wanted`` in JSON; both in lower case.

    The number is where the bytes end, of those from ``start`` on, that tell it. Most are found without
    decoding, which takes ten times as long. ``unsaid`` are those of ``_UNSAID`` that have ``wanted``, and
    how often.
    """
    begin = start
    if trace.startswith(b'[{"role":"system"', start):
        begin = trace.find(b'},{"', start)
    end = trace.find(_AFTER_MESSAGES, begin)
    if not unsaid and end > 0:
        said = trace[begin:end]
        if until := _end_in_text(said, wanted) or _end_in_text(said.lower(), wanted):
            return True, begin + until
    last = trace.rfind(_AFTER_MESSAGES)
    told = end + len(_AFTER_MESSAGES) if 0 < end == last else len(trace)
    said = trace[begin:last].lower()
    if said.count(wanted) == sum(number * said.count(one) for one, number in unsaid.items()):
        return False, told
    return any(given in text for text in _texts_in(trace, last)), told


def _end_in_text(messages: bytes, wanted: bytes) -> int:
    """The end of the first ``wanted`` if it is certainly in a text that is searched; else 0."""
    hit = messages.find(wanted)
    is_in_text = _UP_TO_TEXT.fullmatch(messages, messages.rfind(b'{"role":', 0, hit), hit)
    return hit + len(wanted) if is_in_text else 0


def _texts_in(trace: bytes, end: int) -> Iterator[bytes]:
    """The texts of a trace that are searched, in lower case; none of one that is damaged.

    Its messages may end at ``end``.
    """
    from pydantic_core import from_json

    with suppress(ValueError, TypeError, KeyError, AttributeError):
        try:
            found = from_json(trace[:end] + b"}}")
        except ValueError:
            found = from_json(trace)
        parts = [message for message in found["messages"] if message.get("role") != "system"]
        parts += found.get("user_messages", {}).values()
        while parts:
            part = parts.pop()
            if isinstance(part, dict):
                parts += [value for name, value in part.items() if name not in _UNSEARCHED]
            elif isinstance(part, list):
                parts += part
            elif isinstance(part, str):
                yield part.encode().lower()


@until_written(CACHED)
def order(path: Path, selection: Selection) -> array[int]:
    """The numbers of the selected rows or rollouts, below 0 if not passed; ``selection.page`` is ignored."""
    sql, values = selection.statement()
    with reading(path) as connection:
        if selection.text:
            if not (said := _saying(selection.text, connection)):
                return array("q")
            connection.create_function("said", 1, said.__contains__)
        if selection.by == "rows" or not selection.text:
            query = f"SELECT json_group_array(number) FROM ({sql})"  # noqa: S608
            (numbers,) = connection.execute(query, values).fetchone()
            return array("q", json.loads(numbers))
    every = order(path, replace(selection, text=""))  # often kept since the page before
    return array("q", (number for number in every if abs(number) in said))


class Listed(NamedTuple):
    """One page of the ``total`` selected rows or rollouts, which fill ``pages``; the other list is empty."""

    rows: list[RowResult]
    rollouts: list[Outcome]
    total: int
    pages: int


def listed(path: Path, selection: Selection, *, whole: bool = False) -> Listed:
    """The page of a selection, or all of it as one page; a page after the last is the last."""
    found = order(path, replace(selection, page=1))
    numbers, _, pages = (found, 1, 1) if whole else page_of(found, selection.page)
    named = names(path, selection.by, numbers)
    ids = [named[abs(number)] for number in numbers]
    places = {id_: place for place, id_ in enumerate(ids)}
    if selection.by == "rollouts":
        rollouts = sorted(outcomes(path, "id", ids), key=lambda one: places[one.id])
        return Listed([], rollouts, len(found), pages)
    with reading(path) as connection:
        (strict,) = connection.execute(f"SELECT {_STRICT}").fetchone()
        query = f"SELECT row_id, n_rollouts FROM rows WHERE {among('row_id')}"  # noqa: S608
        planned = dict(connection.execute(query, (json.dumps(ids),)))
    rows = row_results(planned, outcomes(path, "row_id", ids), errors_as_failures=bool(strict))
    return Listed(sorted(rows, key=lambda row: places[row.row_id]), [], len(found), pages)


def names(path: Path, by: str, numbers: Iterable[int]) -> dict[int, str]:
    """The ids of rows or rollouts by the numbers that ``order`` gives them, here above 0."""
    id_ = "row_id" if by == "rows" else "id"
    query = f"SELECT rowid, {id_} FROM {by} WHERE {among('rowid')}"  # noqa: S608
    with reading(path) as connection:
        return dict(connection.execute(query, (json.dumps([*map(abs, numbers)]),)))


def outcomes(path: Path, column: str, ids: Sequence[str]) -> list[Outcome]:
    """The rollouts whose ``column`` (``id`` or ``row_id``) is among ``ids``, by their number in the row.

    Attempts that were repeated are left out.
    """
    with reading(path) as connection:
        found = read_outcomes(connection, path, f"{among(column)} AND {FINAL}", [json.dumps(ids)])
        return sorted(found, key=lambda one: one.index)
