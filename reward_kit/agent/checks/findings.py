"""The kinds of findings, with a grade and a remedy each, and the report of a validation."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from reward_kit.agent.base.text import count, html_table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

Grade = Literal["error", "warning", "note"]
GRADES: tuple[Grade, ...] = ("error", "warning", "note")
MOST_NAMED = 3
"""Rows that a line names."""


class Kind(NamedTuple):
    """The grade of a finding, unless it brings its own; the remedy; and if only ``--deep`` looks for it."""

    grade: Grade
    remedy: str
    deep: bool = False


KINDS: dict[str, Kind] = {
    "seed": Kind("error", "Correct the seed: every rollout starts from it."),
    "opening": Kind("error", "Write the answer that the tool gives on the row's data."),
    "goal": Kind("error", "Correct end_goal_sql."),
    "gold-call": Kind("error", "Correct the call, or the tool."),
    "refused-gold": Kind("error", 'Correct the call, or add "refused": true if the refusal is meant.'),
    "gold-reward": Kind("error", "Correct the gold actions or the reward: no agent can pass."),
    "broken-row": Kind("error", "Correct the gold actions, or what the row asks for."),
    "reward": Kind("error", "Correct the reward."),
    "unknown-ignored": Kind("error", "Correct the name that the reward leaves out of the comparison."),
    "slow-tool": Kind("error", "Write the tool as def, or await what takes long."),
    "clock": Kind("error", "Give the row a now, or leave the time out of what the reward compares."),
    "no-op": Kind("error", "Ask for a change or an answer that the reward can tell from doing nothing."),
    "ignored-outputs": Kind("warning", "Let the reward look at outputs, or drop them."),
    "solo": Kind("error", "Rename the tool, or drop the tickets if the rows are not for solo mode."),
    "no-effect": Kind(
        "warning", "Let the reward check the field (docs/rewards.md lists checks), or drop it."
    ),
    "field": Kind("warning", "Correct the field, or drop it."),
    "daily-seed": Kind("warning", 'Add "now" to the row, or results compare on the same day only.'),
    "foreign-keys": Kind("warning", "Add PRAGMA foreign_keys = ON; as the last line of the seed."),
    "toolset": Kind("warning", "Write a docstring, and a type for each parameter: a model reads both."),
    "untried-tool": Kind("warning", "Write the tool, or add a row whose gold actions call it."),
    "large-answer": Kind("warning", "Return less: a model reads it again in each of its later calls."),
    "prints": Kind("warning", "Print to sys.stderr, or use logging."),
    "unknown-literal": Kind("warning", "Say the value in the instruction, or correct the gold call.", True),
    "unknown-output": Kind("warning", "Correct the output, or let a tool give what it is made of.", True),
    "loose-output": Kind("warning", "Write more of the sentence, such as 40 minutes.", True),
    "free-text": Kind("warning", 'Leave the column out of the comparison: "not_compared" or ignore=.', True),
    "unstated-fact": Kind(
        "note", "Say the value in the instruction, or that the user does not know it.", True
    ),
    "redundant-gold": Kind("warning", "Drop the gold call: it changes nothing.", True),
    "repeated-gold": Kind("note", "Drop the repetition, unless its answer has changed.", True),
    "order-dependence": Kind(
        "warning", "Say the order in the instruction, or compare without what differs.", True
    ),
    "ambiguous": Kind(
        "warning", "Say in the instruction which one is meant, or let the reward take both.", True
    ),
    "unrewarded-gold": Kind("error", "Let the reward look at what the call changes, or drop the call.", True),
    "lenient-reward": Kind(
        "warning", "Let the reward look at this argument, or at rows beyond the expected.", True
    ),
    "near-duplicate": Kind("warning", "Drop one of the rows, or keep both in one split.", True),
    "never-passed": Kind("warning", "Read the failed rollouts: the row may ask for the impossible.", True),
    "agreed-failure": Kind("warning", "Compare the agents' state with gold: gold may be wrong.", True),
}


class Fault(NamedTuple):
    """A finding before it has a place; ``grade`` None is that of its kind."""

    kind: str
    text: str
    grade: Grade | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: its kind, its place, and the rows that have it (none: the bundle as a whole)."""

    kind: str
    grade: Grade
    place: str
    rows: tuple[str, ...]
    text: str

    @property
    def told(self) -> str:
        """``task.jsonl:3 book.1: … (also in book.2)``: without its kind and grade."""
        others = self.rows[1:]
        more = f" (also in {', '.join(others)})" if others else ""
        if len(others) > MOST_NAMED:
            more = f" (also in {len(others)} more rows: {', '.join(others[:MOST_NAMED])}, …)"
        return f"{self.place}: {self.text}{more}"

    def __str__(self) -> str:
        return f"{self.grade}: {self.kind}: {self.told}"


@dataclass(slots=True)
class RowAudit:
    """The mutants of a row's gold calls that were tried, and those that the reward paid."""

    id: str
    mutants: int = 0
    paid: int = 0


