"""The kinds of findings of an audit: a name, a grade and a remedy each; and the report that holds them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Grade = Literal["error", "warning", "note"]


class Kind(NamedTuple):
    """The grade of a finding, unless it brings its own, and the remedy in one sentence."""

    grade: Grade
    remedy: str


KINDS: dict[str, Kind] = {
    "invalid": Kind("error", "Correct what --validate-only reports."),
    "unknown-ignored": Kind("error", "Correct the name that the reward leaves out of the comparison."),
    "slow-tool": Kind("error", "Write the tool as def, or await what takes long."),
    "clock": Kind("error", "Give the row a now, or leave the time out of what the reward compares."),
    "refused-gold": Kind("error", 'Correct the call, or add "refused": true if the refusal is meant.'),
    "no-op": Kind("error", "Ask for a change or an answer that the reward can tell from doing nothing."),
    "ignored-outputs": Kind("warning", "Let the reward look at outputs, or drop them."),
    "unknown-literal": Kind("warning", "Say the value in the instruction, or correct the gold call."),
    "unknown-output": Kind("warning", "Correct the output, or let a tool give what it is made of."),
    "unstated-fact": Kind("note", "Say the value in the instruction, or that the user does not know it."),
    "redundant-gold": Kind("warning", "Drop the gold call: it changes nothing."),
    "repeated-gold": Kind("note", "Drop the repetition, unless its answer has changed."),
    "order-dependence": Kind("warning", "Say the order in the instruction, or compare without what differs."),
    "ambiguous": Kind("warning", "Say in the instruction which one is meant, or let the reward take both."),
    "unrewarded-gold": Kind("error", "Let the reward look at what the call changes, or drop the call."),
    "lenient-reward": Kind(
        "warning", "Let the reward look at this argument, or at rows beyond the expected."
    ),
    "near-duplicate": Kind("warning", "Drop one of the rows, or keep both in one split."),
    "never-passed": Kind("warning", "Read the failed rollouts: the row may ask for the impossible."),
    "agreed-failure": Kind("warning", "Compare the agents' state with gold: gold may be wrong."),
}


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One fault: its kind, the rows that have it (none: the bundle as a whole), its place and its text."""

    kind: str
    grade: Grade
    place: str
    rows: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        more = f" (also in {', '.join(self.rows[1:])})" if len(self.rows) > 1 else ""
        return f"{self.grade}: {self.place}: {self.kind}: {self.text}{more}"


@dataclass(slots=True)
class RowAudit:
    """The facts of one row: the mutants of its gold calls that were tried, and those that the reward paid."""

    id: str
    mutants: int = 0
    paid: int = 0


@dataclass(slots=True)
class AuditReport:
    """The findings of an audit in the order of the rows, and the mutants of each row."""

    findings: list[AuditFinding] = field(default_factory=list)
    rows: list[RowAudit] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if no finding has the grade error."""
        return all(finding.grade != "error" for finding in self.findings)

    @property
    def mutants(self) -> int:
        """The number of wrong end states that the reward was asked about."""
        return sum(row.mutants for row in self.rows)

    @property
    def mutation_score(self) -> float | None:
        """The share of the mutants that the reward refuses; None without mutants."""
        return 1 - sum(row.paid for row in self.rows) / self.mutants if self.mutants else None

    def add(
        self, kind: str, place: str, rows: Iterable[str], text: str, *, grade: Grade | None = None
    ) -> None:
        """Note a finding; its grade is that of its kind unless given."""
        self.findings.append(AuditFinding(kind, grade or KINDS[kind].grade, place, tuple(rows), text))

    def counts(self) -> Iterator[tuple[str, Grade, int, int]]:
        """Kind, grade, number of findings and number of their rows, in the order of ``KINDS``."""
        found = Counter((finding.kind, finding.grade) for finding in self.findings)
        for (kind, grade), number in sorted(found.items(), key=lambda item: list(KINDS).index(item[0][0])):
            rows = {
                row for one in self.findings if (one.kind, one.grade) == (kind, grade) for row in one.rows
            }
            yield kind, grade, number, len(rows)

    def to_json(self) -> dict[str, Any]:
        """``{"ok", "mutation_score", "findings": […], "rows": […]}``; each finding with its remedy."""
        return {
            "ok": self.ok,
            "mutation_score": self.mutation_score,
            "findings": [{**asdict(one), "remedy": KINDS[one.kind].remedy} for one in self.findings],
            "rows": [asdict(row) for row in self.rows],
        }
