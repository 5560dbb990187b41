"""The report of a validation as lines: findings by kind, the worst first, then the verdict."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.printing import Styled
from reward_kit.agent.base.text import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.checks.findings import Grade, ValidationReport

MOST = 20
"""Findings of one kind that are shown."""
STYLES: dict[Grade, dict[str, Any]] = {
    "error": {"fg": "red", "bold": True},
    "warning": {"fg": "yellow", "bold": True},
    "note": {"bold": True},
}


def report_lines(
    report: ValidationReport, width: int | None = None, *, only_errors: bool = False
) -> Iterator[str]:
    """The findings, folded to ``width`` (None: not at all), and the verdict, or the errors only."""
    for grade, kind, remedy, findings in report.groups():
        if grade == "error" or not only_errors:
            rows = {row for finding in findings for row in finding.rows}
            head = f"{grade}: {kind}" + (f" ({count(len(rows), 'row')})" if rows else "")
            lines = _folded(f"{head}. {remedy}", width)
            yield Styled(lines[0], 0, min(len(head), len(lines[0])), **STYLES[grade])
            yield from lines[1:]
            for finding in findings[:MOST]:
                yield from _folded(f"  {finding.told}", width)
            if len(findings) > MOST:
                yield f"  … and {len(findings) - MOST} more; --json FILE writes all"
            yield ""
    if only_errors and report.ok:
        return
    if report.mutation_line is not None:
        yield from _folded(report.mutation_line, width)
    style: dict[str, Any] = {"fg": "green" if report.ok else "red", "bold": True}
    yield from (Styled(line, **style) for line in _folded(report.verdict, width))


def _folded(text: str, width: int | None) -> list[str]:
    lines: list[str] = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()))
        folded = width and wrap(
            line, width, subsequent_indent=f"{indent}  ", break_on_hyphens=False, break_long_words=False
        )
        lines += folded or [line]
    return lines