@dataclass(slots=True)
class ValidationReport:
    """The findings about a bundle, and the facts that its verdict names.

    ``rewarded`` of the ``with_gold`` rows earn the reward by their gold actions; doing nothing earns it in
    the rows ``idle``. ``rows`` are the mutants of each row, with ``deep`` only. If ``strict``, warnings
    are errors.
    """

    name: str = ""
    strict: bool = False
    deep: bool = False
    n_rows: int = 0
    n_tools: int = 0
    with_gold: int = 0
    rewarded: int = 0
    idle: list[str] = field(default_factory=list)
    rows: list[RowAudit] = field(default_factory=list)
    accepted: Mapping[str, Collection[str]] = field(default_factory=dict, repr=False)
    """The kinds that a row accepts, by its id."""
    _found: dict[tuple[str, Grade, str, str], tuple[str, dict[str, None]]] = field(
        default_factory=dict, repr=False
    )

    @property
    def findings(self) -> list[Finding]:
        """All findings, the worst first; one for all rows that have the same."""
        found = [
            Finding(kind, "error" if self.strict and grade == "warning" else grade, place, tuple(rows), text)
            for (kind, grade, text, _), (place, rows) in self._found.items()
        ]
        return sorted(found, key=lambda one: GRADES.index(one.grade))

    @property
    def ok(self) -> bool:
        """True if there is no error; warnings and notes do not count."""
        return not self.errors

    @property
    def errors(self) -> list[Finding]:
        """The findings that have to be fixed."""
        return [finding for finding in self.findings if finding.grade == "error"]

    @property
    def warnings(self) -> list[Finding]:
        """The findings that may be intended."""
        return [finding for finding in self.findings if finding.grade == "warning"]

    @property
    def mutants(self) -> int:
        """The number of wrong end states that the reward was asked about."""
        return sum(row.mutants for row in self.rows)

    @property
    def mutation_score(self) -> float | None:
        """The share of the mutants that the reward refuses; None without mutants."""
        return 1 - sum(row.paid for row in self.rows) / self.mutants if self.mutants else None

    def add(
        self,
        kind: str,
        place: str,
        text: str,
        rows: Iterable[str] = (),
        *,
        grade: Grade | None = None,
        is_accepted: bool = True,
    ) -> None:
        """Note a finding; its grade is that of its kind unless given.

        Rows that accept its kind do not count, unless ``is_accepted`` is false.
        """
        grade = grade or KINDS[kind].grade
        named = list(rows)
        having = [row for row in named if not is_accepted or kind not in self.accepted.get(row, ())]
        if having or not named:
            key = (kind, grade, text, "" if named else place)
            self._found.setdefault(key, (place, {}))[1].update(dict.fromkeys(having))

    def groups(self) -> list[tuple[Grade, str, str, list[Finding]]]:
        """Grade, kind, remedy and findings, the worst first."""
        found: dict[tuple[Grade, str], list[Finding]] = {}
        for finding in self.findings:
            found.setdefault((finding.grade, finding.kind), []).append(finding)
        kinds = list(KINDS)
        keys = sorted(found, key=lambda key: (GRADES.index(key[0]), kinds.index(key[1])))
        return [(grade, kind, KINDS[kind].remedy, found[grade, kind]) for grade, kind in keys]

    @property
    def verdict(self) -> str:
        """The result in one line."""
        tried = f"{self.name}: {count(self.n_rows, 'row')}, {count(self.n_tools, 'tool')}: "
        found = Counter(finding.grade for finding in self.findings)
        told = ", ".join(count(found[grade], grade) for grade in GRADES if found[grade])
        if not self.ok:
            return f"{tried}{told}"
        said = f"{tried}successfully validated{f', with {told}' if told else ''}"
        gold = f"gold earns the reward in {self.rewarded} of {count(self.with_gold, 'row')}, doing nothing in"
        named = f" ({', '.join(self.idle)})" if 0 < len(self.idle) <= MOST_NAMED else ""
        idle = f"{len(self.idle) or 'none'}{named}"
        return f"{said}; {gold if self.with_gold else 'doing nothing earns the reward in'} {idle}"

    @property
    def mutation_line(self) -> str | None:
        """The mutation score in words; None without mutants."""
        if self.mutation_score is None:
            return None
        refused = self.mutants - sum(row.paid for row in self.rows)
        mutants = f"{refused} of {count(self.mutants, 'mutant')} of the gold calls"
        return f"mutation score {self.mutation_score:.3f}: the reward refuses {mutants}"

    def lines(self) -> list[str]:
        """A line for each finding, and the verdict."""
        return [*map(str, self.findings), self.verdict]

    def to_json(self) -> dict[str, Any]:
        """``{"ok", "verdict", the counts, "mutation_score", "findings": […], "rows": […]}``."""
        facts = ("n_rows", "n_tools", "with_gold", "rewarded", "idle", "mutation_score")
        return {
            "ok": self.ok,
            "name": self.name,
            "verdict": self.verdict,
            "deep": self.deep,
            **{name: getattr(self, name) for name in facts},
            "findings": [{**asdict(one), "remedy": KINDS[one.kind].remedy} for one in self.findings],
            "rows": [asdict(row) for row in self.rows],
        }

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        rows = [(one.grade, one.kind, one.told, KINDS[one.kind].remedy) for one in self.findings]
        return html_table(self.verdict, ("grade", "kind", "finding", "remedy"), rows)
