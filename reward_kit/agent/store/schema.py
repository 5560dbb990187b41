"""The tables of an evaluation's file, and outcomes as rows of the table ``rollouts``."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from operator import attrgetter
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from reward_kit.agent.base.encoding import json_text
from reward_kit.agent.base.redaction import hide
from reward_kit.agent.bundles.views import VIEWS
from reward_kit.agent.rollout.outcome import Outcome, usage_from_json
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence
    from pathlib import Path

APPLICATION = 0x52776B45
"""SQLite's ``application_id`` of these files: ``RwkE``."""
VERSION = 4
"""SQLite's ``user_version`` of these files."""

# --- outcomes: the columns follow from the class

_COLUMNS = {one.name: "idx" if one.name == "index" else one.name for one in fields(Outcome)}
del _COLUMNS["file"]  # the address follows from the evaluation's file and the id
_TOTALS = ("tokens", "cost")
"""Columns that are sums over the usage of all roles."""
_KINDS = {str: "TEXT", int: "INTEGER", bool: "INTEGER", float: "REAL"}
_FREE_TEXT = ("stop_detail", "error", "failure_detail")


def _kind(hint: Any) -> tuple[type, str, str]:
    """The type of a field, without None; ``NOT NULL``, or nothing; its comment."""
    comment = ""
    if hasattr(hint, "__metadata__"):
        hint, comment = hint.__origin__, f" -- {hint.__metadata__[0]}"
    members = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return members[0], "" if NoneType in members else " NOT NULL", comment


_kinds = {name: _kind(hint) for name, hint in get_type_hints(Outcome, include_extras=True).items()}
_JSON = [name for name in _COLUMNS if _kinds[name][0] not in _KINDS]
_names = (*_COLUMNS, *_TOTALS)
_values = attrgetter(*_names)
_text_places, _json_places = (
    [place for place, name in enumerate(_names) if name in chosen] for chosen in (_FREE_TEXT, _JSON)
)
WRITTEN = (*_COLUMNS.values(), *_TOTALS, "run")
"""The columns that ``row_of`` fills."""
_FIELDS = tuple(one.name for one in fields(Outcome))
_SELECT = ", ".join(_COLUMNS.get(name, "? || id") for name in _FIELDS)
_RECURRING = ("row_id", "stop_reason", "reward", "failure", "model_seconds", "waited_seconds", "base")
_recurring_fields, _json_fields = (tuple(map(_FIELDS.index, names)) for names in (_RECURRING, _JSON))
_id, _row_id, _usage, _final = map(_FIELDS.index, ("id", "row_id", "usage", "final"))
_decode = json.JSONDecoder().decode  # ``json.loads`` takes a third longer


def row_of(outcome: Outcome, run: int, hidden: set[str]) -> tuple[Any, ...]:
    """The values of an attempt in ``WRITTEN``; ``hidden`` gets the secrets that were in its texts."""
    values = list(_values(outcome))
    for place in _text_places:
        values[place] = storable(values[place], hidden)
    for place in _json_places:
        if values[place] is not None:
            values[place] = hide(json_text(values[place]), hidden)
    return (*values, run)


def storable(text: str | None, hidden: set[str]) -> str | None:
    """``text`` without secrets; halves of surrogate pairs, which SQLite does not take, are escaped."""
    return None if text is None else hide(text, hidden).encode("utf-8", "backslashreplace").decode("utf-8")


def read_outcomes(
    connection: sqlite3.Connection, path: Path, where: str = "1", values: Sequence[object] = ()
) -> Iterator[Outcome]:
    """The stored attempts that ``where`` selects, as stored; ``StorageError`` for a damaged row."""
    query = f"SELECT {_SELECT} FROM rollouts WHERE {where} ORDER BY seq"  # noqa: S608
    row_ids: set[str] = set()
    shared: dict[Any, Any] = {}  # values that recur are kept once
    for row in connection.execute(query, (f"evals/{path.name}/", *values)):
        cells = list(row)
        checked_id(cells[_id], path)
        if cells[_row_id] not in row_ids:
            row_ids.add(checked(cells[_row_id], _ROW_ID, "the id of a row", path))
        for field in _recurring_fields:
            cells[field] = shared.setdefault(cells[field], cells[field])
        try:
            for field in _json_fields:
                if (text := cells[field]) is not None:
                    cells[field] = {} if text == "{}" else _decode(text)
            if cells[_usage]:
                cells[_usage] = usage_from_json(cells[_usage])
        except (TypeError, ValueError, AttributeError) as error:
            raise StorageError(f"rollout {cells[_id]} is damaged: {error}", place=str(path)) from error
        cells[_final] = bool(cells[_final])
        yield Outcome(*cells)


