"""The benchmark's code of a domain, copied into a bundle with other imports.

Modules of the domain import each other in the bundle; the rest of the benchmark's package is replaced by
``reward_kit.agent.tau.tau2.toolkit``, which has what these modules use.
"""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reward_kit.agent.tau.source import SourceError

if TYPE_CHECKING:
    from reward_kit.agent.tau.tau2.port.source import Tau2Source

_OURS = "reward_kit.agent.tau.tau2"
_REPLACED = {
    "tau2.environment.toolkit": f"{_OURS}.toolkit",
    "tau2.environment.db": f"{_OURS}.toolkit",
    "tau2.utils": f"{_OURS}.toolkit",
    "tau2.utils.utils": f"{_OURS}.toolkit",
    "tau2.utils.pydantic_utils": f"{_OURS}.toolkit",
    "loguru": f"{_OURS}.toolkit",
}
_REPEATABLE = ("import uuid", f"from {_OURS}.toolkit import uuid")
_BASE = "ToolKitBase"
_TYPES_ONLY = "TYPE_CHECKING"


@dataclass(slots=True)
class DomainCode:
    """The copied modules by name, and the toolkits as (module, class) by side."""

    modules: dict[str, str] = field(default_factory=dict)
    toolkits: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def has_sync(self) -> bool:
        return "sync" in self.modules


def read_code(source: Tau2Source, domain: str, agent: tuple[str, str] | None = None) -> DomainCode:
    """Copy the toolkits of a domain, all modules that they import, and the synchronisation of both sides.

    ``agent`` names another toolkit of the agent, as (module, class).
    """
    code = DomainCode()
    if agent is not None:
        _copy(source, domain, agent[0], code)
        code.toolkits["agent"] = agent
    for module in ("tools", "user_tools"):
        if (module not in code.modules and module == "tools") or source.has_code(
            f"domains/{domain}/{module}.py"
        ):
            _copy(source, domain, module, code)
    for module in ("tools", "user_tools"):
        for node in ast.parse(code.modules.get(module, "")).body:
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == _BASE for base in node.bases):
                side = "user" if "User" in node.name else "agent"
                code.toolkits.setdefault(side, (module, node.name))
    if "agent" not in code.toolkits:
        place = source.files.place(f"{source.code}domains/{domain}/tools.py")
        raise SourceError(f"{place} has no toolkit. Expected there: a class derived from {_BASE}")
    if (sync := _sync(source, domain)) is not None:
        code.modules["sync"] = sync
    return code


def _copy(source: Tau2Source, domain: str, module: str, code: DomainCode) -> None:
    path = f"domains/{domain}/{module}.py"
    tree = source.python(path, "a module of the domain")
    lines = source.code_text(path).splitlines(keepends=True)
    code.modules[module] = ""
    whole = ast.Module(tree.body, [])
    for_types = {
        inner
        for node in ast.walk(whole)
        if isinstance(node, ast.If) and ast.unparse(node.test) == _TYPES_ONLY
        for inner in ast.walk(node)
    }
    for node in ast.walk(whole):
        if isinstance(node, ast.Import) and ast.unparse(node) == _REPEATABLE[0]:
            lines[node.lineno - 1] = lines[node.lineno - 1].replace(*_REPEATABLE)
        elif isinstance(node, ast.ImportFrom) and node.module and _is_theirs(node.module):
            new = _new_name(node.module, domain)
            if new is None and node in for_types:
                continue
            if new is None:
                raise tree.fault(node, "an import of the domain, its toolkit, its database or its utilities")
            at = node.lineno - 1
            lines[at] = lines[at].replace(f"from {node.module} import", f"from {new} import", 1)
            if new.startswith(".") and new[1:] not in code.modules:
                _copy(source, domain, new[1:], code)
    code.modules[module] = "".join(lines)


def _is_theirs(module: str) -> bool:
    return module in _REPLACED or module.partition(".")[0] == "tau2"


def _new_name(module: str, domain: str) -> str | None:
    own = f"tau2.domains.{domain}."
    return f".{module.removeprefix(own)}" if module.startswith(own) else _REPLACED.get(module)


def _sync(source: Tau2Source, domain: str) -> str | None:
    """The method ``sync_tools`` of the domain's environment as a module of its own."""
    path = f"domains/{domain}/environment.py"
    tree = source.python(path, "the environment of the domain")
    text = source.code_text(path)
    methods = [
        method
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "sync_tools"
    ]
    if not methods:
        return None
    used = {node.id for node in ast.walk(methods[0]) if isinstance(node, ast.Name)}
    imports = [
        f"from {_new_name(node.module, domain)} import {', '.join(names)}\n"
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and _is_theirs(node.module)
        if (names := [alias.name for alias in node.names if alias.name in used])
    ]
    body = textwrap.dedent(ast.get_source_segment(text, methods[0], padded=True) or "")
    return f"{''.join(imports)}\n\n{body}\n"
