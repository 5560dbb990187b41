"""Rules of procedure: queries of a bundle's ``rules.sql`` that find violations in a rollout.

Each row that a query returns is one violation. The queries run in an empty SQLite database with the tables
``calls``, ``changes``, ``lines`` and ``row`` of one rollout; the columns are in ``docs/rules.md``.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import json_text
from reward_kit.agent.bundles.files import read_text
from reward_kit.agent.bundles.views import VIEWS
from reward_kit.agent.database.guard import Guard, describe_statement, numeric_limits
from reward_kit.agent.database.statement import Limits, Statement
from reward_kit.agent.rows.task_row import FaultyBundleError
from reward_kit.errors import RewardError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.base.types import Message, ToolCall, Violations

RULES = "rules.sql"
SECONDS = 5.0
"""Time for one rule."""
MOST = 20
"""Violations of a rule that are kept of one rollout."""

_TABLES = {
    **{name: f"SELECT * FROM ({query}) ORDER BY position" for name, query in VIEWS.items()},  # noqa: S608
    "row": "SELECT rollout, fields FROM traces",
}
"""The tables that rules query, by name; all but the last are the views of an evaluation's file."""
_HEAD = re.compile(r"^--[ \t]*rule\b[ \t]*:?[ \t]*(?P<name>[^\s:]*)[ \t]*:?[ \t]*(?P<text>.*)", re.MULTILINE)
_PATTERN = r"--[^\n]*|/\*.*?\*/|\bREGEXP\s+'((?:[^']|'')*+)'(?!\s*\|\|)|'(?:[^']|'')*'"
_FUZZY = re.compile(r"(?<!\\)(?<!\\N)\{(?!\d*,?\d*\})")  # the library regex allows errors of such a match
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")


@dataclass(frozen=True, slots=True)
class Rule:
    """A query that returns the violations of a rule; ``place`` is its file and line."""

    name: str
    description: str
    sql: str
    place: str


def read_rules(path: Path) -> tuple[Rule, ...]:
    """The rules in the file ``path``, in order; raises ``FaultyBundleError`` with all its faults."""
    rules: dict[str, Rule] = {}
    faults = []
    with closing(_database(query_only=True)) as connection:
        for rule in _split(read_text(path), str(path)):
            fault = _fault(rule, connection)
            if rule.name in rules:
                line = rules[rule.name].place.rpartition(":")[2]
                fault = f"the name {rule.name!r} is that of the rule in line {line}"
            if fault is not None:
                faults.append(f"{rule.place}: {fault}")
            rules.setdefault(rule.name, rule)
    if not rules:
        faults.append(f"{path}:1: holds no rule; begin each with a line `-- rule: NAME  description`")
    if faults:
        raise FaultyBundleError(faults)
    return tuple(rules.values())


def violations_of(
    rules: Sequence[Rule],
    fields: Mapping[str, Any],
    messages: Sequence[Message],
    tool_calls: Sequence[ToolCall],
    user_messages: Mapping[int, Sequence[Message]] | None = None,
) -> Violations | None:
    """The violations of a rollout that is over, by rule; None without rules.

    Raises ``RewardError`` if a rule fails.
    """
    if not rules:
        return None
    found: Violations = {}
    # of the system prompt and of results, which are in the calls as well, nothing else is asked for
    said = [one if one["role"] in ("user", "assistant") else {**one, "content": None} for one in messages]
    trajectory = json_text({"messages": said, "tool_calls": tool_calls, "user_messages": user_messages or {}})
    try:
        connection = _with_rollout(trajectory, json_text(fields))
    except sqlite3.Error as error:
        del _of_thread.connection  # it may be within a transaction
        raise RewardError(f"the rules cannot read the rollout: {error}") from error
    for rule in rules:
        try:
            found[rule.name] = _rows(rule, connection)
        except sqlite3.Error as error:
            raise RewardError(f"rule {rule.name!r}: {_reason(error)}", place=rule.place) from error
    return found


def violation_text(row: Mapping[str, Any]) -> str:
    """``position 3, name 'pay'``: a row that a rule has returned."""
    return ", ".join(f"{name} {value!r}" for name, value in row.items())


def _split(text: str, path: str) -> Iterator[Rule]:
    """The rules of a file; SQL before the first is one without a name."""
    heads = list(_HEAD.finditer(text))
    ends = [head.start() for head in heads] + [len(text)]
    if any(line.strip() and not line.lstrip().startswith("--") for line in text[: ends[0]].split("\n")):
        yield Rule("", "", text[: ends[0]], f"{path}:1")
    for head, end in zip(heads, ends[1:], strict=True):
        line = text.count("\n", 0, head.start()) + 1
        yield Rule(head["name"], head["text"].strip(), text[head.end() : end], f"{path}:{line}")


