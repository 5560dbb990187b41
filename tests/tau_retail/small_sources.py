"""Small sources in the layouts that the port reads, with a shop of its own: one product, two customers."""

import copy
import gzip
import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

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


def put(folder: Path, path: str, text: str) -> None:
    """Write a file below ``folder``."""
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8", newline="\n")


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


SCENARIO = {
    "persona": None,
    "instructions": {
        "task_instructions": "You are in a hurry.\nYou never say please.",
        "domain": "retail",
        "reason_for_call": "You do not want the pens any more.",
        "known_info": "You are Ada Quill in 04631.",
        "unknown_info": None,
    },
}
SCENARIO_TEXT = (
    "Instructions:\n\tDomain: retail\n\tReason for call:\n\t\tYou do not want the pens any more.\n"
    "\tKnown info:\n\t\tYou are Ada Quill in 04631.\n"
    "\tTask instructions:\n\t\tYou are in a hurry.\n\t\tYou never say please."
)


def tau2_task(key: str, **criteria: Any) -> dict[str, Any]:
    """A task of tau2-bench in which Ada cancels an order."""
    cancel = {"order_id": "#W0000001", "reason": "no longer needed"}
    actions = [
        {"action_id": "a", "name": "get_item_details", "arguments": {"item_id": "2000000002"}, "info": None},
        {"action_id": "b", "name": "cancel_pending_order", "arguments": cancel, "info": None},
    ]
    judged = {"actions": actions, "communicate_info": ["3.50"], "nl_assertions": None}
    return {
        "id": key,
        "description": {"purpose": None, "relevant_policies": None, "notes": "made up"},
        "user_scenario": SCENARIO,
        "initial_state": None,
        "evaluation_criteria": {**judged, **criteria},
    }


def tau2_tasks() -> list[dict[str, Any]]:
    judged = {"reward_basis": ["DB", "NL_ASSERTION"]}
    said = ["The agent names the price."]
    return [tau2_task("0"), tau2_task("1", **judged), tau2_task("2", **judged, nl_assertions=said)]


SPLITS = {"base": ["0", "1", "2"], "train": ["0", "2"], "test": ["1"]}

_CANCEL_DOCSTRING = '''"""Undo an order
    that is pending, every bit of it.

    Args:
        order_id: With a hash in front: '#W1'.
        reason: Why. There are
            two reasons.

    Returns:
        Order: What is left of it.
    """'''
_ITEM_DOCSTRING = '''"""
    Look at one pen.

    Args:
        item_id: Of the pen.
    """'''


def tau2_database() -> dict[str, Any]:
    """The shop as tau2-bench writes it: with user ids and unset fields, balances as floats."""
    shop = small_shop()
    for user_id, user in shop["users"].items():
        user["user_id"] = user_id
        for method in user["payment_methods"].values():
            if "balance" in method:
                method["balance"] = float(method["balance"])
    for order in shop["orders"].values():
        order["cancel_reason"] = None
    return shop


