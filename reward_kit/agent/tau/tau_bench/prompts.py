"""The benchmark's prompts as files ``prompts/NAME.txt``, read from code that is parsed and never run."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from reward_kit.agent.tau.python_source import PythonFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reward_kit.agent.tau.source import SourceFiles

TAU_USER = "tau_bench/envs/user.py"
TAU_CHAT = "tau_bench/agents/chat_react_agent.py"
TAU_TYPES = "tau_bench/types.py"
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
            "act": opening + filled_prompt(chat, chat.value("ACT_INSTRUCTION", "a text"), names),
            "react": opening + filled_prompt(chat, chat.value("REACT_INSTRUCTION", "a text"), names),
        }
    )


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
    return filled_prompt(file, last.value, parts)


def _prompt(file: PythonFile, function: str, parts: Mapping[str, str]) -> str:
    for node in _function(file, function).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "prompt":
            return filled_prompt(file, node.value, parts)
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


def filled_prompt(file: PythonFile, node: ast.expr, parts: Mapping[str, str]) -> str:
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
