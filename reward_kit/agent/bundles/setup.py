"""``setup`` of a row: functions of the bundle that change the seeded data before anybody acts.

The tool calls in the ``initial_messages`` of a row are made after it.

In ``tools.py``, or for ``"by": "user"`` in ``user_tools.py``::

    @R.setup
    def suspend(line: str, db):
        db.execute("UPDATE lines SET status = 'suspended' WHERE id = :line", {"line": line})
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import json_text
from reward_kit.agent.base.files import draft_beside
from reward_kit.agent.base.strict_json import equal_values
from reward_kit.agent.base.text import call_line, cut
from reward_kit.agent.bundles.imports import BundleImports, load_registry, load_user_registry
from reward_kit.agent.bundles.source import JUNK
from reward_kit.agent.database import Database
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from reward_kit.agent.base.types import Side
    from reward_kit.agent.bundles.seed import Seed
    from reward_kit.agent.rows.task_row import TaskRow
    from reward_kit.agent.tools.registry import ToolRegistry

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
                if result.content != answer and not _equal_json(result.content, answer):
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


def _equal_json(one: str, other: str) -> bool:
    try:
        return equal_values(json.loads(one), json.loads(other))
    except ValueError:
        return False


def with_setup(seed: Seed, row: TaskRow, folder: Path, code: Callable[[], str] | None = None) -> Seed:
    """The seed of a row with its ``setup`` and its opening; equal for rows that share all of them.

    Its key depends on all Python files of the bundle, which the functions are in; ``code`` is their hash.
    """
    opening = [(call.to_json(), answer) for _, call, answer in row.opening_calls()]
    if not (row.setup or opening):
        return seed
    setup = [call.to_json() for call in row.setup or ()]
    more = (opening, row.now) if opening else ()
    facts = [seed.key, setup, row.toolset, row.user_toolset, code() if code else code_of(folder), *more]
    key = hashlib.sha256(json_text(facts).encode()).hexdigest()
    script = SetupScript(row, folder, seed.script)
    return replace(seed, key=key, script=script, opening=script.replay if opening else None)


def code_of(folder: Path) -> str:
    """The hash of all Python files of a bundle."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        inner = path.relative_to(folder)
        if not any(part.startswith(".") or part in JUNK for part in inner.parts) and path.is_file():
            digest.update(json.dumps([str(inner), hashlib.sha256(path.read_bytes()).hexdigest()]).encode())
    return digest.hexdigest()
