"""Tables and named facts as lines of text, and tables as Markdown."""

from __future__ import annotations

from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.printing import Styled
from reward_kit.agent.base.text import one_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

NAMES = 14
"""Columns for the names of facts, with a gap."""
NARROWEST = 12
"""Columns of a cell that is folded, at least."""
LONGEST_VALUE = 300
"""Characters of a value of models and people."""
WARNING: dict[str, Any] = {"fg": "yellow", "bold": True}


def table_lines(
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    width: int | None = None,
    drop: Iterable[int] | None = None,
) -> Iterator[str]:
    """The first of ``rows`` as headings, then a line for each; the columns ``right`` are aligned right.

    While the table is wider than ``width`` (None: unlimited), columns are left out: those of ``drop``, by
    default all between the first and the last, from the right. Then the last column is folded, and the first.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = list(range(len(widths)))
    if width is not None:
        for at in shown[-2:0:-1] if drop is None else drop:
            if _total(widths, shown) > width:
                shown = [one for one in shown if one != at]
        for at in (shown[-1], 0):
            over = _total(widths, shown) - width
            widths[at] = max(min(widths[at], NARROWEST), widths[at] - max(0, over))
    for number, row in enumerate(rows):
        for cells in zip_longest(*(_folded(row[at], widths[at]) for at in shown), fillvalue=""):
            sides = (">" if at in right else "<" for at in shown)
            parts = (f"{cell:{side}{widths[at]}}" for cell, side, at in zip(cells, sides, shown, strict=True))
            line = "  ".join(parts).rstrip()
            yield line if number else Styled(line, dim=True)


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[at] for at in shown) + 2 * (len(shown) - 1)


def _folded(cell: str, width: int) -> list[str]:
    return [cell] if len(cell) <= width else wrap(cell, width, break_on_hyphens=False)


def fact_lines(facts: Iterable[tuple[str, str]], width: int) -> Iterator[str]:
    """A line for each (name, text); long texts are folded."""
    for name, text in facts:
        style = WARNING if name == "warning" else {"bold": True}
        indent = " " * NAMES
        lines = wrap(
            text, width, initial_indent=f"{name:{NAMES}}", subsequent_indent=indent, break_on_hyphens=False
        )
        yield from (Styled(line, 0, NAMES, **style) for line in lines)


def markdown_table_lines(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> Iterator[str]:
    """The first of ``rows`` as headings, then a line for each, as Markdown."""
    heading, *others = rows
    rule = ["---:" if at in right else "---" for at in range(len(heading))]
    for cells in (heading, rule, *others):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def code(text: str, longest: int = LONGEST_VALUE) -> str:
    """Text of models and people, so that Markdown shows it as it is."""
    return f"`{one_line(text, longest).replace('`', chr(39))}`"
