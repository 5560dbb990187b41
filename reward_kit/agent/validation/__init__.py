"""Checking a whole bundle without a model: it works, and its reward tells right from wrong."""

from reward_kit.agent.validation.bundle_check import validate
from reward_kit.agent.validation.report import Finding, ValidationReport

__all__ = ["Finding", "ValidationReport", "validate"]
