"""The prompts of simulated users that a bundle brings along: files in its folder ``prompts/``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.bundles.files import read_text
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "prompts"

PLACEHOLDERS: dict[str, tuple[str, ...]] = {
    "user": ("instruction",),
    "user_react": (),
    "user_verify": ("conversation", "line"),
    "user_reflect": ("conversation", "line"),
    "user_again": ("line", "advice"),
}
"""The prompts by name, and what must have a place in each: ``{instruction}`` and so on."""


def read_user_prompts(folder: Path) -> dict[str, str]:
    """The texts of ``prompts/user*.txt`` in a bundle's folder, by name without ``.txt``.

    Raises ``BundleError`` for a file that no user reads, cannot be read, or lacks a placeholder.
    """
    prompts = {}
    for path in sorted((folder / FOLDER).glob("user*.txt")):
        place = f"{FOLDER}/{path.name}"
        if path.stem not in PLACEHOLDERS:
            raise BundleError(
                "no simulated user reads this prompt",
                place=place,
                remedy=f"Names that are read: {', '.join(f'{name}.txt' for name in PLACEHOLDERS)}.",
            )
        if not path.resolve().is_relative_to(folder.resolve()):
            raise BundleError("is a link to a file outside of the bundle's folder", place=place)
        prompts[path.stem] = read_text(path)
        if fault := placeholder_fault(prompts[path.stem], PLACEHOLDERS[path.stem]):
            raise BundleError(fault, place=place)
    return prompts


def template_fault(template: str | None) -> str | None:
    """What is wrong with a row's ``sim_user_template``."""
    return None if template is None else placeholder_fault(template, PLACEHOLDERS["user"])


def placeholder_fault(text: str, needed: tuple[str, ...]) -> str | None:
    """What ``text`` has no place for."""
    missing = [f"{{{name}}}" for name in needed if f"{{{name}}}" not in text]
    if not missing:
        return None
    return f"has no {' and no '.join(missing)}; write it where the text belongs that takes its place"
