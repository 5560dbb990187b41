from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from reward_kit.agent.tools.registry import ToolRegistry
from reward_kit.errors import BundleError

FLIGHT_TOOLS = (Path(__file__).parents[3] / "examples" / "flight_task" / "tools.py").read_text()


def module_from(path: Path, name: str, text: str) -> ModuleType:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Registering


def test_the_flight_tools_are_offered_in_the_openai_format(tmp_path: Path) -> None:
    module = module_from(tmp_path / "flight_task" / "tools.py", "flight_task_tools", FLIGHT_TOOLS)

    tools = module.R.get_openai_tools()

    assert [tool["function"]["name"] for tool in tools] == ["search_flights", "create_booking", "pay_booking"]
    assert tools[1] == {
        "type": "function",
        "function": {
            "name": "create_booking",
            "description": "Reserve seat",
            "parameters": {
                "type": "object",
                "properties": {"flight_id": {"type": "integer"}, "passenger": {"type": "string"}},
                "required": ["flight_id", "passenger"],
                "additionalProperties": False,
            },
        },
    }
    for tool in tools:
        Draft202012Validator.check_schema(tool["function"]["parameters"])


def test_a_decorated_function_is_returned_unchanged() -> None:
    registry = ToolRegistry("tools")

    def function(a: int) -> int:
        return a

    assert registry.tool(function) is function
    assert registry.tool("Again", name="again")(function) is function
    assert list(registry.tools) == ["function", "again"]


# What is an error at import, and where it says so


@pytest.mark.parametrize("name", ["search flights", "", "x" * 65, "größe", "a.b", "a/b"])
def test_a_name_that_models_cannot_call_is_refused(name: str) -> None:
    registry = ToolRegistry("tools")

    def function():
        pass

    function.__name__ = name
    with pytest.raises(BundleError, match="models cannot call a tool of this name"):
        registry.tool(function)


def test_a_second_tool_of_the_same_name_is_refused_with_both_places(tmp_path: Path) -> None:
    text = (
        "from reward_kit.agent.tools.registry import ToolRegistry\n"
        "R = ToolRegistry('tools')\n"
        "@R.tool()\n"
        "def ping(): ...\n"
        "@R.tool(name='ping')\n"
        "def other(): ...\n"
    )
    with pytest.raises(BundleError) as caught:
        module_from(tmp_path / "tools.py", "twice", text)

    file = tmp_path / "tools.py"
    assert str(caught.value) == (
        f"{file}:5: tool 'ping': the name is taken by the tool of {file}:3. Give one of them name=..."
    )


def test_a_faulty_tool_is_told_with_file_line_and_name(tmp_path: Path) -> None:
    text = (
        "from reward_kit.agent.tools.registry import ToolRegistry\n"
        "R = ToolRegistry('tools')\n"
        "\n"
        "@R.tool(parameters={'orign': str})\n"
        "def search(origin): ...\n"
    )
    with pytest.raises(BundleError) as caught:
        module_from(tmp_path / "tools.py", "faulty", text)

    assert str(caught.value) == (
        f"{tmp_path / 'tools.py'}:4: tool 'search': parameters lists 'orign', "
        "which the function does not take (it takes 'origin')"
    )


# Where the bundle is


@pytest.mark.parametrize(
    ("file", "folder"),
    [
        ("my_task/tools.py", "my_task"),
        ("my_task/tools/__init__.py", "my_task"),
        ("my_task/__init__.py", "my_task"),
    ],
)
def test_a_registry_knows_its_bundles_folder(tmp_path: Path, file: str, folder: str) -> None:
    text = "from reward_kit.agent.tools.registry import ToolRegistry\nR = ToolRegistry('tools')\n"

    module = module_from(tmp_path / file, "where", text)

    assert module.R.folder == (tmp_path / folder).resolve()


# Including


def registry_of(name: str, *tools: str, **options: Any) -> ToolRegistry:
    made = ToolRegistry(name, **options)
    for tool in tools:
        made.tool(name=tool)(lambda: "ran")
    return made


def test_including_a_name_that_is_taken_names_both_registries_and_takes_nothing() -> None:
    registry = registry_of("main", "a", "b")

    with pytest.raises(BundleError, match=r"both 'main' and 'more' have a tool 'b' \(.*:\d+ and .*:\d+\)"):
        registry.include(registry_of("more", "c", "b"))
    assert list(registry.tools) == ["a", "b"]


# Calling


async def test_an_unknown_tool_is_told_with_the_nearest_name_and_all_names() -> None:
    registry = registry_of("tools", "search_flights", "pay_booking")

    result = await registry.call("search_flight", {})

    assert result.status == "unknown_tool"
    assert result.content == (
        "Error: unknown tool 'search_flight' (did you mean 'search_flights'?); "
        "available: search_flights, pay_booking"
    )
    assert (await ToolRegistry("none").call("x", {})).content == "Error: unknown tool 'x'; available: none"


# What a module of tools costs to import


def test_importing_a_bundles_tools_loads_no_web_framework_and_no_model_library(tmp_path: Path) -> None:
    (tmp_path / "flight_task").mkdir()
    (tmp_path / "flight_task" / "tools.py").write_text(FLIGHT_TOOLS)
    script = (
        "import json, sys, flight_task.tools\n"
        "heavy = ('fastapi', 'litellm', 'sqlalchemy', 'apsw', 'jsonschema')\n"
        "print(json.dumps([name for name in heavy if name in sys.modules]))\n"
        "print(repr(flight_task.tools.app))"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )

    loaded, shown = done.stdout.splitlines()
    assert json.loads(loaded) == []
    assert shown == "<tool server of 'flight_tools'>"


@pytest.mark.parametrize("options", [{"database": "memory"}, {"tool_timeout": 0}, {"tool_timeout": "1"}])
def test_an_impossible_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BundleError, match=rf"{Path(__file__).name}:\d+: {next(iter(options))} is "):
        ToolRegistry("tools", **options)
