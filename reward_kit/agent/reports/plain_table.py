"""A table of plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence


def table_lines(
    rows: Sequence[tuple[str, ...]], *, right: Collection[int] = (), width: int | None = None
) -> Iterator[str]:
    """A line for each row, its cells below those of the first; the columns ``right`` end flush.

    Where the table is wider than ``width`` (None: any is fine), the last cells stand below their line.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    below = width is not None and sum(widths) + 2 * (len(widths) - 1) > width
    for row in rows:
        cells = [f"{cell:{'>' if at in right else '<'}{widths[at]}}" for at, cell in enumerate(row)]
        yield "  ".join(cells[:-1] if below else cells).rstrip()
        if below:
            yield f"  {row[-1]}"
