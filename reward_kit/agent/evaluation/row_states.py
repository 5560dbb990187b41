"""The databases that the rollouts of a row share: its base, and the state its gold actions lead to."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections import Counter
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import json_text
from reward_kit.agent.base.files import CacheFile
from reward_kit.agent.base.redaction import hide
from reward_kit.agent.base.text import one_line
from reward_kit.agent.base.versions import versions
from reward_kit.agent.database import Changes, Database
from reward_kit.agent.models.cache import FOLDER
from reward_kit.agent.rollout.gold import GoldCall, GoldReplay, replay_gold_calls
from reward_kit.agent.rollout.outcome import RowGold
from reward_kit.agent.store.fingerprints import INSTALLED, toolset_of
from reward_kit.agent.store.layout import keep_of
from reward_kit.agent.tools.parameters import inner_function
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.database.determinism import Randomness
    from reward_kit.agent.store.layout import Keep, RunsFolder

MOST_OPEN = {"overlay": 1024, "file": 128}
"""Rows that stay open without a rollout, by the mode of their database; more are made again when needed."""


@dataclass(slots=True)
class RowState:
    """The base of a row's rollouts, and the gold state that they are compared with.

    ``gold`` is None for rows without gold actions, ``keep`` if final states are not kept. ``unsaved`` is what
    is to be stored of the gold actions.
    """

    task: Task
    base: Database
    gold: GoldReplay | None
    keep: Keep | None
    unsaved: RowGold | None = None

    @asynccontextmanager
    async def gold_for(self, seed: int | Randomness) -> AsyncIterator[GoldReplay | None]:
        """``gold``, or a replay with the rollout's seed if random numbers are drawn in it."""
        if self.gold is None or self.gold.shared:
            yield self.gold
            return
        replay = await replay_gold_calls(self.task, self.base, seed=seed)
        with replay.database:
            yield replay


@dataclass(slots=True, eq=False)
class RowStates:
    """Bases and gold states of rows: made when a row's first rollout starts, closed when others need room.

    ``planned`` is the number of rollouts of the whole evaluation. ``watch`` is told each gold action.
    """

    folder: RunsFolder
    config: EvaluationConfig
    kept: KeptGold
    warn: Callable[[str], None]
    planned: int
    watch: Callable[[str], None] | None = None
    _has_warned: bool = False
    _rows: dict[str, asyncio.Future[RowState]] = field(default_factory=dict)
    _users: Counter[str] = field(default_factory=Counter)
    _bases: dict[tuple[str, str], Database] = field(default_factory=dict)

    @asynccontextmanager
    async def of(self, task: Task, seed: int) -> AsyncIterator[RowState]:
        """The state of a row; its gold actions are replayed with ``seed``. Rollouts of a row share it."""
        row_id = task.row.id
        state = self._rows.get(row_id)
        if state is None:
            state = self._rows[row_id] = self._opened(task, seed)
        self._users[row_id] += 1
        try:
            yield state.result() if state.done() else await asyncio.shield(state)
        finally:
            self._users[row_id] -= 1
            if not self._users[row_id] and len(self._rows) > MOST_OPEN[task.registry.database]:
                del self._rows[row_id]
                _close(state)

    def _opened(self, task: Task, seed: int) -> asyncio.Future[RowState]:
        """The state of a row, done at once without gold actions."""
        key = task.seed.key, task.registry.database
        base = self._bases.get(key)
        if base is None:
            path = self.folder.ensure_base(task.seed)
            base = self._bases[key] = Database.open(path, mode=task.registry.database)
        row = RowState(task, base, None, keep_of(self.config.keep_db, base, self.planned))
        if task.row.actions is not None:
            return asyncio.create_task(self._with_gold(row, seed))
        state: asyncio.Future[RowState] = asyncio.get_running_loop().create_future()
        state.set_result(row)
        return state

    async def _with_gold(self, row: RowState, seed: int) -> RowState:
        row.gold, row.unsaved = await self._gold(row.task, row.base, seed)
        if row.gold.fault is not None and not self._has_warned:
            self._has_warned = True
            self.warn(
                f"warning: row {row.task.row.id!r}: {one_line(row.gold.fault)}: what the data should be is "
                "not known; reward-kit validate names all such rows"
            )
        return row

    async def _gold(self, task: Task, base: Database, seed: int) -> tuple[GoldReplay, RowGold]:
        """The state after the row's gold actions, kept or replayed, and its form for the store."""
        key = self.kept.key_of(task)
        if key is not None and (known := self.kept.get(key, task, base, seed)) is not None:
            return known
        gold = await replay_gold_calls(task, base, seed=seed, on_begin=self.watch)
        state = gold.database.delta() if gold.shared else None
        stored = RowGold(task.row.id, gold.stored(task), gold.database.changes().to_json(), state)
        if key is not None:
            self.kept.add(key, gold, stored)
        with gold.database as played:  # a fork of it that is not written to needs no connection
            gold.database = played.fork()
        return gold, stored

    async def close(self) -> None:
        states = [*self._rows.values()]
        self._rows.clear()
        for state in states:
            state.cancel()
        await asyncio.gather(*states, return_exceptions=True)
        for state in states:
            _close(state)
        while self._bases:
            self._bases.popitem()[1].close()
        self.kept.close()


