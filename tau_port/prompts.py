"""The benchmark's prompts as files ``prompts/NAME.txt``, read from code that is parsed and never run."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .python_source import PythonFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .source import SourceFiles

TAU_USER = "tau_bench/envs/user.py"
TAU_CHAT = "tau_bench/agents/chat_react_agent.py"
TAU_TYPES = "tau_bench/types.py"
TAU2_USER = "src/tau2/user/user_simulator.py"
TAU2_GUIDELINES = "data/tau2/user_simulator/simulation_guidelines.md"
TAU2_ORCHESTRATOR = "src/tau2/orchestrator/orchestrator.py"
TAU2_STOP = "src/tau2/user/user_simulator_base.py"
INSPECT = "inspect_evals/tau2"
_INSTRUCTION = "{instruction}"


def tau_bench_prompts(files: SourceFiles) -> dict[str, bytes]:
    """Read the prompts and the greeting of the users, and the instructions of ``act`` and ``react``."""
    user = PythonFile.read(files, TAU_USER, "the simulated users")
    chat = PythonFile.read(files, TAU_CHAT, "the agents act and react")
    types = PythonFile.read(files, TAU_TYPES, "the name of the action that replies to the user")
    instruction = {"instruction_display": f"\n\nInstruction: {_INSTRUCTION}\n"}
    _expect(
        user,
        _function(user, "build_system_prompt", "LLMUserSimulationEnv"),
        "'\\n\\nInstruction: ' + instruction + '\\n'",
    )
    drafts = {"transcript": "{messages}", "response": "{line}"}
    names = {
        name: types.text(types.value(name, "a text"), "a text")
        for name in ("RESPOND_ACTION_NAME", "RESPOND_ACTION_FIELD_NAME")
    }
    agent = _function(chat, "__init__", "ChatReActAgent")
    _expect(chat, agent, "wiki + '\\n#Available tools\\n' + json.dumps(tools_info) + instruction")
    opening = "{policy}\n#Available tools\n{tools}"
    reset = _function(user, "reset", "LLMUserSimulationEnv")
    return _files(
        {
            "user": _returned(user, "build_system_prompt", "LLMUserSimulationEnv", instruction),
            "user_react": _returned(user, "build_system_prompt", "ReactUserSimulationEnv", instruction),
            "user_verify": _prompt(user, "verify", drafts),
            "user_reflect": _prompt(user, "reflect", drafts),
            "greeting": _said(user, reset, "user"),
            "act": opening + _filled(chat, chat.value("ACT_INSTRUCTION", "a text"), names),
            "react": opening + _filled(chat, chat.value("REACT_INSTRUCTION", "a text"), names),
        }
    )


def tau2_bench_prompts(files: SourceFiles) -> tuple[dict[str, bytes], str]:
    """Read the user's prompt and stop tokens, and the agent's greeting."""
    user = PythonFile.read(files, TAU2_USER, "the simulated user")
    node = user.value("SYSTEM_PROMPT", "the frame of the user's prompt")
    frame = user.text(_unstripped(node), "a text").strip()
    guidelines = files.text(TAU2_GUIDELINES, "the user's guidelines").replace("<PERSONA_GUIDELINES>", "")
    places = {"global_user_sim_guidelines_with_persona": guidelines, "instructions": _INSTRUCTION}
    for name, text in places.items():
        if f"{{{name}}}" not in frame:
            raise user.fault(node, f"a text with {{{name}}}")
        frame = frame.replace(f"{{{name}}}", text)
    base = PythonFile.read(files, TAU2_STOP, "the stop tokens")
    stops = [
        base.text(base.value(name, "a stop token"), "a text") for name in ("STOP", "TRANSFER", "OUT_OF_SCOPE")
    ]
    file = PythonFile.read(files, TAU2_ORCHESTRATOR, "the agent's greeting")
    greeting = file.value("DEFAULT_FIRST_AGENT_MESSAGE", "the agent's greeting")
    content = file.arguments(greeting, "AssistantMessage").get("content", greeting)
    return _files({"user": frame, "stop": "\n".join(stops)}), file.text(content, "the greeting, a text")


def inspect_prompts(files: SourceFiles) -> dict[str, bytes]:
    """Read the user's prompt, the line that it answers first, and its stop tokens."""
    guidelines = files.text(
        f"{INSPECT}/data/user_simulator/simulation_guidelines.txt", "the user's guidelines"
    )
    dataset = PythonFile.read(files, f"{INSPECT}/retail/dataset.py", "the user's prompt")
    parts = {"USER_SIMULATOR_GUIDELINES": guidelines, "task.user_scenario": _INSTRUCTION}
    user = _filled(dataset, _only(dataset, lambda node: "<scenario>" in ast.unparse(node)), parts)
    common = PythonFile.read(files, f"{INSPECT}/common/dataset.py", "the user's first message")
    first = common.arguments(common.value("USER_MESSAGE", "ChatMessageUser(content=...)"), "ChatMessageUser")
    agents = PythonFile.read(files, f"{INSPECT}/common/agents.py", "the stop tokens")
    stops = [
        node.left.value
        for statement in agents.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Constant)
        and ast.unparse(node.comparators[0]) == "user_output.completion"
    ]
    greeting = common.text(first["content"], "the user's first message, a text")
    return _files({"user": user, "greeting": greeting, "stop": "\n".join(map(str, stops))})


