"""New bundles: a copy of the starter, or tools of an OpenAPI file or MCP server, to be written."""

from __future__ import annotations

import asyncio
import json
import keyword
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pprint import pformat
from textwrap import indent
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import parsed_json
from reward_kit.agent.base.files import undone_by
from reward_kit.agent.base.text import cut
from reward_kit.agent.base.versions import install_line
from reward_kit.agent.bundles.files import read_text
from reward_kit.errors import BundleError, RewardKitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

STARTER = Path(__file__).with_name("starter")
_ROW = """\
{"id": "first", "toolset": ".tools",
 "initial_messages": [{"role": "user", "content": "The user's request"}],
 "actions": []}
"""
MOST_REFERENCES = 200
"""References of one schema that are replaced: schemas that refer to each other grow without end."""
MCP_SECONDS = 60.0
"""Seconds that an MCP server has to start and to list its tools."""
_HEAD = '''"""Tools made from {origin}; their bodies are to be written."""

from reward_kit.agent import ToolError, ToolRegistry

R = ToolRegistry("tools")
'''


@dataclass(frozen=True, slots=True)
class ToolOutline:
    """Name, description and JSON schema of the arguments of a tool that is to be written."""

    name: str
    description: str
    schema: Mapping[str, Any]


def write_starter(folder: Path, tools: Sequence[ToolOutline] = (), origin: str = "") -> list[str]:
    """Write a new bundle to ``folder``; returns the names of its files.

    With ``tools``, its ``tools.py`` has these, and its data and row are to be written. Raises ``UsageError``
    if the folder exists, or its name cannot be used.
    """
    if not re.fullmatch(r"[\w-]+", folder.name):
        remedy = "Use letters, digits, underscores and hyphens, such as my_task."
        raise UsageError(f"{folder.name!r} cannot be used", place="NAME", remedy=remedy)
    if folder.name in {*sys.stdlib_module_names, "reward_kit"}:
        fault = f"{folder.name!r} is a module of Python's or this package"
        raise UsageError(fault, place="NAME", remedy="Choose another name.")
    if folder.exists():
        raise UsageError("exists already", place=str(folder), remedy="Choose another name.")
    texts = {path.name: _text(path, folder) for path in sorted(STARTER.iterdir()) if path.is_file()}
    if tools:
        seed = "-- The tables and rows that every rollout starts from.\n"
        texts |= {"tools.py": tools_source(tools, origin), "task.jsonl": _ROW, "seed.sql": seed}
        del texts["policy.md"]
    folder.mkdir(parents=True)
    with undone_by(partial(shutil.rmtree, folder)):
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    return list(texts)


def has_starters_readme(folder: Path) -> bool:
    """True if the bundle's ``README.md`` is still the starter's."""
    readme = folder / "README.md"
    return readme.is_file() and readme.read_bytes() == _text(STARTER / "README.md", folder).encode()


def _text(path: Path, folder: Path) -> str:
    return path.read_text(encoding="utf-8").replace("NAME", folder.name)


def tools_source(tools: Iterable[ToolOutline], origin: str) -> str:
    """A module with a registry ``R`` and a function for each tool, whose body is yet to be written."""
    parts = [_HEAD.format(origin=origin)]
    taken: set[str] = set()
    names: set[str] = set()
    for tool in tools:
        name, offered = _identifier(tool.name, taken), re.sub(r"[^A-Za-z0-9_-]+", "_", tool.name)[:64]
        while offered in names:
            offered = f"{offered[:60]}_{len(names)}"
        names.add(offered)
        called = "" if name == offered else f"    name={offered!r},\n"
        schema = indent(pformat(dict(tool.schema), width=90, sort_dicts=False), "    ").lstrip()
        parts.append(
            f"\n\n@R.tool(\n{called}    description={tool.description!r},\n    parameters={schema},\n)\n"
            f"async def {name}({_signature(tool.schema)}):\n"
            f'    raise ToolError("{name} is not written yet")\n'
        )
    return "".join([*parts, "\n\napp = R.create_fastapi_app()\n"])


def _identifier(name: str, taken: set[str]) -> str:
    plain = re.sub(r"\W+", "_", name).strip("_") or "tool"
    if plain[0].isdigit() or keyword.iskeyword(plain):
        plain = f"tool_{plain}"
    while plain in taken or plain in ("R", "app"):
        plain += "_"
    taken.add(plain)
    return plain


def _signature(schema: Mapping[str, Any]) -> str:
    names = list(schema.get("properties", {}))
    if any(not name.isidentifier() or keyword.iskeyword(name) or name == "db" for name in names):
        return "*, db, **arguments"
    required = schema.get("required", [])
    ordered = sorted(names, key=lambda name: name not in required)
    return ", ".join([*(name if name in required else f"{name}=None" for name in ordered), "*", "db"])


