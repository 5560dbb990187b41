"""A checkout of tau2-bench, and the parts shared with Inspect's wheel."""

from __future__ import annotations

import ast
from typing import Any

from .checkout import commit_of
from .docstrings import describe
from .prompts import tau2_bench_prompts
from .python_source import PythonFile
from .source import Source, SourceError, SourceFiles
from .tau2_tasks import tau2_rows

FOLDER = "data/tau2/domains/retail"
TOOLS = "src/tau2/domains/retail/tools.py"
AGENT = "src/tau2/agent/llm_agent.py"
PAPER = (
    "Barres, Dong, Ray, Si, Narasimhan: τ²-Bench: Evaluating Conversational Agents in a Dual-Control "
    "Environment, 2025, https://arxiv.org/abs/2506.07982"
)
DIFFERENCES = (
    (
        "Tools behave like tau-bench's. In tau2-bench, errors have other texts, results show unset fields as "
        "null and their keys in another order, addresses and payment methods can still be changed after "
        "items were modified, an item cannot be replaced by itself, and replacing several items gives all of "
        "them the price and the options of the last one."
    ),
    (
        "No model judges the sentences in `nl_assertions`. They are in each row's `metadata`; where they "
        "count, the agent has to say the texts of `communicate_info` instead."
    ),
    (
        "The limit is 100 model calls of the agent; tau2-bench counts the messages of all sides. It also "
        "ends a run with reward 0 after 10 tool errors; no option here does."
    ),
    (
        "Requests have no `tool_choice` (`auto` is the default). In the history, a call has its name once "
        "and a result has the tool's name; tau2-bench names calls twice and results not at all."
    ),
    "`act`, `react` and the users `react`, `verify` and `reflection` are reward-kit's; tau2-bench has none.",
)
OPTIONS = "--temperature 0 --user-model-arg temperature=0"
_CLASS = "RetailTools"


def read_tau2_bench(files: SourceFiles) -> Source:
    """Read the parts of a bundle from the checkout; raises ``SourceError``."""
    policy = files.data(f"{FOLDER}/policy.md", "the agent's policy")
    tasks = files.json(f"{FOLDER}/tasks.json", "the tasks, a JSON list", list)
    splits_file = f"{FOLDER}/split_tasks.json"
    splits = files.json(splits_file, "ids by split", dict) if files.has(splits_file) else None
    prompts, greeting = tau2_bench_prompts(files)
    prompt, warnings = _system_prompt(files, policy.decode("utf-8", errors="replace"))
    return Source(
        title="tau2-bench",
        home="https://github.com/sierra-research/tau2-bench",
        version=commit_of(files),
        paper=PAPER,
        tools=_read_tools(files),
        terminal=(),
        parallel_tool_calls=True,
        options=OPTIONS,
        rows=tau2_rows(tasks, splits, files.place(f"{FOLDER}/tasks.json"), greeting),
        domain=tau2_domain(files.json(f"{FOLDER}/db.json", "users, products and orders", dict), files.name),
        texts={
            "policy.md": policy,
            "system_prompt.md": prompt.encode(),
            "LICENSE": files.data("LICENSE", "the licence of the benchmark"),
            **prompts,
        },
        digests=files.digests,
        differences=DIFFERENCES,
        warnings=warnings,
    )


def tau2_domain(content: dict[str, Any], place: str) -> dict[str, dict[str, Any]]:
    """Return ``users``, ``products`` and ``orders`` without repeated and empty fields."""
    try:
        return {
            "users": {
                user_id: {name: value for name, value in user.items() if name != "user_id"}
                for user_id, user in content["users"].items()
            },
            "products": dict(content["products"]),
            "orders": {
                order_id: {name: value for name, value in order.items() if value is not None}
                for order_id, order in content["orders"].items()
            },
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceError(
            f"the data of {place} cannot be read ({type(error).__name__}: {error}). Expected there: "
            "users, products and orders by id"
        ) from error


def _read_tools(files: SourceFiles) -> list[dict[str, Any]]:
    expected = f"class {_CLASS} with the tools as methods, each with @is_tool(...)"
    file = PythonFile.read(files, TOOLS, expected)
    methods = [
        function
        for statement in file.body
        if isinstance(statement, ast.ClassDef) and statement.name == _CLASS
        for function in statement.body
        if isinstance(function, ast.FunctionDef) and any(map(_marks_tool, function.decorator_list))
    ]
    if not methods:
        raise SourceError(f"{file.place} has no tools. Expected there: {expected}")
    return [describe(file, method, method.name).with_titles() for method in methods]


def _marks_tool(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Name) and called.id == "is_tool"


def _system_prompt(files: SourceFiles, policy: str) -> tuple[str, tuple[str, ...]]:
    """Return the agent's instructions around the policy; if not found, the policy and a warning."""
    warning = (
        f"{files.place(AGENT)} lacks the agent's instructions (AGENT_INSTRUCTION and SYSTEM_PROMPT): the "
        "system prompt is the policy alone."
    )
    if not files.has(AGENT):
        return policy, (warning,)
    file = PythonFile.read(files, AGENT, "the agent's instructions")
    instruction = _module_text(file, "AGENT_INSTRUCTION")
    frame = _module_text(file, "SYSTEM_PROMPT")
    if instruction is None or frame is None or "{domain_policy}" not in frame:
        return policy, (warning,)
    before, _, after = frame.partition("{domain_policy}")
    said = [part.replace("{agent_instruction}", instruction) for part in (before, after)]
    return policy.join(said), ()


def _module_text(file: PythonFile, name: str) -> str | None:
    """Return the text assigned to ``name``, with or without ``.strip()``."""
    for statement in file.body:
        if not isinstance(statement, ast.Assign) or ast.unparse(statement.targets[0]) != name:
            continue
        value, stripped = statement.value, False
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            stripped = value.func.attr == "strip" and not value.args
            value = value.func.value if stripped else value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value.strip() if stripped else value.value
    return None
