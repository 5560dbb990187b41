"""The tools of the retail domain with the benchmark's own descriptions, from ``descriptions.json``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from reward_kit.agent import ToolRegistry

from .retail_tools import R as IMPLEMENTED
from .retail_tools.item_details import get_item_details

_offer = json.loads((Path(__file__).parent / "descriptions.json").read_text(encoding="utf-8"))

IMPLEMENTED.tool(get_item_details)

R = ToolRegistry("retail", IMPLEMENTED.description, parallel_tool_calls=_offer["parallel_tool_calls"])
for _tool in _offer["tools"]:
    _told = _tool["function"]
    R.tools[_told["name"]] = replace(
        IMPLEMENTED.tools[_told["name"]],
        description=_told["description"],
        schema=_told["parameters"],
        terminal="always" if _told["name"] in _offer["terminal"] else False,
    )

app = R.create_fastapi_app()
