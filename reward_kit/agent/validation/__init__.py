"""Checking a whole bundle without a model: it works, and its reward tells right from wrong."""

from reward_kit.agent.validation.bundle_check import Finding, ValidationReport, validate

__all__ = ["Finding", "ValidationReport", "validate"]
