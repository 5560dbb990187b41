"""The rollouts of a stored evaluation as lines of a dataset: conversation, tools, reward."""

from __future__ import annotations

from reward_kit.agent.export.columns import COLUMNS
from reward_kit.agent.export.export import Export, export
from reward_kit.agent.export.formats import FORMATS, Format

__all__ = ["COLUMNS", "FORMATS", "Export", "Format", "export"]
