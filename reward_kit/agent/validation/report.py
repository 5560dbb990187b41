"""What a check of a bundle has found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: what was checked (``place``) and what came out."""

    level: Level
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.level}: {self.place}: {self.text}"


@dataclass(slots=True)
class ValidationReport:
    """What was found, in the order of checking; ``ok`` is False as soon as there is an error.

    ``tell`` is called with each finding as it is made.
    """

    findings: list[Finding] = field(default_factory=list)
    tell: Callable[[Finding], None] | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings do not count."""
        return not self.errors

    @property
    def errors(self) -> list[Finding]:
        """What has to be mended."""
        return [finding for finding in self.findings if finding.level == "error"]

    @property
    def warnings(self) -> list[Finding]:
        """What may be meant so."""
        return [finding for finding in self.findings if finding.level == "warning"]

    def lines(self) -> list[str]:
        """One readable line for each check."""
        return [str(finding) for finding in self.findings]

    def to_json(self) -> dict[str, Any]:
        """``{"ok", "findings": [{"level", "place", "text"}]}``."""
        return {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}

    def add(self, level: Level, place: str, text: str) -> None:
        """Note what came of one check."""
        finding = Finding(level, place, text)
        self.findings.append(finding)
        if self.tell is not None:
            self.tell(finding)