def write_tau2_bench(folder: Path) -> Path:
    """A checkout of tau2-bench at ``folder``."""
    data = "data/tau2/domains/retail"
    put(folder, "LICENSE", LICENCE)
    put(folder, f"{data}/policy.md", POLICY)
    put(folder, f"{data}/tasks.json", json.dumps(tau2_tasks()))
    put(folder, f"{data}/split_tasks.json", json.dumps(SPLITS))
    put(folder, f"{data}/db.json", json.dumps(tau2_database()))
    instruction = 'AGENT_INSTRUCTION = """\nServe {the} customer.\n""".strip()\n'
    prompt = "<i>\n{agent_instruction}\n</i>\n<p>\n{domain_policy}\n</p>"
    agent = f'{instruction}SYSTEM_PROMPT = """\n{prompt}\n""".strip()\n'
    put(folder, "src/tau2/agent/llm_agent.py", agent)
    put(folder, "data/tau2/user_simulator/simulation_guidelines.md", "Be a {customer}.<PERSONA_GUIDELINES>")
    frame = "{global_user_sim_guidelines_with_persona}\n<scenario>{instructions}</scenario>"
    put(folder, "src/tau2/user/user_simulator.py", f'SYSTEM_PROMPT = """\n{frame}\n""".strip()\n')
    stops = "".join(f'{name} = "###{name}###"\n' for name in ("STOP", "TRANSFER", "OUT_OF_SCOPE"))
    put(folder, "src/tau2/user/user_simulator_base.py", stops)
    greeting = 'AssistantMessage(role="assistant", content="Good day!", cost=0.0)'
    put(folder, "src/tau2/orchestrator/orchestrator.py", f"DEFAULT_FIRST_AGENT_MESSAGE = {greeting}\n")
    put(
        folder,
        "src/tau2/domains/retail/tools.py",
        f"""
raise SystemExit("this code is never run")

class RetailTools(ToolKitBase):
    def _inner(self):
        return None

    @is_tool(ToolType.WRITE)
    def cancel_pending_order(self, order_id: str, reason: str) -> Order:
        {_CANCEL_DOCSTRING}

    @is_tool(ToolType.READ)
    def get_item_details(self, item_id: str) -> Variant:
        {_ITEM_DOCSTRING}

    @is_tool(ToolType.READ)
    def guess_item(self, item_ids: List[str]) -> str:
        \"\"\"Guess.\"\"\"
""",
    )
    return folder


def write_wheel(folder: Path, version: str = "0.0.1") -> str:
    """A wheel of inspect-evals in ``folder``; returns its SHA-256."""
    package, info = "inspect_evals/tau2", f"inspect_evals-{version}.dist-info"
    data = f"{package}/data/domains/retail"
    metadata = f"Metadata-Version: 2.1\nName: inspect_evals\nVersion: {version}\nRequires-Python: >=3.9\n"
    tool = """
@tool
def {name}() -> Tool:
    async def execute({parameters}) -> str:
        {docstring}
        return "never run"

    return execute
"""
    both = "order_id: str, reason: str"
    own = tool.format(name="cancel_pending_order", parameters=both, docstring=_CANCEL_DOCSTRING)
    common = tool.format(name="get_item_details", parameters="item_id: str", docstring=_ITEM_DOCSTRING)
    agents = """
def agent(config):
    return f'''<instructions>
    Serve the customer.
    </instructions>
    {config.get_domain_policy()}
    '''

def is_over(user_output):
    return "###STOP###" in user_output.completion or "###TRANSFER###" in user_output.completion
"""
    prompt = "{USER_SIMULATOR_GUIDELINES}\n<scenario>{task.user_scenario}\n"
    user = f"def sample(task):\n    return f'''{prompt}'''\n"
    files = {
        f"{data}/policy.txt": POLICY.encode(),
        f"{data}/tasks.json": json.dumps(tau2_tasks()).encode(),
        f"{data}/split_tasks.json": json.dumps(SPLITS).encode(),
        f"{data}/db.json.gz": gzip.compress(json.dumps(tau2_database()).encode()),
        f"{package}/retail/tools.py": f"{own}\nall_retail_tools = [cancel_pending_order, get_item_details]\n",
        f"{package}/common/tools.py": common,
        f"{package}/common/agents.py": agents,
        f"{package}/common/dataset.py": 'USER_MESSAGE = ChatMessageUser(content="Begin.")\n',
        f"{package}/retail/dataset.py": user,
        f"{package}/data/user_simulator/simulation_guidelines.txt": "Be a customer.\n",
        f"{info}/licenses/LICENSE": LICENCE,
        f"{info}/licenses/NOTICE": "Parts come from a small shop.\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"inspect_evals-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, content)
    return hashlib.sha256(path.read_bytes()).hexdigest()
