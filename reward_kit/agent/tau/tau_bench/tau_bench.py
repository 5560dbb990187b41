"""A checkout of tau-bench: its data, its policy, and tasks and tool descriptions from Python files."""

from __future__ import annotations

import ast
from typing import Any

from .checkout import commit_of
from .prompts import tau_bench_prompts
from .python_source import PythonFile
from .source import Row, Source, SourceError, SourceFiles

FOLDER = "tau_bench/envs/retail"
_SPLITS = (("test", "task.jsonl"), ("dev", "task_dev.jsonl"), ("train", "task_train.jsonl"))
_TOOLS = "ALL_TOOLS = [...] with classes imported from modules of the same folder"


def read_tau_bench(files: SourceFiles) -> Source:
    """Read the parts of a bundle from the checkout; raises ``SourceError``."""
    domain = {
        name: files.json(f"{FOLDER}/data/{name}.json", f"the {name} by id, as JSON", dict)
        for name in ("users", "products", "orders")
    }
    rows = {
        file: _read_tasks(files, split)
        for split, file in _SPLITS
        if split == "test" or files.has(f"{FOLDER}/tasks_{split}.py")
    }
    return Source(
        title="tau-bench",
        home="https://github.com/sierra-research/tau-bench",
        version=commit_of(files),
        paper=(
            "Yao, Shinn, Razavi, Narasimhan: τ-bench: A Benchmark for Tool-Agent-User Interaction in "
            "Real-World Domains, 2024, https://arxiv.org/abs/2406.12045"
        ),
        tools=_read_tools(files),
        terminal=("transfer_to_human_agents",),
        parallel_tool_calls=False,
        options="--temperature 0",
        rows=rows,
        domain=domain,
        texts={
            "policy.md": files.data(f"{FOLDER}/wiki.md", "the agent's policy"),
            "LICENSE": files.data("LICENSE", "the licence of the benchmark"),
            **tau_bench_prompts(files),
        },
        digests=files.digests,
        differences=(
            (
                "The benchmark no longer updates these tasks: some gold actions and outputs are known to be "
                "wrong, and are unchanged here."
            ),
            (
                "`act` and `react`: the system prompts are the benchmark's, but reward-kit parses the "
                "answers. It accepts JSON with small faults, and asks again after an `Action:` without JSON; "
                "the benchmark sends such a text to the user."
            ),
            (
                "`--user react`: the agent does not see the user's thought, which the benchmark passes on. "
                "###STOP### in a thought does not end the conversation."
            ),
            (
                "`--user verify` and `reflection`: the questions about a draft are the benchmark's, but "
                "verify shows the user's line where the benchmark shows the repr of an object. After a "
                "rejected draft, reward-kit asks again with a note and uses the last draft; the benchmark "
                "repeats the question for verify, and may return to the first draft for reflection."
            ),
            "`--agent few-shot`: the rollout's seed selects the five examples.",
        ),
    )


def _read_tasks(files: SourceFiles, split: str) -> list[Row]:
    name = f"TASKS_{split.upper()}"
    expected = f"{name} = [Task(...), ...], the {split} tasks"
    file = PythonFile.read(files, f"{FOLDER}/tasks_{split}.py", expected)
    tasks = file.elements(file.assigned(name, expected), expected)
    if not tasks:
        raise SourceError(f"{file.place} has no tasks. Expected there: {expected}")
    return [_row(file, node, split, index) for index, node in enumerate(tasks)]


def _row(file: PythonFile, node: ast.expr, split: str, index: int) -> Row:
    given = file.arguments(node, "Task")
    missing = {"user_id", "instruction", "actions", "outputs"} - given.keys()
    if missing:
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
    index = PythonFile.read(files, f"{folder}/__init__.py", _TOOLS)
    modules = {
        alias.asname or alias.name: (statement.module, alias.name)
        for statement in index.body
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
        tools.append(_read_info(PythonFile.read(files, path, expected), class_name))
    return tools


def _read_info(file: PythonFile, class_name: str) -> dict[str, Any]:
    """Return the dict that ``get_info`` returns as a literal."""
    functions = [
        function
        for statement in file.body
        if isinstance(statement, ast.ClassDef) and statement.name == class_name
        for function in statement.body
        if isinstance(function, ast.FunctionDef) and function.name == "get_info"
    ]
    if len(functions) != 1:
        raise SourceError(f"{file.place} has no class {class_name} with one get_info()")
    *before, last = functions[0].body
    strays = [statement for statement in before if not _is_docstring(statement)]
    if strays or not isinstance(last, ast.Return) or last.value is None:
        raise file.fault((strays or [last])[0], "only `return {...}`, the tool's description")
    info: Any = file.literal(last.value, "the tool's description")
    return info if isinstance(info, dict) else {}


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