def _files(prompts: Mapping[str, str]) -> dict[str, bytes]:
    """Encode the prompts with one more line break at the end, which reading a prompt removes."""
    return {f"prompts/{name}.txt": f"{text}\n".encode() for name, text in prompts.items()}


def _function(file: PythonFile, name: str, owner: str | None = None) -> ast.FunctionDef:
    body = file.body
    if owner is not None:
        classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name == owner]
        body = classes[0].body if classes else []
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not found:
        raise file.absent(f"{owner}.{name}()" if owner else f"{name}()")
    return found[0]


def _expect(file: PythonFile, function: ast.FunctionDef, expression: str) -> None:
    if expression not in ast.unparse(function):
        raise file.fault(function, f"a function with {expression}")


def _returned(file: PythonFile, name: str, owner: str, parts: Mapping[str, str]) -> str:
    last = _function(file, name, owner).body[-1]
    if not isinstance(last, ast.Return) or last.value is None:
        raise file.fault(last, "`return` with the prompt")
    return _filled(file, last.value, parts)


def _prompt(file: PythonFile, function: str, parts: Mapping[str, str]) -> str:
    for node in _function(file, function).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "prompt":
            return _filled(file, node.value, parts)
    raise file.absent(f"prompt in {function}()")


def _said(file: PythonFile, function: ast.FunctionDef, role: str) -> str:
    """Return the content of the message of ``role`` that a function has as a literal."""
    for node in ast.walk(function):
        if isinstance(node, ast.Dict):
            pairs = {
                ast.unparse(key): value for key, value in zip(node.keys, node.values, strict=True) if key
            }
            if ast.unparse(pairs.get("'role'", node)) == repr(role):
                return file.text(pairs.get("'content'", node), f"the content of the {role}'s message, a text")
    raise file.fault(function, f"a message of the role {role}")


def _only(file: PythonFile, chosen: Callable[[ast.AST], bool]) -> ast.expr:
    for statement in file.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.JoinedStr) and chosen(node):
                return node
    raise file.absent("the prompt")


def _filled(file: PythonFile, node: ast.expr, parts: Mapping[str, str]) -> str:
    """Return the text of an f-string, with its expressions replaced by ``parts``."""
    texts = []
    for piece in node.values if isinstance(node, ast.JoinedStr) else [node]:
        if isinstance(piece, ast.Constant) and isinstance(piece.value, str):
            texts.append(piece.value)
        elif (
            isinstance(piece, ast.FormattedValue)
            and piece.conversion == -1
            and piece.format_spec is None
            and ast.unparse(piece.value) in parts
        ):
            texts.append(parts[ast.unparse(piece.value)])
        else:
            raise file.fault(piece, f"text, or one of {', '.join(parts)}")
    return "".join(texts)


def _unstripped(node: ast.expr) -> ast.expr:
    """Return the node of ``text`` for ``text.strip()``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "strip":
        return node.func.value
    return node