def _close(state: asyncio.Future[RowState]) -> None:
    state.cancel()
    is_open = state.done() and not state.cancelled() and state.exception() is None
    if is_open and (gold := state.result().gold) is not None:
        gold.database.close()


FILE = f"{FOLDER}/gold.db"
"""In the output directory."""
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
        self._file = _file_in(root, warn)
        self._folder = folder
        self._sees_all: dict[str, bool] = {}
        self._unwritten: dict[str, tuple[str, str, bytes]] = {}
        # every installation changes the folders of installed packages
        packages = [path for path in map(Path, sys.path) if path.name in INSTALLED and path.is_dir()]
        installed = [(str(path), path.stat().st_mtime_ns) for path in packages]
        files = _files_of(folder, root)
        facts = [versions(), installed, sorted(code.items()), files]
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
        facts = [2, task.seed.key, actions, str(clock), toolset, self._surroundings]
        return hashlib.sha256(json_text(facts).encode()).hexdigest()

    def get(self, key: str, task: Task, base: Database, seed: int) -> tuple[GoldReplay, RowGold] | None:
        """The kept state as a fork of ``base``, and its stored form; None without one."""
        try:
            found = [self._unwritten[key]] if key in self._unwritten else []
            if not found and self._file.fault is None:
                found = self._file.execute("SELECT calls, changes, state FROM gold WHERE key = ?", (key,))
            if not found:
                return None
            ((made, changed, state),) = found
            plain, changes = json.loads(made), json.loads(changed)
            calls = [GoldCall(**call) for call in plain]
            with Database.open(base.base_path, delta=state, changes=Changes.from_json(changes)) as kept:
                database = kept.fork(seed=seed, now=task.row.clock(), hidden=task.hidden)
        except (OSError, DatabaseError, ValueError, TypeError, KeyError) as error:
            self._file.fail(error)
            return None
        gold = GoldReplay(database, calls, shared=True, fault=None)
        return gold, RowGold(task.row.id, gold.stored(task), changes, state)

    def add(self, key: str, gold: GoldReplay, stored: RowGold) -> None:
        """Keep a state, if other rollouts would come to the same one."""
        if gold.shared and gold.fault is None and stored.state is not None and len(stored.state) <= LARGEST:
            calls = json_text(gold.calls)
            if hide(calls) == calls:  # kept whole, or not at all: the next evaluation reads the same answers
                self._unwritten[key] = calls, json_text(stored.changes), stored.state
            if len(self._unwritten) >= GROUP:
                self._write()

    def close(self) -> None:
        self._write()
        self._file.close()

    def _write(self) -> None:
        if self._unwritten and self._file.fault is None:
            rows = [(key, *values) for key, values in self._unwritten.items()]
            self._file.execute("INSERT OR IGNORE INTO gold VALUES (?, ?, ?, ?)", *rows)
            old = "DELETE FROM gold WHERE rowid <= (SELECT max(rowid) FROM gold) - ?"
            self._file.execute(old, (MOST_KEPT,))
        self._unwritten.clear()


def _file_in(root: Path, warn: Callable[[str], None]) -> CacheFile:
    table = "gold (key TEXT PRIMARY KEY, calls TEXT NOT NULL, changes TEXT NOT NULL, state BLOB NOT NULL)"
    told = "no state of gold actions can be kept ({}); they are replayed"
    return CacheFile(root / FILE, table, told, warn, synchronous="OFF", busy=5.0)


def clear_gold(root: Path, warn: Callable[[str], None]) -> None:
    """Delete all states that the runs folder ``root`` keeps."""
    with closing(_file_in(root, warn)) as file:
        file.clear()


def _is_known(function: Callable[..., Any], folder: Path) -> bool:
    """True if the function was written in the bundle, or comes from an installed package."""
    code = getattr(inner_function(function), "__code__", None)
    file = Path(getattr(code, "co_filename", ""))
    return folder in file.parents or not INSTALLED.isdisjoint(file.parts)


def _files_of(folder: Path, root: Path) -> list[tuple[str, int, int]] | None:
    """Names, sizes and times of the files of a bundle that its tools may read; None if they are too many."""
    found = []
    for place, folders, names in os.walk(folder):
        shown = (name for name in folders if name[0] != "." and name != "__pycache__")
        folders[:] = [name for name in shown if Path(place, name) != root]
        for name in names:
            # rows are not among them: what counts of a row is in its key
            if name[0] != "." and not name.endswith(".jsonl"):
                with suppress(FileNotFoundError):  # a broken link
                    status = Path(place, name).stat()
                    found.append((str(Path(place, name)), status.st_size, status.st_mtime_ns))
        if len(found) > MOST_FILES:
            return None
    return sorted(found)
