"""The prompts of simulated users: which text holds for a task, and what is filled into it."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reward_kit.agent.bundles.task import Task


def prompt(task: Task, name: str, **parts: str) -> str:
    """The prompt ``name`` for this task, with ``{part}`` replaced by each of ``parts``.

    The row's ``sim_user_template`` stands for ``user``; then comes ``prompts/NAME.txt`` of the bundle, then
    the file of that name in this package. ``{instruction}`` is the row's ``sim_user_prompt``.
    """
    text = (task.sim_user_template if name == "user" else None) or task.user_prompts.get(name)
    if text is None:  # an empty file is a prompt as well: react without its form
        text = _built_in(name)
    return filled(text, instruction=(task.sim_user_prompt or "").strip(), **parts)


def filled(text: str, **parts: str) -> str:
    """``text`` with each ``{part}`` replaced once; braces in what is filled in mean nothing."""
    return re.sub(r"\{(\w+)\}", lambda found: parts.get(found[1], found[0]), text).strip()


@functools.cache
def _built_in(name: str) -> str:
    return (Path(__file__).parent / "prompts" / f"{name}.txt").read_text(encoding="utf-8")
