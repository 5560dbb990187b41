"""A small checkout of tau-bench, with a shop of its own: one product, two customers."""

import copy
import json
from pathlib import Path
from typing import Any

from small_tau2 import put

LICENCE = "Anybody may use this shop.\n"
POLICY = "# Rules of the small shop\n\nÊtre aimable: always.\n"
_STREET = {"address1": "1 Mill Road", "address2": ""}
HOME = {**_STREET, "city": "Eastport", "country": "USA", "state": "ME", "zip": "04631"}
_PEN = {"name": "Pen", "product_id": "1000000001"}


def _variant(item_id: str, colour: str, price: float, *, available: bool) -> dict[str, Any]:
    return {"item_id": item_id, "options": {"colour": colour}, "available": available, "price": price}


def _order(order_id: str, user_id: str, status: str, method: str) -> dict[str, Any]:
    delivered = [{"tracking_id": ["555000111222"], "item_ids": ["2000000001"]}]
    return {
        "order_id": order_id,
        "user_id": user_id,
        "address": HOME,
        "items": [{**_PEN, "item_id": "2000000001", "price": 3.5, "options": {"colour": "red"}}],
        "fulfillments": delivered if status == "delivered" else [],
        "status": status,
        "payment_history": [{"transaction_type": "payment", "amount": 3.5, "payment_method_id": method}],
    }


def small_shop() -> dict[str, dict[str, Any]]:
    """``users``, ``products`` and ``orders`` by id, as tau-bench writes them."""
    shop = {
        "users": {
            "ada_quill_0001": {
                "name": {"first_name": "Ada", "last_name": "Quill"},
                "address": HOME,
                "email": "ada.quill@example.com",
                "payment_methods": {
                    "gift_card_0000001": {"source": "gift_card", "balance": 7, "id": "gift_card_0000001"},
                    "paypal_0000002": {"source": "paypal", "id": "paypal_0000002"},
                },
                "orders": ["#W0000001", "#W0000002"],
            },
            "ben_stone_0002": {
                "name": {"first_name": "Ben", "last_name": "Stone"},
                "address": {**HOME, "city": "O'Fallon"},
                "email": "ben.stone@example.com",
                "payment_methods": {"paypal_0000003": {"source": "paypal", "id": "paypal_0000003"}},
                "orders": [],
            },
        },
        "products": {
            "1000000001": {
                **_PEN,
                "variants": {
                    "2000000001": _variant("2000000001", "red", 3.5, available=True),
                    "2000000002": _variant("2000000002", "blue", 4.25, available=False),
                },
            }
        },
        "orders": {
            "#W0000001": _order("#W0000001", "ada_quill_0001", "pending", "gift_card_0000001"),
            "#W0000002": _order("#W0000002", "ada_quill_0001", "delivered", "paypal_0000002"),
        },
    }
    return copy.deepcopy(shop)


RETAIL = "tau_bench/envs/retail"

TASKS_TEST = """
from tau_bench.types import Action, Task

TASKS_TEST = [
    Task(
        annotator="0",
        user_id="ada_quill_0001",
        instruction="You are Ada (ada.quill@example.com). " "Cancel the pens: \\u201cwrong colour\\u201d.",
        actions=[
            Action(name="find_user_id_by_email", kwargs={"email": "ada.quill@example.com"}),
            Action(
                name="cancel_pending_order",
                kwargs={"order_id": "#W0000001", "reason": "no longer needed"},
            ),
        ],
        outputs=["3.5"],
    ),
    Task(user_id="ben_stone_0002", instruction="You are Ben. Ask for a job.", actions=[], outputs=[]),
]
"""

TASKS_DEV = """
from tau_bench import types

TASKS_DEV = [
    types.Task(
        user_id="ada_quill_0001",
        instruction="You are Ada. Talk to a person.",
        actions=[types.Action(name="transfer_to_human_agents", kwargs={"summary": "wants a person"})],
        outputs=[],
    )
]
"""

_EMAIL = {"email": {"type": "string", "description": "Where Ada gets her letters."}}
_CANCEL = {
    "order_id": {"type": "string", "description": "With a hash in front."},
    "reason": {"type": "string", "enum": ["no longer needed", "ordered by mistake"], "description": "Why."},
}


def _info(name: str, description: str, properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


_SUMMARY = {"summary": {"type": "string", "description": "In brief."}}
INFOS = {
    "FindUserIdByEmail": _info("find_user_id_by_email", "Who has this address?", _EMAIL),
    "CancelPendingOrder": _info("cancel_pending_order", "Undo an order, every bit of it.", _CANCEL),
    "TransferToHumanAgents": _info("transfer_to_human_agents", "Give up.", _SUMMARY),
}


def tool_module(class_name: str, info: dict[str, Any]) -> str:
    """A tool's file; it would fail if it were imported."""
    return f"""
from tau_bench.envs.tool import Tool


class {class_name}(Tool):
    @staticmethod
    def invoke(data, **kwargs):
        raise SystemExit("this code is never run")

    @staticmethod
    def get_info():
        \"\"\"What models see.\"\"\"
        return {info!r}
"""


_USER = """
class {name}:
    def build_system_prompt(self, instruction):
        instruction_display = ("\\n\\nInstruction: " + instruction + "\\n") if instruction else ""
        return f'''{form}{{instruction_display}}Do not {{{{tell}}}}.'''

    def reset(self, instruction=None):
        self.messages = [{{"role": "system", "content": "x"}}, {{"role": "user", "content": "Good day!"}}]
"""
_JUDGE = """
def {name}(model, response, messages):
    prompt = f'''{name}: {{transcript}} / {{response}}?'''
"""
_CHAT = """
class ChatReActAgent:
    def __init__(self, tools_info, wiki, instruction):
        self.prompt = wiki + "\\n#Available tools\\n" + json.dumps(tools_info) + instruction

REACT_INSTRUCTION = f'''\\nThink, then {{"name": {RESPOND_ACTION_NAME}}}.\\n'''
ACT_INSTRUCTION = f'''\\nUse {RESPOND_ACTION_FIELD_NAME}.\\n'''
"""


def write_tau_bench(folder: Path) -> Path:
    """A checkout of tau-bench at ``folder``."""
    put(folder, "LICENSE", LICENCE)
    users = {"LLMUserSimulationEnv": "Be a user.", "ReactUserSimulationEnv": "Think."}
    classes = [_USER.format(name=name, form=form) for name, form in users.items()]
    judges = [_JUDGE.format(name=name) for name in ("verify", "reflect")]
    put(folder, "tau_bench/envs/user.py", "".join([*classes, *judges]))
    put(folder, "tau_bench/agents/chat_react_agent.py", _CHAT)
    names = 'RESPOND_ACTION_NAME = "respond"\nRESPOND_ACTION_FIELD_NAME = "content"\n'
    put(folder, "tau_bench/types.py", names)
    put(folder, f"{RETAIL}/wiki.md", POLICY)
    put(folder, f"{RETAIL}/tasks_test.py", TASKS_TEST)
    put(folder, f"{RETAIL}/tasks_dev.py", TASKS_DEV)
    for name, content in small_shop().items():
        put(folder, f"{RETAIL}/data/{name}.json", json.dumps(content, indent=4))
    imports = []
    for class_name, info in INFOS.items():
        module = info["function"]["name"]
        imports.append(f"from .{module} import {class_name}\n")
        put(folder, f"{RETAIL}/tools/{module}.py", tool_module(class_name, info))
    index = "".join(imports) + f"\nALL_TOOLS = [{', '.join(INFOS)}]\n"
    put(folder, f"{RETAIL}/tools/__init__.py", index)
    return folder
