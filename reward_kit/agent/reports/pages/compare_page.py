"""Two evaluations side by side, row by row; and two rollouts of a row, conversation beside conversation."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from reward_kit.agent.comparison.compare import compare
from reward_kit.agent.reports.comparison import left_out_lines, measures_table, settings_lines, verdict_lines
from reward_kit.agent.reports.facts import title_line
from reward_kit.agent.reports.pages.rollout_page import timeline
from reward_kit.agent.reports.pages.selection import outcomes, page_number, page_of, until_written
from reward_kit.agent.store.loading import load_rollout
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from reward_kit.agent.reports.pages.rollout_page import Step

CHANGES = {"worse": "worse in B", "better": "better in B", "same": "equal"}
"""Changes of rows; a comparison lists them in this order."""


def comparison_values(a: Path, b: Path, query: Mapping[str, str]) -> dict[str, Any]:
    """The values of ``compare.html``: B compared with A, the rows that changed most first.

    The parameters ``change`` (one of ``CHANGES``), ``row`` (a part of row ids) and ``page`` choose rows.
    Raises ``UsageError`` if no row can be compared.
    """
    found = _compared(a, b)
    row, change = query.get("row", "").strip(), query.get("change", "")
    matching = (pair for pair in found["pairs"] if row.lower() in pair[0].row_id.lower())
    chosen = [(pair, kind) for pair, kind in matching if change in ("", kind)]
    shown, at, pages = page_of(chosen, page_number(query))
    return {
        **found,
        "title": f"{a.stem} and {b.stem}",
        "root": "../../",
        "here": b.stem,
        "changes": CHANGES,
        "query": query,
        "chosen": shown,
        "total": len(chosen),
        "page": at,
        "pages": pages,
    }


@until_written(4)
def _compared(a: Path, b: Path) -> dict[str, Any]:
    found = compare(a, b)
    kinds = list(CHANGES)
    pairs = [(pair, kinds[(pair.difference >= 0) + (pair.difference == 0)]) for pair in found.rows]
    pairs.sort(key=lambda each: (kinds.index(each[1]), -abs(each[0].difference)))
    return {
        "pairs": pairs,
        "sides": [(letter, one, title_line(one)) for letter, one in (("A", found.a), ("B", found.b))],
        "verdict": list(verdict_lines(found.success)),
        "measures": measures_table(found),
        "verdict_kind": {"better": "pass", "worse": "fail"}.get(found.success.verdicts[0], ""),
        "settings": found.settings,
        "differences": [line for line in settings_lines(found) if line][1 + len(found.settings) :],
        "left_out": [line for line in left_out_lines(found) if line],
    }


def beside_values(a: Path, b: Path, row_id: str, query: Mapping[str, str]) -> dict[str, Any]:
    """The values of ``beside.html``: two rollouts of a row, given as numbers from 1 in ``a`` and ``b``.

    Without a number a rollout that failed is shown, or the first. Raises ``UsageError`` if there is none.
    """
    sides = [_side(one, path, row_id, query.get(one, "")) for one, path in (("a", a), ("b", b))]
    timelines = [timeline(side["record"], with_expected=False) for side in sides]
    pairs = list(zip_longest(*([step for step in steps if step.entry] for steps in timelines)))
    differing = [place for place, (one, other) in enumerate(pairs) if _said(one) != _said(other)]
    return {
        "title": f"{row_id} in {a.stem} and {b.stem}",
        "root": "../../../",
        "row_id": row_id,
        "sides": sides,
        "pairs": pairs,
        "first": differing[0] if differing else None,
    }


def _side(letter: str, path: Path, row_id: str, number: str) -> dict[str, Any]:
    found = outcomes(path, "row_id", [row_id])
    failed = [one for one in found if not one.success]
    wanted = [one for one in found if str(one.index + 1) == number] if number else [*failed, *found]
    if not wanted:
        raise UsageError(f"no rollout {number} of it is over", place=f"{path.stem} {row_id}")
    return {
        "letter": letter.upper(),
        "eval_id": path.stem,
        "chosen": wanted[0],
        "outcomes": found,
        "record": load_rollout(path / wanted[0].id),
    }


def _said(step: Step | None) -> Any:
    """The part of a step that counts as equal: no times and ids."""
    if step is None or step.entry is None:
        return None
    call = step.call
    return (step.entry.role, step.entry.text) if call is None else (call.name, call.arguments, call.answer)
