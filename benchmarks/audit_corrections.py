"""The audit of the retail tasks as first published, scored against the corrections that came later.

    python benchmarks/audit_corrections.py

``task.jsonl`` records in ``metadata.correction`` what differs from ``task_classic.jsonl``, in 98 of 115 rows.
For each kind of finding in the classic file: the rows that have it, how many of these were corrected at all
and in what the kind is about (precision), and the share of the corrections of that sort that it finds
(recall). The sort of a correction is read from its words.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from reward_kit.agent.bundles.bundle import TaskBundle
from reward_kit.agent.checks import ValidationReport, validate

BUNDLE = Path(__file__).resolve().parents[1] / "tau_retail_task"
ABOUT = {
    "unstated-fact": r"email",
    "redundant-gold": r"Gold actions: without|which the tool refuses",
    "no-op": r"which the tool refuses",
    "repeated-gold": r"fewer lookups|not asked for|without the lookups|without a calculation",
    "ambiguous": (
        r"the same as the old one|payment|prefers PayPal|names the credit card|other of the two cards"
        r"|gray leather|the one with 32GB|waterproof|mountain bike|color has to be"
    ),
    "unknown-output": r"Outputs:",
}
"""A pattern of the corrections that each kind of finding is about."""


def corrections() -> dict[str, str]:
    """The correction of each row, by the number of its task."""
    rows = [json.loads(line) for line in (BUNDLE / "task.jsonl").open()]
    return {row["id"][-3:]: row["metadata"].get("correction", "") for row in rows}


def audited(name: str) -> ValidationReport:
    """Check one file of the bundle deeply; findings that a row accepts count too."""
    with TaskBundle.load(BUNDLE / name) as bundle:
        for task in bundle.tasks:
            task.row.metadata.pop("audit", None)
        return validate(bundle, deep=True)


def rows_by_kind(report: ValidationReport) -> dict[str, set[str]]:
    """The numbers of the rows that have each kind of finding."""
    found: dict[str, set[str]] = {}
    for finding in report.findings:
        found.setdefault(finding.kind, set()).update(row[-3:] for row in finding.rows)
    return found


def main() -> None:
    corrected = corrections()
    every = {row for row, text in corrected.items() if text}
    found, later = rows_by_kind(audited("task_classic.jsonl")), rows_by_kind(audited("task.jsonl"))
    print("kind             rows  corrected  in this  precision  recall           still in task.jsonl")
    for kind, rows in found.items():
        if rows:
            about = {row for row, text in corrected.items() if re.search(ABOUT.get(kind, r"(?!)"), text)}
            right = rows & about
            recall = f"{len(right)} of {len(about)}" if about else "-"
            share = f"{len(right) / len(rows):.2f}"
            counts = f"{len(rows):>4} {len(rows & every):>10} {len(right):>8} {share:>10}"
            print(f"{kind:16} {counts}  {recall:15}  {len(later.get(kind, ())):>4}")
    anything = set().union(*found.values())
    hit = anything & every
    print(f"any kind: {len(anything)} rows, {len(hit)} of them corrected, of {len(every)} corrected rows")
    print(f"  precision {len(hit) / len(anything):.2f}, recall {len(hit) / len(every):.2f}")
    only_email = re.compile(r"The customer (does not|has no)[^.]*email[^.]*\.")
    rest = {row for row in every if not only_email.fullmatch(corrected[row])}
    others = set().union(*(rows for kind, rows in found.items() if kind != "unstated-fact"))
    print(f"without unstated-fact: {len(others)} rows, {len(others & every)} of them corrected")
    print(f"  {len(others & rest)} of the {len(rest)} rows that have a correction beside the email's")


if __name__ == "__main__":
    main()