# --- tables


def _column(name: str, column: str) -> str:
    kind, null, comment = _kinds[name]
    unique = " UNIQUE" if name == "id" else ""
    return f"    {column} {_KINDS.get(kind, 'TEXT')}{null}{unique},{comment}"


_rollouts = "\n".join(_column(*names) for names in _COLUMNS.items())
SCHEMA = f"""
CREATE TABLE evaluation (        -- one row per run: the first, then one per --resume
    run INTEGER PRIMARY KEY,
    eval_id TEXT NOT NULL,
    created REAL NOT NULL,       -- Unix seconds
    seconds REAL,                -- length of this run; NULL unless it ended in good order
    status TEXT NOT NULL,        -- running, complete, budget, interrupted, stopped
    reason TEXT,
    writer TEXT NOT NULL,        -- process and host that run it
    configuration TEXT NOT NULL, -- JSON: the options
    versions TEXT NOT NULL,      -- JSON: of the packages
    code TEXT NOT NULL,          -- JSON: fingerprint of each module
    toolsets TEXT NOT NULL       -- JSON: tools in the OpenAI format by their fingerprint
);
CREATE TABLE rows (
    row_id TEXT PRIMARY KEY,
    n_rollouts INTEGER NOT NULL, -- planned in the last run; 0 if it left the row out
    position INTEGER NOT NULL,   -- in the last run that has the row, from 0
    base TEXT NOT NULL,          -- key of the seed: runs/.bases/KEY.db
    fields TEXT NOT NULL,        -- JSON: the row as it was evaluated
    fingerprints TEXT NOT NULL,  -- JSON
    gold_calls TEXT,             -- JSON: gold actions with their answers and changed rows
    gold_changes TEXT,           -- JSON: rows that the gold actions change
    gold_state BLOB,             -- delta of the state after the gold actions
    gold_crc INTEGER             -- of gold_state
);
CREATE TABLE rollouts (          -- one row per attempt
    seq INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
{_rollouts}
    tokens INTEGER NOT NULL,     -- input and output, all roles
    cost REAL NOT NULL           -- US dollars
);
CREATE INDEX rollouts_of_row ON rollouts (row_id, idx);
CREATE TABLE traces (
    rollout TEXT PRIMARY KEY,
    json TEXT NOT NULL,
    crc INTEGER NOT NULL         -- CRC-32 of json
);
CREATE INDEX answer_faults ON traces (rollout) WHERE json GLOB '*fault":"*'; -- not instr: slow
CREATE TABLE states (
    rollout TEXT NOT NULL,
    kind TEXT NOT NULL,          -- final, or gold: what the gold actions lead to with the rollout's seed
    delta BLOB NOT NULL,
    crc INTEGER NOT NULL,        -- CRC-32 of delta
    PRIMARY KEY (rollout, kind)
);
CREATE TABLE usage (             -- apart from that of finished rollouts
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    created REAL NOT NULL,
    kind TEXT NOT NULL,          -- broken_off: attempts that came to no end; explanation: --explain
    rollouts INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    cost REAL NOT NULL,
    usage TEXT NOT NULL          -- JSON by role
);
CREATE TABLE notes (
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    created REAL NOT NULL,
    kind TEXT NOT NULL,          -- explanation; results: what only the run itself knew at its end
    rollout TEXT,
    json TEXT NOT NULL
);
"""

SCHEMA += "".join(f"CREATE VIEW {name} AS {query};\n" for name, query in VIEWS.items())

FINAL = (
    "final AND NOT EXISTS (SELECT 1 FROM rollouts AS later WHERE later.row_id = rollouts.row_id"
    " AND later.idx = rollouts.idx AND later.seq > rollouts.seq AND later.final)"
)
"""SQL: of each rollout the last final attempt, which is the one that counts."""


def among(column: str) -> str:
    """SQL: the ``column`` is in a list, which is given as JSON."""
    return f"{column} IN (SELECT value FROM json_each(?))"  # noqa: S608


# --- names that were stored

_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ROW_ID = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]{1,255}")
KEY = re.compile(r"[0-9a-f]{8,128}")


def checked_id(rollout: str, path: Path) -> str:
    """``rollout`` if it can be an id, which names files; else raises ``StorageError``."""
    return checked(rollout, _ID, "the id of a rollout", path)


def checked(text: object, form: re.Pattern[str], what: str, path: Path) -> str:
    if not isinstance(text, str) or not form.fullmatch(text):
        raise StorageError(f"{text!r:.90} is not {what}: the evaluation is damaged", place=str(path))
    return text
