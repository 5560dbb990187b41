"""Seeds of base databases (SQL, a script, or both, with a key over their contents), and a row's setup.

The setup consists of functions of the bundle that change the seeded data before anybody acts; the tool calls
in the ``initial_messages`` of a row are made after it.
"""

from __future__ import annotations

import ast
import asyncio
import hashlib
import importlib
import inspect
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import equal_values, json_text
from reward_kit.agent.base.files import draft_beside
from reward_kit.agent.base.places import import_fault
from reward_kit.agent.base.text import FILE, call_line, cut
from reward_kit.agent.bundles.files import BundleFiles, own_file, read_text
from reward_kit.agent.bundles.imports import BundleImports, forget, load_registry, load_user_registry
from reward_kit.agent.bundles.source import JUNK
from reward_kit.agent.database import Database
from reward_kit.agent.database.seeding import seed_base
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from reward_kit.agent.base.types import Side
    from reward_kit.agent.database.database import Mode
    from reward_kit.agent.rows.task_row import TaskRow
    from reward_kit.agent.tools.registry import ToolRegistry

FORMAT = "reward-kit.seed/2"
"""Changes whenever the same seed would give another base; hashed into every key."""

ENTRY = "seed"
INPUTS = "SEED_FILES"
"""A list of names or patterns in ``seed.py``: further files of the folder that the base depends on."""

_READS_CLOCK = re.compile(
    r"'(?:now|subsec|subsecond)'|[(,[]\s*\"(?:now|subsec|subsecond)\"|\"now\"\s*\}\s*[,)]"
    r"|\bcurrent_(?:date|time|timestamp)\b|\b(?:utc)?now\(|\b(?:date|time|datetime|julianday|unixepoch|today"
    r"|localtime|gmtime|ctime|time_ns)\s*\(\s*\)"
    r"|(?:\btime\.|(?<![\w.]))strftime\s*\(\s*(['\"])(?:(?!\1).)*\1\s*\)",
    re.IGNORECASE,
)
_NO_ARGUMENTS = re.compile(r"\(\s*\)")


@dataclass(frozen=True, slots=True)
class Seed:
    """The contents of a base: ``sql`` runs first, then ``script``.

    ``key`` is the SHA-256 (hex) over everything that the base depends on: equal keys, equal bases. ``origin``
    names the source in messages (``flight_task/seed.sql``). If the seed reads the clock, ``now`` is the row's
    frozen clock (ISO 8601), and ``of_today`` says that the row has none. ``opening`` makes the tool calls
    with which a row begins, on the base at a path.
    """

    key: str
    sql: str = ""
    script: Callable[[Any], None] | None = None
    origin: str = "seed SQL"
    now: str | None = None
    of_today: bool = False
    opening: Callable[[Path], list[str]] | None = None

    def write(self, path: Path) -> list[str]:
        """Write the base to ``path``; returns the faults of its opening: answers that the tools do not give.

        Raises ``BundleError`` for a faulty seed.
        """
        seed_base(path, self.sql, script=self.script, origin=self.origin, now=self.now)
        return self.opening(path) if self.opening is not None else []

    def base(self, path: Path, mode: Mode = "overlay") -> Database:
        """Write the base to ``path``, and open it."""
        self.write(path)
        return Database.open(path, mode=mode)


class SeedSource:
    """The contents of a seed before a row's clock is known.

    Raises ``BundleError`` if the script names its files wrongly.
    """

    def __init__(self, sql: str = "", script: SeedScript | None = None, origin: str = "seed SQL") -> None:
        self._seed = partial(Seed, sql=sql, script=script, origin=origin)
        self._digest = hashlib.sha256(FORMAT.encode())
        for content in (sql.encode(), script.fingerprint() if script else b""):
            self._digest.update(len(content).to_bytes(8, "big") + content)
        self.reads_clock = any(map(_reads_clock, (sql, script.source if script else "")))

    def at(self, now: str | None = None) -> Seed:
        """The seed for a row with the frozen clock ``now``.

        One that reads the clock gives another base on another day, so its key holds ``now``, else today's
        date (UTC).
        """
        clock = (now or datetime.now(UTC).date().isoformat()) if self.reads_clock else ""
        key = hashlib.sha256(self._digest.digest() + clock.encode()).hexdigest()
        return self._seed(key, now=now, of_today=not now) if self.reads_clock else self._seed(key)


def _reads_clock(text: str) -> bool:
    small = text.lower()
    # searched first: thirty times faster in a seed of many megabytes
    words = any(word in small for word in ("now", "current_", "subsec", "strftime"))
    return (words or bool(_NO_ARGUMENTS.search(text))) and bool(_READS_CLOCK.search(text))


