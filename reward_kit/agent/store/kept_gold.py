"""States of gold actions, kept from one evaluation to the next in ``.cache/gold.db`` of the runs folder.

A state is found again only if nothing has changed that it may depend on: the seed, the actions, the clock (of
rows without one the date), the bundle's files and the modules that they import, the installed packages. The
file is a cache, used by several processes at once; if it is damaged, actions are replayed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import json_text
from reward_kit.agent.base.redaction import hide
from reward_kit.agent.base.versions import versions
from reward_kit.agent.database import Changes, Database
from reward_kit.agent.models.cache import FOLDER
from reward_kit.agent.rollout.gold import GoldCall, GoldReplay
from reward_kit.agent.rollout.outcome import RowGold
from reward_kit.agent.store.fingerprints import INSTALLED, toolset_of
from reward_kit.agent.tools.parameters import inner_function
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reward_kit.agent.bundles.task import Task

FILE = f"{FOLDER}/gold.db"
"""In the output directory."""
BUSY_SECONDS = 5.0
"""Time limit for other processes' writes."""
LARGEST = 1 << 20
"""Bytes of a state that is kept."""
MOST_KEPT = 20_000
"""States in the file; older ones make room."""
MOST_FILES = 2000
"""Files of a bundle's folder of which more are not looked at: then nothing is kept."""
GROUP = 64
"""States that are written in one transaction."""


class KeptGold:
    """The states that may be used by an evaluation of the bundle in ``folder``.

    ``root`` is the runs folder, ``code`` the fingerprints of the modules that results depend on. A fault of
    the file never raises: ``warn`` gets one message.
    """

    def __init__(
        self, root: Path, folder: Path, code: Mapping[str, str], warn: Callable[[str], None]
    ) -> None:
        self._path = root / FILE
        self._warn = warn
        self._folder = folder
        self._connection: sqlite3.Connection | None = None
        self._is_usable = True
        self._sees_all: dict[str, bool] = {}
        self._unwritten: dict[str, tuple[str, str, bytes]] = {}
        files = _files_of(folder, root)
        facts = [versions(), _packages(), sorted(code.items()), files]
        self._surroundings = None if files is None else json.dumps(facts)

    def key_of(self, task: Task) -> str | None:
        """The key of a row's gold state; None if it must not be kept."""
        toolset = toolset_of(task.row)
        if toolset not in self._sees_all:
            tools = [*task.registry.tools.values(), *task.user_registry.tools.values()]
            are_known = all(_is_known(tool.function, self._folder) for tool in tools)
            self._sees_all[toolset] = are_known and task.registry.database == "overlay"
        if self._surroundings is None or not self._sees_all[toolset]:
            return None
        clock = task.row.clock() or [datetime.now(UTC).date(), datetime.now().astimezone().date()]
        actions = [(action.name, action.arguments, action.by) for action in task.row.actions or ()]
        facts = [task.seed.key, actions, str(clock), toolset, self._surroundings]
        return hashlib.sha256(json_text(facts).encode()).hexdigest()

    def get(self, key: str, task: Task, base: Database, seed: int) -> tuple[GoldReplay, RowGold] | None:
        """The kept state as a fork of ``base``, and what is stored of it; None if there is none."""
        try:
            query = "SELECT calls, changes, state FROM gold WHERE key = ?"
            found = self._unwritten.get(key)
            if found is None and self._is_usable:
                found = self._connected().execute(query, (key,)).fetchone()
            if found is None:
                return None
            plain, changes, state = json.loads(found[0]), json.loads(found[1]), found[2]
            calls = [GoldCall(**call) for call in plain]
            with Database.open(base.base_path, delta=state, changes=Changes.from_json(changes)) as kept:
                database = kept.fork(seed=seed, now=task.row.clock(), hidden=task.hidden)
        except (OSError, sqlite3.Error, DatabaseError, ValueError, TypeError, KeyError) as error:
            self._fail(error)
            return None
        return GoldReplay(database, calls, shared=True, fault=None), row_gold(task, calls, changes, state)

    def add(self, key: str, gold: GoldReplay, stored: RowGold) -> None:
        """Keep a state, if other rollouts would come to the same one."""
        if gold.shared and gold.fault is None and stored.state is not None and len(stored.state) <= LARGEST:
            calls = json_text(gold.calls)
            if hide(calls) == calls:  # kept whole, or not at all: the next evaluation reads the same answers
                self._unwritten[key] = calls, json_text(stored.changes), stored.state
            if len(self._unwritten) >= GROUP:
                self._write()

    def close(self) -> None:
        """Write what is to be kept, and close the file."""
        self._write()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _write(self) -> None:
        rows = [(key, *values) for key, values in self._unwritten.items()]
        self._unwritten.clear()
        if not rows or not self._is_usable:
            return
        try:
            with self._connected() as connection:
                connection.executemany("INSERT OR IGNORE INTO gold VALUES (?, ?, ?, ?)", rows)
                old = "DELETE FROM gold WHERE rowid <= (SELECT max(rowid) FROM gold) - ?"
                connection.execute(old, (MOST_KEPT,))
        except (OSError, sqlite3.Error) as error:
            self._fail(error)

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = _connect(self._path)
        return self._connection

    def _fail(self, error: Exception) -> None:
        if self._is_usable:
            self._is_usable = False
            self._warn(f"{self._path}: no state of gold actions can be kept ({error}); they are replayed")


def row_gold(
    task: Task, calls: list[GoldCall], changes: list[dict[str, Any]], state: bytes | None
) -> RowGold:
    """The effect of a row's gold actions, to be stored."""
    done = [
        {
            "name": action.name,
            "arguments": action.arguments,
            "by": action.by,
            "content": call.content,
            "changes": call.changes,
        }
        for action, call in zip(task.row.actions or (), calls, strict=True)
    ]
    return RowGold(task.row.id, done, changes, state)


def clear(root: Path) -> None:
    """Delete all states that the runs folder ``root`` keeps."""
    path = root / FILE
    with suppress(OSError, sqlite3.Error):
        if path.exists():
            with _connect(path) as connection:
                connection.execute("DELETE FROM gold")
            connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False)
    with suppress(sqlite3.OperationalError):  # NFS has no WAL
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS gold"
        " (key TEXT PRIMARY KEY, calls TEXT NOT NULL, changes TEXT NOT NULL, state BLOB NOT NULL)"
    )
    return connection


def _is_known(function: Callable[..., Any], folder: Path) -> bool:
    """True if the function was written in the bundle, or comes from an installed package."""
    code = getattr(inner_function(function), "__code__", None)
    file = Path(getattr(code, "co_filename", ""))
    return folder in file.parents or not INSTALLED.isdisjoint(file.parts)


def _packages() -> list[tuple[str, int]]:
    """The folders of installed packages, which every installation changes."""
    folders = [path for path in map(Path, sys.path) if path.name in INSTALLED and path.is_dir()]
    return [(str(path), path.stat().st_mtime_ns) for path in folders]


def _files_of(folder: Path, root: Path) -> list[tuple[str, int, int]] | None:
    """Names, sizes and times of the files of a bundle that its tools may read; None if they are too many."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name for name in folders if name[0] != "." and name != "__pycache__" and Path(place, name) != root
        ]
        # rows are not among them: what counts of a row is in its key
        for path in (Path(place, name) for name in names if name[0] != "." and not name.endswith(".jsonl")):
            with suppress(FileNotFoundError):  # a broken link
                status = path.stat()
                found.append((str(path), status.st_size, status.st_mtime_ns))
        if len(found) > MOST_FILES:
            return None
    return sorted(found)
