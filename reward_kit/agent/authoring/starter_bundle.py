"""New bundles: a copy of the starter, or tools made from an API."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.agent.authoring.skeleton import tools_source
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.authoring.skeleton import ToolOutline

STARTER = Path(__file__).with_name("starter")
_ROW = """\
{"id": "first", "toolset": ".tools",
 "initial_messages": [{"role": "user", "content": "The user's request"}],
 "actions": []}
"""
_SEED = "-- The tables and rows that every rollout starts from.\n"


def write_starter(folder: Path, tools: Sequence[ToolOutline] = (), origin: str = "") -> list[str]:
    """Write a new bundle to ``folder``; returns the names of its files.

    With ``tools``, its ``tools.py`` has these, and its data and row are to be written. Raises ``UsageError``
    if the folder exists, or its name cannot be imported.
    """
    if not folder.name.isidentifier():
        raise UsageError(
            f"{folder.name!r} cannot be imported",
            place="NAME",
            remedy="Use letters, digits and underscores, such as my_task.",
        )
    if folder.name in sys.stdlib_module_names:
        fault = f"{folder.name!r} is a module of Python's"
        raise UsageError(fault, place="NAME", remedy="Choose another name.")
    if folder.exists():
        raise UsageError("exists already", place=str(folder), remedy="Choose another name.")
    texts = {
        path.name: path.read_text(encoding="utf-8").replace("NAME", folder.name)
        for path in sorted(STARTER.iterdir())
        if path.is_file()
    }
    if tools:
        texts |= {"tools.py": tools_source(tools, origin), "task.jsonl": _ROW, "seed.sql": _SEED}
        del texts["policy.md"]
    folder.mkdir(parents=True)
    try:
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError:
        shutil.rmtree(folder)
        raise
    return list(texts)