def seed_source(row: TaskRow, files: BundleFiles, folder: Path) -> SeedSource:
    """The source that the row's ``seed_sql`` names, else that of the bundle's ``folder``.

    Raises ``BundleError`` if a file is missing or cannot be read.
    """
    if row.seed_sql is None:
        return folder_source(folder)
    if not row.seed_sql.startswith(FILE):
        if files.has(row.seed_sql):
            remedy = f'Write "{FILE}{row.seed_sql}".'
            raise BundleError(f"{row.seed_sql!r} is a file, not SQL", remedy=remedy)
        return SeedSource(row.seed_sql, origin=f"{row.place} seed_sql")
    path = files.resolve(row.seed_sql)
    origin = f"{folder.name}/{path.relative_to(files.folder).as_posix()}"
    if path.suffix == ".py":
        return SeedSource(script=SeedScript(path), origin=origin)
    return SeedSource(files.text(row.seed_sql), origin=origin)


def folder_source(folder: Path) -> SeedSource:
    """The source of a bundle's folder: ``seed.sql``, then ``seed.py``, if they exist.

    Raises ``BundleError`` if a seed file cannot be read or ``seed.py`` has no ``def seed(db)``.
    """
    folder = folder.resolve()
    sql, script = own_file(folder, "seed.sql"), own_file(folder, "seed.py")
    name = sql.name if sql else script.name if script else "no seed.sql or seed.py"
    text = read_text(sql) if sql else ""
    return SeedSource(text, SeedScript(script) if script else None, f"{folder.name}/{name}")


