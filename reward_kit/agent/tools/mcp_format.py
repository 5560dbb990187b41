"""Tools and results in the words of MCP, the same for a bundle's server and a rollout's door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

from reward_kit.agent.history import encodable

if TYPE_CHECKING:
    from collections.abc import Iterable

STOPPED = "reward-kit/stopped"
"""Key in a result's ``_meta``: why the conversation is over."""


def mcp_tools(openai_tools: Iterable[dict[str, Any]]) -> ListToolsResult:
    """The tools with name, description and schema as they are offered to models."""
    functions = [tool["function"] for tool in openai_tools]
    return ListToolsResult(
        tools=[
            Tool(name=f["name"], description=f["description"], input_schema=f["parameters"])
            for f in functions
        ]
    )


def mcp_result(content: str, status: str, *, stopped: str | None = None) -> CallToolResult:
    """What a model sees of a call; an error of the tool's is a result with ``isError``."""
    return CallToolResult(
        content=[TextContent(text=encodable(content))],
        is_error=status != "ok",
        _meta={STOPPED: stopped} if stopped else None,
    )
