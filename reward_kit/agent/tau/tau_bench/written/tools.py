"""The tools of the retail domain with the benchmark's own descriptions, from ``descriptions.json``."""

import json
from dataclasses import replace
from pathlib import Path

from reward_kit.agent import ToolRegistry

from .retail_tools import R as IMPLEMENTED
from .retail_tools import item_details

IMPLEMENTED.include(item_details.R)

_offer = json.loads((Path(__file__).parent / "descriptions.json").read_text(encoding="utf-8"))
R = ToolRegistry("retail", IMPLEMENTED.description, parallel_tool_calls=_offer["parallel_tool_calls"])
for _tool in _offer["tools"]:
    _described = _tool["function"]
    _name = _described["name"]
    R.tools[_name] = replace(
        IMPLEMENTED.tools[_name],
        description=_described["description"],
        schema=_described["parameters"],
        terminal="always" if _name in _offer["terminal"] else False,
    )

app = R.create_fastapi_app()
