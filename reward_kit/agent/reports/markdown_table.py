"""A table as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence


def markdown_table_lines(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> Iterator[str]:
    """The first of ``rows`` is the heading; the columns ``right`` end flush."""
    heading, *others = rows
    rule = ["---:" if at in right else "---" for at in range(len(heading))]
    for cells in (heading, rule, *others):
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
