"""A tool's description, made from a function's docstring (Google style) and annotations."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, create_model

if TYPE_CHECKING:
    from .python_source import PythonFile

_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Examples?):[ \t]*$", re.MULTILINE)
_PARAMETER = re.compile(r"^(\w+)(?: \([^)]*\))?: ?(.*)$")
_TYPES: dict[str, Any] = {"str": str, "int": int, "float": float, "bool": bool}
_LISTS: dict[str, Any] = {"str": list[str], "int": list[int], "float": list[float], "bool": list[bool]}


@dataclass(frozen=True, slots=True)
class Described:
    """The parts of a docstring; ``types`` maps parameters to Python types, in order."""

    name: str
    lead: str
    parameters: dict[str, str]
    types: dict[str, Any]

    def without_titles(self) -> dict[str, Any]:
        """Describe the tool as Inspect does: the unchanged lead, and a schema without titles."""
        schema = self.schema(self.name)
        properties = {}
        for name, prop in schema.get("properties", {}).items():
            properties[name] = {key: prop[key] for key in ("type", "description", "items") if key in prop}
        parameters = {
            "type": "object",
            "properties": properties,
            "required": list(self.types),
            "additionalProperties": False,
        }
        return _tool(self.name, self.lead, parameters)

    def with_titles(self) -> dict[str, Any]:
        """Describe the tool as tau2-bench does: an empty line after the first, and pydantic's schema."""
        first, _, rest = self.lead.partition("\n")
        lead = f"{first}\n\n{rest.strip()}" if rest.strip() else first
        return _tool(self.name, lead, self.schema("parameters"))

    def schema(self, title: str) -> dict[str, Any]:
        """Return pydantic's JSON schema of the arguments."""
        fields: Any = {
            name: (
                kind,
                Field(..., description=self.parameters[name]) if name in self.parameters else Field(...),
            )
            for name, kind in self.types.items()
        }
        model: type[BaseModel] = create_model(title, **fields)
        return model.model_json_schema()


def describe(file: PythonFile, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Described:
    """Describe the tool ``name``, which ``function`` implements; raises ``SourceError``."""
    docstring = ast.get_docstring(function)
    if not docstring:
        raise file.fault(function, f"a docstring of {name}")
    lead, sections = _split(docstring)
    given = function.args
    if given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs or given.defaults:
        raise file.fault(function, "plain parameters without defaults")
    types = {
        argument.arg: _type(file, argument) for argument in given.args if argument.arg not in ("self", "cls")
    }
    return Described(name, lead.strip(), _parameters(sections.get("Args", "")), types)


def _split(docstring: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into the text before the first section, and the sections by title."""
    marks = list(_SECTION.finditer(docstring))
    sections = {}
    for place, mark in enumerate(marks, 1):
        end = marks[place].start() if place < len(marks) else len(docstring)
        sections[mark[1]] = docstring[mark.end() : end].strip("\n")
    return docstring[: marks[0].start()] if marks else docstring, sections


def _parameters(section: str) -> dict[str, str]:
    """Read lines ``name: text``; deeper lines continue the text and lose their indentation."""
    found: dict[str, list[str]] = {}
    last: list[str] | None = None
    for line in inspect.cleandoc(section).splitlines():
        start = _PARAMETER.match(line)
        if start:
            last = found[start[1]] = [start[2]]
        elif last is not None:
            last.append(line)
    return {
        name: "\n".join([first, *inspect.cleandoc("\n".join(more)).splitlines()]).strip("\n")
        for name, (first, *more) in found.items()
    }


def _type(file: PythonFile, argument: ast.arg) -> Any:
    """Return the type of a parameter: ``str``, ``int``, ``float``, ``bool`` or a list of one of these."""
    node = argument.annotation
    if isinstance(node, ast.Name) and node.id in _TYPES:
        return _TYPES[node.id]
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("list", "List")
        and isinstance(node.slice, ast.Name)
        and node.slice.id in _TYPES
    ):
        return _LISTS[node.slice.id]
    raise file.fault(argument, "a parameter with the type str, int, float, bool, or a list of these")


def _tool(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }
