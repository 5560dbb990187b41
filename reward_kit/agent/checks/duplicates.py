"""Rows that are nearly the same: in one dataset, or in two that should have none in common."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from reward_kit.agent.base.text import count, text_of
from reward_kit.agent.bundles.bundle import read_bundle
from reward_kit.agent.bundles.source import LINES
from reward_kit.agent.checks.reach import words
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from reward_kit.agent.checks.findings import ValidationReport
    from reward_kit.agent.rows.task_row import TaskRow

SIMILAR = 0.8
"""Share of common words from which two instructions with equal gold are alike."""


def add_duplicates(
    report: ValidationReport, dataset: Path, rows: Sequence[TaskRow], against: Sequence[str | Path] | None
) -> None:
    """Add the rows that are alike: within ``rows``, and those of the other datasets.

    A dataset of which every other row is alike is another version of this one and is named once. Rows of two
    datasets that name one split, in ``metadata.split``, are not compared.
    """
    for first, second in _alike(rows, rows, least=1.0):
        if first.place < second.place or first.id < second.id:
            text = f"asks for the same as row {first.id}"
            report.add("near-duplicate", f"{second.place} {second.id}", text, [second.id])
    beside = (path for path in sorted(dataset.parent.iterdir()) if path.suffix.lower() in LINES)
    for other in (path for path in beside if path != dataset) if against is None else against:
        try:
            with read_bundle(other) as read:
                theirs, name = read.rows, read.dataset.name
        except BundleError:
            if against is not None:
                raise
            continue  # a file beside the dataset that is none
        alike = _alike(rows, theirs, least=SIMILAR)
        pairs = {mine.id: (mine, their) for mine, their in alike if not _of_one_split(mine, their)}
        if 2 * len(pairs) > max(len(rows), len(theirs)) and len(pairs) > 1:
            text = f"has {count(len(pairs), 'row')} of this dataset: it is another version, not another split"
            report.add("near-duplicate", name, text, grade="note")
            continue
        for mine, their in pairs.values():
            text = f"asks for the same as row {their.id} of {name}"
            report.add("near-duplicate", f"{mine.place} {mine.id}", text, [mine.id])


def _alike(
    rows: Sequence[TaskRow], others: Sequence[TaskRow], *, least: float
) -> Iterator[tuple[TaskRow, TaskRow]]:
    """Pairs with the same gold calls and outputs, and at ``least`` this share of their words in common."""
    by_gold: dict[str, list[tuple[TaskRow, Counter[str]]]] = {}
    for other in others:
        by_gold.setdefault(_gold(other), []).append((other, _words(other)))
    for row in rows:
        mine = _words(row)
        for other, theirs in by_gold.get(_gold(row), ()):
            if other is row or not mine:
                continue
            shared = 2 * (mine & theirs).total() / (mine.total() + theirs.total())
            if shared >= least:
                yield row, other


def _of_one_split(row: TaskRow, other: TaskRow) -> bool:
    split = row.metadata.get("split")
    return split is not None and split == other.metadata.get("split")


def _gold(row: TaskRow) -> str:
    """The calls that both rows have to share, but for their order; the goal of rows without any."""
    calls = sorted(json.dumps([one.name, one.arguments], sort_keys=True) for one in row.actions or ())
    return json.dumps([calls, row.outputs, row.end_goal_sql, row.actions is None])


def _words(row: TaskRow) -> Counter[str]:
    said = [text_of(message.get("content")) for message in row.initial_messages]
    return Counter(word for text in (row.text("sim_user_prompt") or "", *said) for word in words(text))
