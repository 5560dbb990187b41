"""A checkout of tau-bench: its data, its policy, and tasks and tool descriptions from Python files."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.tau.source import PythonFile, SourceError, SourceFiles, commit_of
from tau_retail_task.tools import R

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


Domain = dict[str, dict[str, Any]]
"""The records by id of ``users``, ``products`` and ``orders``."""
Row = dict[str, Any]
"""A row of a dataset without ``toolset``, which depends on the bundle's name."""

FOLDER = "tau_bench/envs/retail"
_CHECKOUT = f"a checkout of tau-bench (with {FOLDER})"
_SPLITS = (("test", "task.jsonl"), ("dev", "task_dev.jsonl"), ("train", "task_train.jsonl"))
_TOOLS = "ALL_TOOLS = [...] with classes imported from modules of the same folder"
_PARAMETERS = {
    **{name: frozenset(tool.schema["properties"]) for name, tool in R.tools.items()},
    "get_item_details": frozenset({"item_id"}),
}
"""Names of the parameters of each tool."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """The parts of a checkout.

    ``tools`` are the offered ones in the OpenAI format, ``left_out`` the names of those without code here.
    ``rows`` are by file name, ``domain`` has ``users``, ``products`` and ``orders`` by id, ``texts`` are
    files to copy unchanged.
    """

    files: SourceFiles
    version: str
    tools: list[dict[str, Any]]
    left_out: tuple[str, ...]
    rows: dict[str, list[Row]]
    domain: Domain
    texts: dict[str, bytes]


def read_checkout(path: Path) -> Checkout:
    """Read the parts of a bundle from a checkout; raises ``SourceError``."""
    if not path.is_dir():
        raise SourceError(f"{path} does not exist. Expected: {_CHECKOUT}")
    if not (path / FOLDER).is_dir():
        more = " For tau2-bench, use port tau2" if (path / "src/tau2").is_dir() else ""
        raise SourceError(f"{path} has no {FOLDER}. Expected: {_CHECKOUT}.{more}")
    files = SourceFiles(path, str(path))
    domain = {
        name: files.value(f"{FOLDER}/data/{name}.json", f"the {name} by id, as JSON", dict)
        for name in ("users", "products", "orders")
    }
    rows = {
        file: _read_tasks(files, split)
        for split, file in _SPLITS
        if split == "test" or files.has(f"{FOLDER}/tasks_{split}.py")
    }
    tools, left_out = _offered(_read_tools(files), rows)
    texts = {
        "policy.md": files.data(f"{FOLDER}/wiki.md", "the agent's policy"),
        "LICENSE": files.data("LICENSE", "the licence of the benchmark"),
        **tau_bench_prompts(files),
    }
    return Checkout(files, commit_of(files), tools, left_out, rows, domain, texts)


def _read_tasks(files: SourceFiles, split: str) -> list[Row]:
    name = f"TASKS_{split.upper()}"
    expected = f"{name} = [Task(...), ...], the {split} tasks"
    file = files.python(f"{FOLDER}/tasks_{split}.py", expected)
    tasks = file.elements(file.assigned(name, expected), expected)
    if not tasks:
        raise SourceError(f"{file.place} has no tasks. Expected there: {expected}")
    return [_row(file, node, split, index) for index, node in enumerate(tasks)]


def _row(file: PythonFile, node: ast.expr, split: str, index: int) -> Row:
    given = file.arguments(node, "Task")
    if missing := {"user_id", "instruction", "actions", "outputs"} - given.keys():
        raise file.fault(node, f"a Task with {', '.join(sorted(missing))}")
    outputs = file.literal(given["outputs"], "a list of texts")
    if not isinstance(outputs, list) or not all(isinstance(output, str) for output in outputs):
        raise file.fault(given["outputs"], "a list of texts")
    return {
        "id": f"retail.{split}.{index:03}",
        "system_prompt": "file:policy.md",
        "sim_user_prompt": file.text(given["instruction"], "the user's instruction, a text"),
        "actions": [
            _action(file, action) for action in file.elements(given["actions"], "[Action(...), ...]")
        ],
        "outputs": outputs,
        "metadata": {"split": split, "index": index, "user_id": file.text(given["user_id"], "a user id")},
    }


def _action(file: PythonFile, node: ast.expr) -> dict[str, Any]:
    given = file.arguments(node, "Action")
    if not {"name", "kwargs"} <= given.keys():
        raise file.fault(node, "Action(name=..., kwargs={...})")
    arguments = file.literal(given["kwargs"], "a dict of arguments")
    if not isinstance(arguments, dict):
        raise file.fault(given["kwargs"], "a dict of arguments")
    return {"name": file.text(given["name"], "the name of a tool"), "arguments": arguments}


def _read_tools(files: SourceFiles) -> list[dict[str, Any]]:
    """Read the descriptions, in the order in which the benchmark offers the tools."""
    folder = f"{FOLDER}/tools"
    index = files.python(f"{folder}/__init__.py", _TOOLS)
    modules = {
        alias.asname or alias.name: (statement.module, alias.name)
        for statement in index.tree.body
        if isinstance(statement, ast.ImportFrom) and statement.level == 1 and statement.module
        for alias in statement.names
    }
    tools = []
    for node in index.elements(index.assigned("ALL_TOOLS", _TOOLS), _TOOLS):
        if not isinstance(node, ast.Name) or node.id not in modules:
            raise index.fault(node, "a class that the file imports")
        module, class_name = modules[node.id]
        expected = f"class {class_name} with get_info()"
        path = f"{folder}/{module.replace('.', '/')}.py"
        tools.append(_read_info(files.python(path, expected), class_name))
    return tools


def _read_info(file: PythonFile, class_name: str) -> dict[str, Any]:
    """Return the dict that ``get_info`` returns as a literal."""
    *before, last = file.function("get_info", class_name).body
    strays = [statement for statement in before if not _is_docstring(statement)]
    if strays or not isinstance(last, ast.Return) or last.value is None:
        raise file.fault((strays or [last])[0], "only `return {...}`, the tool's description")
    info: Any = file.literal(last.value, "the tool's description")
    return info if isinstance(info, dict) else {}


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


# --- the tools that the bundle offers


def _offered(
    tools: list[dict[str, Any]], rows: dict[str, list[Row]]
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The tools that have code in ``tau_retail_task``, and the names of the others.

    Raises ``SourceError`` for other parameters, or a gold action without a tool.
    """
    by_name = {}
    for tool in tools:
        function = tool.get("function")
        name, description, parameters = map((function or {}).get, ("name", "description", "parameters"))
        found = parameters.get("properties") if isinstance(parameters, dict) else None
        if not (isinstance(name, str) and isinstance(description, str) and isinstance(found, dict)):
            raise SourceError(
                f"the description of the tool {name or '(without a name)'} of tau-bench is incomplete. "
                "Expected: name, description and parameters with properties"
            )
        expected = _PARAMETERS.get(name, found.keys())
        if found.keys() != expected:
            raise SourceError(
                f"the tool {name} of tau-bench takes {_listed(found)}. Expected: {_listed(expected)}"
            )
        by_name[name] = tool
    offered = {name: tool for name, tool in by_name.items() if name in _PARAMETERS}
    for file, row in ((file, row) for file, some in rows.items() for row in some):
        for action in row["actions"]:
            if action["name"] not in offered:
                raise SourceError(
                    f"{row['id']} in {file} has the gold action {action['name']}, a tool without code here"
                )
    return list(offered.values()), tuple(name for name in by_name if name not in offered)


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "nothing"


