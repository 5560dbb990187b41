"""Auditing a bundle without a model: rows that validate and still measure the wrong thing."""

from reward_kit.agent.audit.bundle_audit import audit
from reward_kit.agent.audit.findings import KINDS, AuditFinding, AuditReport, RowAudit

__all__ = ["KINDS", "AuditFinding", "AuditReport", "RowAudit", "audit"]
