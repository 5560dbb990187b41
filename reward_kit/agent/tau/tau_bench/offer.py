"""The tools that the new bundle offers: those of the source that have code in ``tau_retail_task``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tau_retail_task.tools import R

from .source import Row, Source, SourceError

_PARAMETERS = {
    **{name: frozenset(tool.schema["properties"]) for name, tool in R.tools.items()},
    "get_item_details": frozenset({"item_id"}),
}
"""Names of the parameters of each tool."""


@dataclass(frozen=True, slots=True)
class Offer:
    """``tools`` are the source's descriptions in the OpenAI format, ``left_out`` names of tools."""

    tools: list[dict[str, Any]]
    left_out: tuple[str, ...]


def make_offer(source: Source) -> Offer:
    """Choose the tools. Raises ``SourceError`` for other parameters, or a gold action without a tool."""
    by_name = {_name(tool, source): tool for tool in source.tools}
    for name, tool in by_name.items():
        expected = _PARAMETERS.get(name)
        found = tool["function"]["parameters"]["properties"].keys()
        if expected is not None and found != expected:
            raise SourceError(
                f"the tool {name} of {source.title} takes {_listed(found)}. Expected: {_listed(expected)}"
            )
    offered = {name: tool for name, tool in by_name.items() if name in _PARAMETERS}
    for file, rows in source.rows.items():
        for row in rows:
            _check_actions(row, offered.keys(), file)
    return Offer(list(offered.values()), tuple(name for name in by_name if name not in offered))


def _name(tool: dict[str, Any], source: Source) -> str:
    """Return the name of a tool; raise ``SourceError`` for an incomplete description."""
    function = tool.get("function")
    parts = function if isinstance(function, dict) else {}
    name, description, parameters = (parts.get(part) for part in ("name", "description", "parameters"))
    complete = (
        isinstance(name, str)
        and isinstance(description, str)
        and isinstance(parameters, dict)
        and isinstance(parameters.get("properties"), dict)
    )
    if not complete:
        raise SourceError(
            f"the description of the tool {name or '(without a name)'} of {source.title} is incomplete. "
            "Expected: name, description and parameters with properties"
        )
    return str(name)


def _check_actions(row: Row, offered: Any, file: str) -> None:
    for action in row["actions"]:
        if action["name"] not in offered:
            raise SourceError(
                f"{row['id']} in {file} has the gold action {action['name']}, a tool without code here"
            )


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "nothing"