def tools_of_openapi(path: Path) -> list[ToolOutline]:
    """A tool for each operation of an OpenAPI 3 file, JSON or YAML.

    Parameters and the members of a JSON body become arguments. Raises ``BundleError`` for a file that cannot
    be read, or has no operations.
    """
    document = _parsed(read_text(path), path)
    paths = document.get("paths") if isinstance(document, dict) and "swagger" not in document else None
    tools = []
    for address, item in (paths or {}).items():
        for method in ("get", "post", "put", "patch", "delete"):
            operation = item.get(method) if isinstance(item, dict) else None
            if isinstance(operation, dict):
                shared = item.get("parameters") or []
                tools.append(_outline(document, f"{method}{address}", operation, shared))
    if not tools:
        raise BundleError("describes no operations", place=str(path), remedy="It is no OpenAPI 3 file.")
    return tools


def _parsed(text: str, path: Path) -> Any:
    try:
        if path.suffix.lower() == ".json":
            return parsed_json(text)
        import yaml

        return json.loads(json.dumps(yaml.safe_load(text), default=str, skipkeys=True))  # dates are texts
    except ImportError:
        remedy = "Convert it to JSON, or install PyYAML."
        raise RewardKitError("is read by PyYAML, which is missing", place=str(path), remedy=remedy) from None
    except ValueError as error:
        raise BundleError(f"is not JSON: {error}", place=str(path)) from None
    except yaml.YAMLError as error:
        raise BundleError(f"is not YAML: {' '.join(str(error).split())}", place=str(path)) from None


def _outline(
    document: Any, address: str, operation: Mapping[str, Any], shared: list[Mapping[str, Any]]
) -> ToolOutline:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in (_resolved(document, one) for one in [*shared, *(operation.get("parameters") or [])]):
        if parameter.get("in") in ("path", "query"):
            about = {"description": parameter["description"]} if parameter.get("description") else {}
            properties[parameter["name"]] = {**parameter.get("schema", {}), **about}
            if parameter.get("required"):
                required.append(parameter["name"])
    request = _resolved(document, operation.get("requestBody") or {})
    kinds = sorted((request.get("content") or {}).items(), key=lambda one: one[0] != "application/json")
    bodies = (one for kind, one in kinds if "schema" in one and ("json" in kind or "form" in kind))
    body = next(bodies, dict[str, Any]()).get("schema")
    if body is not None:
        body = _resolved(document, body)
        if body.get("type", "object") == "object" and "properties" in body:
            properties |= body["properties"]
            required += body.get("required", [])
        else:
            properties["body"] = body
            required += ["body"] if request.get("required") else []
    schema = {"type": "object", "properties": properties, "required": list(dict.fromkeys(required))}
    name = operation.get("operationId") or re.sub(r"\W+", "_", address).strip("_")
    return ToolOutline(str(name), operation.get("description") or operation.get("summary") or "", schema)


def _resolved(
    document: Any, value: Any, within: tuple[str, ...] = (), left: Iterator[int] | None = None
) -> Any:
    """``value`` with schemas for references; one within itself, or after many others, is any value."""
    left = iter(range(MOST_REFERENCES)) if left is None else left
    if isinstance(value, list):
        return [_resolved(document, one, within, left) for one in value]
    if not isinstance(value, dict):
        return value
    reference = value.get("$ref")
    if not isinstance(reference, str):
        schema = {name: _resolved(document, one, within, left) for name, one in value.items()}
        for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and limit in schema:
                schema[exclusive] = schema.pop(limit)  # as JSON Schema has it since OpenAPI 3.1
        return schema
    if reference in within or (within[1:] and next(left, None) is None):
        return {}
    target = document
    for part in reference.removeprefix("#/").split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, dict) or name not in target:
            raise BundleError(f"refers to {cut(reference, 100)!r}, which is not in it", place="OpenAPI file")
        target = target[name]
    return _resolved(document, target, (*within, reference), left)


def tools_of_mcp(command: str) -> list[ToolOutline]:
    """The tools of the MCP server that ``command`` starts; raises ``RewardKitError`` if it lists none."""
    try:
        from mcp import ClientSession, StdioServerParameters
        from mcp.client.stdio import stdio_client
    except ImportError:
        remedy = f"Run {install_line('mcp')}"
        raise RewardKitError("needs the package mcp", place="--from-mcp", remedy=remedy) from None

    async def listed() -> list[ToolOutline]:
        program, *arguments = shlex.split(command)
        server = StdioServerParameters(command=program, args=arguments)
        async with (
            asyncio.timeout(MCP_SECONDS),
            stdio_client(server) as (reader, writer),
            ClientSession(reader, writer) as session,
        ):
            await session.initialize()
            found = (await session.list_tools()).tools
        return [ToolOutline(one.name, one.description or "", one.input_schema) for one in found]

    try:
        tools = asyncio.run(listed())
    except (OSError, TimeoutError, ValueError, ExceptionGroup) as error:
        fault: BaseException = error
        while isinstance(fault, BaseExceptionGroup):
            fault = fault.exceptions[0]
        why, remedy = str(fault) or type(fault).__name__, "Run the command by itself to see why."
        why = f"the MCP server does not answer: {why}"
        raise RewardKitError(why, place=command, remedy=remedy) from error
    if not tools:
        raise RewardKitError("the server has no tools", place=command)
    return tools
