"""Seeds of base databases: SQL, a script, or both, with a key over their contents."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.bundles.files import PREFIX, BundleFiles, is_file, read_text
from reward_kit.agent.bundles.seed_script import SeedScript
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.bundles.task_row import TaskRow

FORMAT = "reward-kit.seed/1"
"""Changes whenever the same seed would give another base; hashed into every key."""

SEED_SQL = "seed.sql"
SEED_SCRIPT = "seed.py"

_READS_CLOCK = re.compile(
    r"'now'|\bcurrent_(?:date|time|timestamp)\b|\b(?:date|time|datetime|julianday|unixepoch)\s*\(\s*\)|\bnow\s*\(",
    re.IGNORECASE,
)
_NO_ARGUMENTS = re.compile(r"\(\s*\)")


@dataclass(frozen=True, slots=True)
class Seed:
    """The contents of a base: ``sql`` runs first, then ``script``.

    ``key`` is the SHA-256 (hex) over everything that the base depends on: equal keys, equal bases. ``origin``
    names the source in messages (``flight_task/seed.sql``). If the seed reads the clock, ``now`` is the row's
    frozen clock (ISO 8601), and ``of_today`` says that the row has none.
    """

    key: str
    sql: str = ""
    script: Callable[[Any], None] | None = None
    origin: str = "seed SQL"
    now: str | None = None
    of_today: bool = False


@dataclass(frozen=True, slots=True)
class SeedSource:
    """The contents of a seed before a row's clock is known. ``digest`` is over the contents."""

    sql: str
    script: SeedScript | None
    origin: str
    digest: bytes
    reads_clock: bool

    @classmethod
    def of(cls, sql: str = "", script: SeedScript | None = None, *, origin: str = "seed SQL") -> SeedSource:
        """The source with its digest; raises ``BundleError`` if the script names its files wrongly."""
        digest = hashlib.sha256(FORMAT.encode())
        for content in (sql.encode(errors="surrogatepass"), script.fingerprint() if script else b""):
            digest.update(len(content).to_bytes(8, "big"))
            digest.update(content)
        reads_clock = any(map(_reads_clock, (sql, script.source if script else "")))
        return cls(sql, script, origin, digest.digest(), reads_clock)

    def at(self, now: str | None) -> Seed:
        """The seed for a row with the frozen clock ``now``.

        One that reads the clock gives another base on another day, so its key holds ``now``, else today's
        date (UTC).
        """
        clock = ""
        if self.reads_clock:
            clock = now or datetime.now(UTC).date().isoformat()
        key = hashlib.sha256(self.digest + clock.encode()).hexdigest()
        frozen = now if self.reads_clock else None
        return Seed(key, self.sql, self.script, self.origin, frozen, of_today=self.reads_clock and not now)


def _reads_clock(text: str) -> bool:
    small = text.lower()
    # searched first: thirty times faster in a seed of many megabytes
    if "now" not in small and "current_" not in small and not _NO_ARGUMENTS.search(text):
        return False
    return _READS_CLOCK.search(text) is not None


def seed_source(row: TaskRow, files: BundleFiles, folder: Path) -> SeedSource:
    """The source that the row's ``seed_sql`` names, else that of the bundle's ``folder``.

    Raises ``BundleError`` if a file is missing or cannot be read.
    """
    if row.seed_sql is None:
        return folder_source(folder)
    if not row.seed_sql.startswith(PREFIX):
        if files.has(row.seed_sql):
            remedy = f'Write "{PREFIX}{row.seed_sql}".'
            raise BundleError(f"{row.seed_sql!r} is a file, not SQL", remedy=remedy)
        return SeedSource.of(row.seed_sql, origin=f"{row.place} seed_sql")
    path = files.resolve(row.seed_sql)
    if path.suffix == ".py":
        return SeedSource.of(script=SeedScript(path), origin=f"{folder.name}/{path.name}")
    name = path.relative_to(files.folder).as_posix()
    return SeedSource.of(files.text(row.seed_sql), origin=f"{folder.name}/{name}")


def folder_source(folder: Path) -> SeedSource:
    """The seed source of a bundle's folder; see ``folder_seed``."""
    folder = folder.resolve()
    sql_file, script_file = folder / SEED_SQL, folder / SEED_SCRIPT
    has_sql, has_script = is_file(sql_file), is_file(script_file)
    for file, there in ((sql_file, has_sql), (script_file, has_script)):
        if there and not file.resolve().is_relative_to(folder):
            raise BundleError("is a link to a file outside of the bundle's folder", place=str(file))
    sql = read_text(sql_file) if has_sql else ""
    script = SeedScript(script_file) if has_script else None
    name = SEED_SQL if has_sql else SEED_SCRIPT if has_script else "no seed"
    return SeedSource.of(sql, script, origin=f"{folder.name}/{name}")


def folder_seed(folder: str | Path, now: str | None = None) -> Seed:
    """The seed of a bundle's folder: ``seed.sql``, then ``seed.py``, if they exist.

    Raises ``BundleError`` if a seed file cannot be read or ``seed.py`` has no ``def seed(db)``.
    """
    return folder_source(Path(folder)).at(now)