class SeedScript:
    """``def seed(db)`` of a Python file; called with the open, empty database.

    The file is read when the object is made, and run when it is called. Raises ``BundleError`` for a file
    that is not Python or has no such function, and for any exception of the function.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = f"{path.parent.name}/{path.name}"
        self.source = read_text(path)
        try:
            self._tree = ast.parse(self.source)
            names = compile(self._tree, str(path), "exec").co_names
        except SyntaxError as error:
            raise BundleError(f"SyntaxError: {error.msg}", place=f"{path}:{error.lineno}") from None
        if ENTRY not in names:
            raise BundleError(f'has no "def {ENTRY}(db)"', place=str(path))

    def fingerprint(self) -> bytes:
        """A digest of the script and of the files that it names in ``SEED_FILES``."""
        digest = hashlib.sha256(self.source.encode())
        for pattern in self._inputs():
            digest.update(b"\0" + pattern.encode())
            for file in self._matching(pattern):
                content = hashlib.sha256(file.read_bytes()).digest()
                digest.update(file.relative_to(self.path.parent).as_posix().encode() + b"\0" + content)
        return digest.digest()

    def _inputs(self) -> list[str]:
        for node in self._tree.body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if INPUTS not in map(ast.unparse, targets):
                continue
            with suppress(ValueError):
                value = ast.literal_eval(node.value)
                if isinstance(value, list | tuple) and all(isinstance(name, str) and name for name in value):
                    return list(value)
            fault = f'"{INPUTS}" must be a literal list of file names such as ["data/users.json"]'
            raise BundleError(fault, place=f"{self.path}:{node.lineno}")
        return []

    def _matching(self, pattern: str) -> list[Path]:
        """The files that ``pattern`` names, none outside of the folder."""
        folder, fault = self.path.parent, f"{INPUTS!r} names {pattern!r}"
        try:
            files = [file for file in sorted(folder.glob(pattern)) if file.is_file()]
        except (NotImplementedError, ValueError) as error:  # an absolute or an invalid pattern
            raise BundleError(f"{fault}: {error}", place=str(self.path)) from None
        if not all(file.resolve().is_relative_to(folder.resolve()) for file in files):
            raise BundleError(f"{fault}, which is outside of the bundle's folder", place=str(self.path))
        return files

    def __call__(self, db: Any) -> None:
        """Fill ``db``."""
        try:
            with _imported(self.path) as module:
                made = getattr(module, ENTRY)(db)
        except BundleError:
            raise
        except (Exception, SystemExit) as error:  # the border to the bundle's own code
            fault = import_fault(error)
            if fault.startswith(f"{self.path.name}:"):  # the line is in the script itself
                raise BundleError(f"{self.path.parent.name}/{fault}") from error
            raise BundleError(fault, place=self.place) from error
        if inspect.isgenerator(made) or inspect.iscoroutine(made):
            made.close()
            fault = f'"{ENTRY}" is a {type(made).__name__}, which has not run'
            raise BundleError(fault, place=self.place, remedy='Write a plain "def".')


@contextmanager
def _imported(path: Path) -> Iterator[ModuleType]:
    """The script as a module of a private package: relative imports work, and no name clashes."""
    package = f"_reward_kit_seed_{hashlib.sha256(str(path.parent).encode()).hexdigest()[:16]}"
    above = str(path.parent.parent)
    sys.modules[package] = ModuleType(package)
    sys.modules[package].__path__ = [str(path.parent)]
    sys.path.append(above)
    importlib.invalidate_caches()
    try:
        yield importlib.import_module(f"{package}.{path.stem}")
    finally:
        with suppress(ValueError):  # the script has removed it
            sys.path.remove(above)
        forget(package)


# -- setup

LONGEST = 200
"""Characters of an answer that an error shows."""


@dataclass(frozen=True, slots=True)
class SetupScript:
    """The script of a seed, then the ``setup`` of ``row``; ``replay`` makes the calls of its opening.

    Without ``registries`` the modules of the bundle in ``folder`` are imported for it.
    """

    row: TaskRow
    folder: Path
    script: Callable[[Any], None] | None = None
    registries: Mapping[Side, ToolRegistry] | None = None

    def __call__(self, db: Any) -> None:
        """Fill ``db``; raises ``BundleError`` if a function of ``setup`` fails."""
        if self.script is not None:
            self.script(db)
        if not self.row.setup:
            return
        with self._sides() as registries:
            for number, call in enumerate(self.row.setup):
                try:
                    registries[call.by].run_function("setup", call.name, call.arguments, db)
                except BundleError as error:
                    place = f"{self.row.place} setup[{number}]"
                    raise BundleError(error.fault, place=place, remedy=error.remedy) from error

    def replay(self, path: Path) -> list[str]:
        """Make the tool calls of ``initial_messages`` on the base at ``path``.

        Returns a line for each answer that differs from the one in the row.
        """
        with self._sides() as registries, ThreadPoolExecutor(1) as threads:  # a loop may run in this one
            return threads.submit(asyncio.run, self._replayed(path, registries)).result()

    async def _replayed(self, path: Path, registries: Mapping[Side, ToolRegistry]) -> list[str]:
        faults = []
        after = [one for side in registries.values() for one in side.functions["after_call"].values()]
        with (
            Database.open(path, mode=registries["agent"].database) as base,
            base.fork(seed=0, now=self.row.clock()) as state,
        ):
            for number, call, answer in self.row.opening_calls():
                registry = registries[call.by]
                result = await registry.call(call.name, call.arguments, db=state, after=after)
                if result.content != answer and not equal_values(result.content, answer):
                    place = f"{self.row.place} initial_messages[{number}]"
                    answers = f"{cut(result.content, LONGEST)!r}, not {cut(answer, LONGEST)!r}"
                    faults.append(f"{place}: {call_line(call.name, call.arguments)} answers {answers}")
            with draft_beside(path) as draft:
                state.export(draft)
                draft.chmod(0o444)
                draft.replace(path)
        return faults

    @contextmanager
    def _sides(self) -> Iterator[Mapping[Side, ToolRegistry]]:
        if self.registries is not None:
            yield self.registries
            return
        row, outside = self.row, bool(self.row.toolset_outside)
        with closing(BundleImports(self.folder)) as imports:
            agent = load_registry(imports, row.toolset, outside)
            user = load_user_registry(imports, row.user_toolset, outside)
            yield {"agent": agent, "user": user}


def with_setup(seed: Seed, row: TaskRow, folder: Path, code: Callable[[], str] | None = None) -> Seed:
    """The seed of a row with its ``setup`` and its opening; equal for rows that share all of them.

    Its key depends on the Python files that the functions may use; ``code`` is their hash.
    """
    opening = [(call.to_json(), answer) for _, call, answer in row.opening_calls()]
    if not (row.setup or opening):
        return seed
    setup = [call.to_json() for call in row.setup or ()]
    named = row.toolset, row.user_toolset, row.now
    facts = [seed.key, setup, opening, *named, code() if code else code_of(folder)]
    key = hashlib.sha256(json_text(facts).encode()).hexdigest()
    script = SetupScript(row, folder, seed.script)
    return replace(seed, key=key, script=script, now=row.now, opening=script.replay if opening else None)


def code_of(folder: Path) -> str:
    """The hash of all Python files of a bundle but its reward."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        inner = path.relative_to(folder)
        if inner.parts[0].removesuffix(".py") == "reward":
            continue
        if not any(part.startswith(".") or part in JUNK for part in inner.parts) and path.is_file():
            digest.update(json.dumps([str(inner), hashlib.sha256(path.read_bytes()).hexdigest()]).encode())
    return digest.hexdigest()
