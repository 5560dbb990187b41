"""The tools of the retail domain: ``R`` for rollouts, ``app`` for trying them over HTTP.

``uvicorn tau_retail_task.tools:app --reload`` from the folder above serves them.
"""

from __future__ import annotations

from reward_kit.agent import ToolRegistry

from .calculator import calculate
from .conversation import think, transfer_to_human_agents
from .deliveries import exchange_delivered_order_items, return_delivered_order_items
from .orders import (
    cancel_pending_order,
    get_order_details,
    modify_pending_order_address,
    modify_pending_order_items,
    modify_pending_order_payment,
)
from .products import get_product_details, list_all_product_types
from .users import find_user_id_by_email, find_user_id_by_name_zip, get_user_details, modify_user_address

R = ToolRegistry("tau_retail", "Customer service of an online shop", parallel_tool_calls=False)

for function in (  # in the order in which the benchmark offers them
    calculate,
    cancel_pending_order,
    exchange_delivered_order_items,
    find_user_id_by_email,
    find_user_id_by_name_zip,
    get_order_details,
    get_product_details,
    get_user_details,
    list_all_product_types,
    modify_pending_order_address,
    modify_pending_order_items,
    modify_pending_order_payment,
    modify_user_address,
    return_delivered_order_items,
    think,
):
    R.tool(function)
R.tool(terminal="always")(transfer_to_human_agents)

app = R.create_fastapi_app()
