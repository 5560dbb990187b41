"""``setup`` of a row: functions of the bundle that change the seeded data before anybody acts.

In ``tools.py``, or for ``"by": "user"`` in ``user_tools.py``::

    @R.setup
    def suspend(line: str, db):
        db.execute("UPDATE lines SET status = 'suspended' WHERE id = :line", {"line": line})
"""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import json_text
from reward_kit.agent.bundles.imports import BundleImports
from reward_kit.agent.bundles.packing import JUNK
from reward_kit.agent.bundles.toolset import load_registry, load_user_registry
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from reward_kit.agent.base.types import Side
    from reward_kit.agent.bundles.seed import Seed
    from reward_kit.agent.rows.task_row import TaskRow
    from reward_kit.agent.tools.registry import ToolRegistry


@dataclass(frozen=True, slots=True)
class SetupScript:
    """The script of a seed, and after it the ``setup`` of ``row``.

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
        if self.registries is not None:
            self._set_up(db, self.registries)
            return
        row, outside = self.row, bool(self.row.toolset_outside)
        with closing(BundleImports(self.folder)) as imports:
            agent = load_registry(imports, row.toolset, outside=outside)
            user = load_user_registry(imports, row.user_toolset, outside=outside)
            self._set_up(db, {"agent": agent, "user": user})

    def _set_up(self, db: Any, registries: Mapping[Side, ToolRegistry]) -> None:
        for number, call in enumerate(self.row.setup or ()):
            try:
                registries[call.by].run_function("setup", call.name, call.arguments, db)
            except BundleError as error:
                place = f"{self.row.place} setup[{number}]"
                raise BundleError(error.fault, place=place, remedy=error.remedy) from error


def with_setup(seed: Seed, row: TaskRow, folder: Path) -> Seed:
    """The seed of a row with its ``setup``; equal for rows with the same seed and setup.

    Its key depends on all Python files of the bundle, which the functions are in.
    """
    if not row.setup:
        return seed
    facts = [seed.key, [call.to_json() for call in row.setup], row.toolset, row.user_toolset, _code(folder)]
    key = hashlib.sha256(json_text(facts).encode()).hexdigest()
    return replace(seed, key=key, script=SetupScript(row, folder, seed.script))


def _code(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        inner = path.relative_to(folder)
        if not any(part.startswith(".") or part in JUNK for part in inner.parts) and path.is_file():
            digest.update(json.dumps([str(inner), hashlib.sha256(path.read_bytes()).hexdigest()]).encode())
    return digest.hexdigest()
