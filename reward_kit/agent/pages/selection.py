"""The rows or rollouts that a page lists: filtered and sorted by SQL, a page at a time.

The address of a page holds its selection: ``evals/NAME.html?by=rollouts&result=wrong_tool&page=2``.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, TypeVarTuple
from urllib.parse import urlencode

from reward_kit.agent.records.evaluation_file import FINAL, reading
from reward_kit.agent.records.outcome import SUCCESS_THRESHOLD
from reward_kit.agent.scoring.rows import row_results
from reward_kit.agent.storage.lock import writer_of
from reward_kit.agent.storage.outcome_rows import read_outcomes
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping

    from reward_kit.agent.records.outcome import RolloutOutcome
    from reward_kit.agent.scoring.rows import RowResult

Ts = TypeVarTuple("Ts")
R = TypeVar("R")
PAGE = 50
"""Lines of one page."""
CACHED = 64
"""Selections whose order is kept in memory."""
SORTS = {
    "rows": {
        "row": "rows.row_id",
        "passed": f"total(reward >= {SUCCESS_THRESHOLD}) / count(*)",
        "reward": "avg(reward)",
        "steps": "avg(steps)",
        "time": "avg(seconds)",
        "cost": "avg(cost)",
    },
    "rollouts": {
        "row": "row_id",
        "reward": "reward",
        "result": "coalesce(failure, stop_reason)",
        "steps": "steps",
        "turns": "turns",
        "time": "seconds",
        "cost": "cost",
    },
}
"""Columns that sort, by what is listed; each with its SQL."""
RESULTS = {"passed": "passed", "failed": "did not pass", "unjudged": "not judged"}
"""Results of rollouts that a selection can ask for, beside failure classes."""
KINDS = {
    "always": "passed always",
    "sometimes": "passed sometimes",
    "never": "never passed",
    "open": "not judged",
}
"""Kinds of rows."""
_RESULT_SQL = {
    "passed": f"reward >= {SUCCESS_THRESHOLD}",
    "failed": f"ifnull(reward, -1) < {SUCCESS_THRESHOLD}",
    "unjudged": "reward IS NULL",
}
_KIND_SQL = {
    "always": "judged > 0 AND passed = judged",
    "sometimes": "passed > 0 AND passed < judged",
    "never": "judged > 0 AND passed = 0",
    "open": "judged = 0",
}
_CALLS = (
    "EXISTS (SELECT 1 FROM trajectories t, json_each(t.json, '$.tool_calls') call"
    " WHERE t.rollout = rollouts.id AND call.value ->> 'name' = :tool)"
)
# Most trajectories fail the first condition, which needs no parsing of their JSON.
_SAYS = (
    "EXISTS (SELECT 1 FROM trajectories t WHERE t.rollout = rollouts.id AND t.json LIKE :text ESCAPE '\\'"
    " AND EXISTS (SELECT 1 FROM json_each(t.json, '$.messages') message, json_tree(message.value) part"
    " WHERE message.value ->> 'role' <> 'system' AND part.type = 'text'"
    " AND part.key NOT IN ('role', 'type', 'id', 'tool_call_id')"
    " AND (part.atom LIKE :plain ESCAPE '\\' OR part.atom LIKE :text ESCAPE '\\')))"
)


def until_written(size: int) -> Callable[[Callable[[*Ts], R]], Callable[[*Ts], R]]:
    """Decorator: keep the last ``size`` results until an evaluation is written to.

    Evaluations are the ``Path`` arguments. Results are shared, and must not be changed.
    """

    def decorate(function: Callable[[*Ts], R]) -> Callable[[*Ts], R]:
        @lru_cache(maxsize=size)
        def kept(_states: tuple[Any, ...], *arguments: *Ts) -> R:
            return function(*arguments)

        @wraps(function)
        def up_to_date(*arguments: *Ts) -> R:
            states = tuple(_state(one) for one in arguments if isinstance(one, Path))
            return kept(states, *arguments)

        return up_to_date

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
    is left out). ``sort`` is a column of ``SORTS``, after ``-`` descending.
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
        given: dict[str, Any] = {
            one.name: query[one.name].strip() for one in fields(cls) if query.get(one.name, "").strip()
        }
        page = given.get("page", "1")
        given["page"] = int(page) if page.isdecimal() and len(page) < 8 else 0
        found = cls(**given)
        allowed = {"by": SORTS, "kind": {"", *KINDS}, "sort": {"", *SORTS.get(found.by, ())}}
        for name, values in allowed.items():
            value = getattr(found, name).removeprefix("-" if name == "sort" else "")
            if value not in values:
                known = ", ".join(filter(None, sorted(values)))
                raise UsageError(f"{name}={value!r:.90} is unknown", remedy=f"There are: {known}.")
        if found.page < 1:
            raise UsageError(f"page={page!r:.90} is no number of a page")
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
    def filters(self) -> bool:
        """True unless everything is listed."""
        return replace(self, by="rows", sort="", page=1) != Selection()

    @property
    def rollouts(self) -> Selection:
        """The selected rollouts, in the order in which a person goes through them."""
        return replace(self, by="rollouts", sort=self.sort if self.by == "rollouts" else "", page=1)

    def statement(self, *, strict: bool) -> tuple[str, dict[str, str]]:
        """SQL that gives the ids in order, and whether each passed; ``strict`` judges unjudged rollouts."""
        chosen = [
            sql
            for value, sql in (
                (self.result, _RESULT_SQL.get(self.result, ":result IN (failure, stop_reason)")),
                (self.tool, _CALLS),
                (self.text, _SAYS),
            )
            if value
        ]
        values = {
            "row": _like(self.row),
            "result": self.result,
            "tool": self.tool,
            "plain": _like(self.text),
            "text": _like(json.dumps(self.text, ensure_ascii=False)[1:-1]),
        }
        way = "DESC" if self.sort.startswith("-") else "ASC"
        sort = SORTS[self.by].get(self.sort.removeprefix("-"), "1")
        condition = " AND ".join(chosen) or "1"
        judged = "count(seq)" if strict else "count(reward)"
        rows = (
            f"SELECT rows.row_id AS id, {judged} AS judged, total(reward >= {SUCCESS_THRESHOLD}) AS passed,"  # noqa: S608 - only texts of this module
            f" {sort} AS sort, n_rollouts = 0 AS dropped, position, {'total' if chosen else 'count'}"
            f"({condition}) AS matching FROM rows LEFT JOIN rollouts ON rollouts.row_id = rows.row_id"
            f" AND {FINAL} WHERE rows.row_id LIKE :row ESCAPE '\\' GROUP BY rows.row_id"
            " HAVING n_rollouts OR count(seq)"
        )
        kind = _KIND_SQL.get(self.kind, "1")
        if self.by == "rows":
            order_by = f"sort IS NULL, sort {way}, dropped, position"
            sql = f"SELECT id, passed = judged FROM ({rows}) WHERE matching AND {kind} ORDER BY {order_by}"  # noqa: S608
            return sql, values
        if self.kind:
            plain = replace(self, by="rows", result="", tool="", text="", sort="").statement(strict=strict)[0]
            condition += f" AND row_id IN (SELECT id FROM ({plain}))"  # noqa: S608
        sql = (
            f"SELECT rollouts.id, ifnull(reward >= {SUCCESS_THRESHOLD}, 0) FROM rollouts"  # noqa: S608
            f" LEFT JOIN rows USING (row_id) WHERE {FINAL} AND row_id LIKE :row ESCAPE '\\' AND {condition}"
            f" ORDER BY {sort} IS NULL, {sort} {way}, ifnull(n_rollouts, 0) = 0, position, idx"
        )
        return sql, values


def _like(text: str) -> str:
    for special in "\\%_":
        text = text.replace(special, f"\\{special}")
    return f"%{text}%"


@until_written(CACHED)
def order(path: Path, selection: Selection) -> tuple[tuple[str, int], ...]:
    """The ids of the selected rows or rollouts, each with 1 if it passed; ``selection.page`` is ignored."""
    with reading(path) as connection:
        sql, values = selection.statement(strict=_is_strict(connection))
        return tuple(connection.execute(sql, values))


class Listed(NamedTuple):
    """One page of the selected rows or rollouts; the other list is empty.

    ``total`` counts the selected, ``pages`` the pages that they fill.
    """

    rows: tuple[RowResult, ...]
    rollouts: list[RolloutOutcome]
    total: int
    pages: int


def _is_strict(connection: sqlite3.Connection) -> bool:
    """True if rollouts without a reward count as failed."""
    last = "SELECT configuration ->> 'errors_as_failures' FROM evaluation ORDER BY run DESC LIMIT 1"
    return bool(connection.execute(last).fetchone()[0])


def listed(path: Path, selection: Selection, *, whole: bool = False) -> Listed:
    """The page of a selection, or all of it as one page; a page after the last is the last."""
    found = order(path, replace(selection, page=1))
    pages = 1 if whole else max(1, -(-len(found) // PAGE))
    start = (min(selection.page, pages) - 1) * PAGE
    ids = [id_ for id_, _ in (found if whole else found[start : start + PAGE])]
    places = {id_: place for place, id_ in enumerate(ids)}
    if selection.by == "rollouts":
        rollouts = sorted(_outcomes(path, "id", ids), key=lambda one: places[one.id])
        return Listed((), rollouts, len(found), pages)
    chosen = _chosen("row_id")
    with reading(path) as connection:
        strict = _is_strict(connection)
        query = f"SELECT row_id, n_rollouts FROM rows WHERE {chosen}"  # noqa: S608
        planned = dict(connection.execute(query, (json.dumps(ids),)))
    rows = row_results(planned, _outcomes(path, "row_id", ids), errors_as_failures=strict)
    return Listed(tuple(sorted(rows, key=lambda row: places[row.row_id])), [], len(found), pages)


def outcomes_of_row(path: Path, row_id: str) -> list[RolloutOutcome]:
    """The finished rollouts of a row, in order."""
    return sorted(_outcomes(path, "row_id", [row_id]), key=lambda one: one.index)


def outcome_of(path: Path, rollout: str | None) -> RolloutOutcome | None:
    """The outcome of a rollout; None for none, and for one that does not count, because it was repeated."""
    return next(iter(_outcomes(path, "id", [rollout])), None) if rollout else None


def _outcomes(path: Path, column: str, ids: list[str]) -> list[RolloutOutcome]:
    row_ids = f"SELECT row_id FROM rollouts WHERE {_chosen(column)}"  # noqa: S608
    latest = (
        f"seq IN (SELECT max(seq) FROM rollouts WHERE final AND row_id IN ({row_ids}) GROUP BY row_id, idx)"  # noqa: S608
    )
    text = json.dumps(ids)
    with reading(path) as connection:
        return list(read_outcomes(connection, path, f"{_chosen(column)} AND {latest}", (text, text)))


def _chosen(column: str) -> str:
    return f"{column} IN (SELECT value FROM json_each(?))"  # noqa: S608
