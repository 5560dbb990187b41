"""``reward_kit.integrations.trl`` under its earlier name."""

from __future__ import annotations

from ..integrations.trl import create_trl_adapter

__all__ = ["create_trl_adapter"]
