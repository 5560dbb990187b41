"""What the database of a row is seeded from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.bundles.files import PREFIX
from reward_kit.agent.bundles.seed import SeedSource, folder_source
from reward_kit.agent.bundles.seed_script import SeedScript
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from pathlib import Path

    from reward_kit.agent.bundles.files import BundleFiles
    from reward_kit.agent.bundles.task_row import TaskRow


def seed_source(row: TaskRow, files: BundleFiles, folder: Path) -> SeedSource:
    """The source that the row's ``seed_sql`` names, else that of the bundle's ``folder``.

    Raises ``BundleError`` where a file is missing or cannot be read.
    """
    if row.seed_sql is None:
        return folder_source(folder)
    if not row.seed_sql.startswith(PREFIX):
        if files.has(row.seed_sql):
            raise BundleError(
                f"{row.seed_sql!r} is a file, not SQL", remedy=f'Write "{PREFIX}{row.seed_sql}".'
            )
        return SeedSource.of(row.seed_sql, origin=f"{row.place} seed_sql")
    path = files.resolve(row.seed_sql)
    if path.suffix == ".py":
        return SeedSource.of(script=SeedScript(path), origin=f"{folder.name}/{path.name}")
    name = path.relative_to(files.folder).as_posix()
    return SeedSource.of(files.text(row.seed_sql), origin=f"{folder.name}/{name}")