def _fault(rule: Rule, connection: sqlite3.Connection) -> str | None:
    if not _NAME.fullmatch(rule.name):
        given = f"{rule.name!r} is no name" if rule.name else "has no name"
        return f"the rule {given}; begin it with a line `-- rule: NAME  description` (A-Z a-z 0-9 _ -)"
    statement = describe_statement(rule.sql)
    if statement.verb and not statement.is_query and not statement.changes_rows:  # SQLite refuses changes
        return f"rule {rule.name!r}: {statement.verb} is not allowed here; write one SELECT"
    try:
        for pattern in re.findall(_PATTERN, rule.sql, re.IGNORECASE | re.DOTALL):
            re.compile(pattern.replace("''", "'"))
        _rows(rule, connection)
    except re.error as error:
        return f"rule {rule.name!r}: REGEXP: {error}"
    except (sqlite3.Error, sqlite3.Warning) as error:
        if "one statement" in str(error):
            return f"rule {rule.name!r} has several statements; write one SELECT"
        return f"rule {rule.name!r}: {_reason(error)}"
    except TypeError:  # it has no columns
        return f"rule {rule.name!r} has no SELECT"
    return None


def _database(*, query_only: bool = False) -> sqlite3.Connection:
    """A database with the tables of a rollout, which have the columns of an evaluation's views.

    Rules have the limits of a tool's statements.
    """
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.create_function("regexp", 2, _matches, deterministic=True)
    connection.execute("CREATE TABLE traces (json, fields, rollout DEFAULT '')")
    for name, query in _TABLES.items():
        connection.execute(f"CREATE TABLE {name} AS {query}")
    connection.execute(f"PRAGMA query_only = {query_only:d}")
    for limit, value in numeric_limits(Limits()):
        connection.setlimit(limit, value)
    guard = Guard(Limits(), base_size=0)
    guard.statement = Statement("", None, None)
    connection.set_authorizer(guard.authorize)
    return connection


_of_thread = threading.local()
"""``connection`` of the last rollout; of the rule that runs, its ``end``, and the ``fault`` of its REGEXP."""


def _with_rollout(trajectory: str, fields: str) -> sqlite3.Connection:
    """The database of this thread, filled with this rollout in place of the last; queries stay prepared."""
    if not hasattr(_of_thread, "connection"):
        _of_thread.connection = _database()
    connection: sqlite3.Connection = _of_thread.connection
    connection.set_progress_handler(None, 0)  # that of the last rule, whose time may be over
    connection.execute("BEGIN")
    connection.execute("DELETE FROM traces")
    connection.execute("INSERT INTO traces (json, fields) VALUES (?, ?)", (trajectory, fields))
    for name, query in _TABLES.items():
        connection.execute(f"DELETE FROM {name}")  # noqa: S608 - a name of ours
        connection.execute(f"INSERT INTO {name} {query}")
    connection.execute("COMMIT")
    return connection


def _matches(pattern: str, text: object) -> bool | None:
    """``text REGEXP pattern``, with the syntax of Python; nothing but its own limit interrupts it."""
    if text is None:
        return None
    try:
        compiled = _compiled(pattern)
        left = max(_of_thread.end - time.monotonic(), 1e-3)
        return compiled.search(str(text), timeout=left, concurrent=True) is not None
    except (re.error, TypeError, TimeoutError, RecursionError, OverflowError) as error:
        _of_thread.fault = error  # SQLite passes on that there was one, and nothing of it
        raise


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    import regex

    re.compile(pattern)  # its syntax is that of Python, and so are the words for its faults
    return regex.compile(_FUZZY.sub(r"\\{", pattern))


def _rows(rule: Rule, connection: sqlite3.Connection) -> list[dict[str, Any]]:
    end = _of_thread.end = time.monotonic() + SECONDS
    _of_thread.fault = None
    connection.set_progress_handler(lambda: time.monotonic() > end, 10_000)
    cursor = connection.execute(rule.sql)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchmany(MOST)]


def _reason(error: sqlite3.Error | sqlite3.Warning) -> str:
    """The reason why a rule failed, in words for its author."""
    fault = _of_thread.fault
    if "interrupted" in str(error) or isinstance(fault, TimeoutError):
        return f"took longer than {SECONDS:g} s{' in REGEXP: simplify its pattern' if fault else ''}"
    return f"REGEXP: {fault}" if fault is not None else str(error)
