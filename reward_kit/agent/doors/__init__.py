"""Doors through which an agent in another process or language reaches the tools of its rollout."""

from __future__ import annotations

from reward_kit.agent.doors.tool_door import ToolDoor

__all__ = ["ToolDoor"]