# --- prompts


def tau_bench_prompts(files: SourceFiles) -> dict[str, bytes]:
    """Read the prompts and the greeting of the users, and the instructions of ``act`` and ``react``."""
    user = files.python("tau_bench/envs/user.py", "the simulated users")
    chat = files.python("tau_bench/agents/chat_react_agent.py", "the agents act and react")
    types = files.python("tau_bench/types.py", "the name of the action that replies to the user")
    instruction = {"instruction_display": "\n\nInstruction: {instruction}\n"}
    _expect(
        user,
        user.function("build_system_prompt", "LLMUserSimulationEnv"),
        "'\\n\\nInstruction: ' + instruction + '\\n'",
    )
    drafts = {"transcript": "{messages}", "response": "{line}"}
    names = {
        name: types.text(types.value(name, "a text"), "a text")
        for name in ("RESPOND_ACTION_NAME", "RESPOND_ACTION_FIELD_NAME")
    }
    agent = chat.function("__init__", "ChatReActAgent")
    _expect(chat, agent, "wiki + '\\n#Available tools\\n' + json.dumps(tools_info) + instruction")
    opening = "{policy}\n#Available tools\n{tools}"
    reset = user.function("reset", "LLMUserSimulationEnv")
    prompts = {
        "user": _system_prompt(user, "LLMUserSimulationEnv", instruction),
        "user_react": _system_prompt(user, "ReactUserSimulationEnv", instruction),
        "user_verify": _prompt(user, "verify", drafts),
        "user_reflect": _prompt(user, "reflect", drafts),
        "greeting": _said_by_user(user, reset),
        "act": opening + chat.filled(chat.value("ACT_INSTRUCTION", "a text"), names),
        "react": opening + chat.filled(chat.value("REACT_INSTRUCTION", "a text"), names),
    }
    # reading a prompt removes the last line break
    return {f"prompts/{name}.txt": f"{text}\n".encode() for name, text in prompts.items()}


def _expect(file: PythonFile, function: ast.FunctionDef, expression: str) -> None:
    if expression not in ast.unparse(function):
        raise file.fault(function, f"a function with {expression}")


def _system_prompt(file: PythonFile, owner: str, parts: Mapping[str, str]) -> str:
    last = file.function("build_system_prompt", owner).body[-1]
    if not isinstance(last, ast.Return) or last.value is None:
        raise file.fault(last, "`return` with the prompt")
    return file.filled(last.value, parts)


def _prompt(file: PythonFile, function: str, parts: Mapping[str, str]) -> str:
    for node in file.function(function).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "prompt":
            return file.filled(node.value, parts)
    raise file.absent(f"prompt in {function}()")


def _said_by_user(file: PythonFile, function: ast.FunctionDef) -> str:
    """Return the content of the user's message that a function has as a literal."""
    for node in ast.walk(function):
        if isinstance(node, ast.Dict):
            pairs = {
                ast.unparse(key): value for key, value in zip(node.keys, node.values, strict=True) if key
            }
            if ast.unparse(pairs.get("'role'", node)) == "'user'":
                return file.text(pairs.get("'content'", node), "the content of the user's message, a text")
    raise file.fault(function, "a message of the role user")
