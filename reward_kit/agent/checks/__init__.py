"""Checks of a bundle without a model: it works, its reward tells right from wrong, its rows are fair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.lazy_names import lazy_names

if TYPE_CHECKING:
    from reward_kit.agent.checks.bundle_audit import audit as audit
    from reward_kit.agent.checks.bundle_check import Finding as Finding
    from reward_kit.agent.checks.bundle_check import ValidationReport as ValidationReport
    from reward_kit.agent.checks.bundle_check import validate as validate
    from reward_kit.agent.checks.findings import AuditFinding as AuditFinding
    from reward_kit.agent.checks.findings import AuditReport as AuditReport
    from reward_kit.agent.checks.findings import RowAudit as RowAudit

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "reward_kit.agent.checks.bundle_audit": ["audit"],
        "reward_kit.agent.checks.bundle_check": ["Finding", "ValidationReport", "validate"],
        "reward_kit.agent.checks.findings": ["AuditFinding", "AuditReport", "RowAudit"],
    },
)
