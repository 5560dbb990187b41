"""What a comparison says of B, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.comparing.paired import TELLING
from reward_kit.agent.reports.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.comparing import PairedDifference


def verdict_lines(found: PairedDifference, side: str | None = None) -> Iterator[str]:
    """What the interval says of B; ``side`` is its letter where there are several."""
    none, side = ("no difference", "B") if side is None else (f"{side}: no difference", side)
    rows, points = count(found.rows, "row"), f"{100 * found.value:+.1f} points"
    if found.interval is None:
        yield f"{none} that {rows} can show: {points}, and no interval of a single row"
        return
    interval = f"95 % interval {100 * found.interval.low:+.1f} to {100 * found.interval.high:+.1f}"
    if found.differing == 0:
        yield f"{none}: each of {rows} succeeds as often in {side} as in A"
    elif found.verdict == "no difference":
        yield f"{none} that {rows} can show: {points}, {interval}"
        if found.too_few:
            yield f"({rows} are too few for an interval to mean much: compare at least {TELLING})"
    else:
        yield f"{side} is {found.verdict}: {points}, {interval}, {rows}"
        if found.differing < TELLING:
            differ = "1 row differs" if found.differing == 1 else f"{found.differing} rows differ"
            yield f"(only {differ}: with fewer than {TELLING}, take it for a hint)"
