"""Checks of a bundle without a model: it works, its reward tells right from wrong, its rows are fair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.lazy_names import lazy_names

if TYPE_CHECKING:
    from reward_kit.agent.checks.bundle_check import audit as audit
    from reward_kit.agent.checks.bundle_check import validate as validate
    from reward_kit.agent.checks.bundle_check import validate_async as validate_async
    from reward_kit.agent.checks.findings import KINDS as KINDS
    from reward_kit.agent.checks.findings import Finding as Finding
    from reward_kit.agent.checks.findings import RowAudit as RowAudit
    from reward_kit.agent.checks.findings import ValidationReport as ValidationReport

__getattr__, __dir__, __all__ = lazy_names(__name__, older=["audit"])
