"""The description and schema of a tool, as the benchmark makes them of a function."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, create_model

if TYPE_CHECKING:
    from collections.abc import Callable

_SECTIONS = (
    "Arguments|Args|Parameters|Params|Raises|Exceptions|Except|Attributes|Example|Examples|Returns|Yields"
)
_SECTION = re.compile(rf"^({_SECTIONS}):[ \t\r\f\v]*$", re.MULTILINE)
_ARGUMENTS = ("Arguments", "Args", "Parameters", "Params")
_TYPED = re.compile(r"(\w+)\s*\((\S.*?)\)")


def describe(name: str, function: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """The description of a method, and the JSON schema of its arguments."""
    lead, documented = _read(function.__doc__ or "")
    first, _, rest = lead.partition("\n")
    rest = rest.strip()
    description = (f"{first}\n\n{rest}" if rest else first) or name
    _, *parameters = inspect.signature(function, eval_str=True).parameters.values()  # without self
    fields: dict[str, Any] = {}
    for one in parameters:
        default = ... if one.default is one.empty else one.default
        if one.name in documented:
            default = Field(default, description=documented[one.name])
        fields[one.name] = (Any if one.annotation is one.empty else one.annotation, default)
    model: type[BaseModel] = create_model("parameters", **fields)
    return description, model.model_json_schema()


def _read(docstring: str) -> tuple[str, dict[str, str]]:
    """The text before the first section, and the descriptions of the parameters."""
    text = inspect.cleandoc(docstring)
    marks = list(_SECTION.finditer(text))
    found: dict[str, str] = {}
    for place, mark in enumerate(marks, 1):
        if mark[1] in _ARGUMENTS:
            end = marks[place].start() if place < len(marks) else len(text)
            found |= _parameters(text[mark.end() : end].strip("\n"))
    return (text[: marks[0].start()] if marks else text).strip(), found


def _parameters(section: str) -> dict[str, str]:
    """The parameters of a section; deeper lines continue a text and lose their indentation."""
    lines = section.splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    found: dict[str, list[str]] = {}
    last: list[str] = []
    for line in lines:
        if line[:indent].strip() == "" and line[indent : indent + 1].strip() and ":" in line:
            before, _, after = line.strip().partition(":")
            typed = _TYPED.match(before)
            last = found[typed[1] if typed else before.strip()] = [after.strip()]
        else:
            last.append(line)
    return {
        name: "\n".join([first, *inspect.cleandoc("\n".join(more)).splitlines()]).strip()
        for name, (first, *more) in found.items()
    }
