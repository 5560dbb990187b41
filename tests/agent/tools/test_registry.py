from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from command import new_python
from jsonschema import Draft202012Validator

from reward_kit.agent.tools.registry import ToolRegistry
from reward_kit.errors import BundleError

HEAD = "from reward_kit.agent.tools.registry import ToolRegistry\nR = ToolRegistry('tools')\n"
FLIGHT_TOOLS = (Path(__file__).parents[3] / "examples" / "flight_task" / "tools.py").read_text()


def registry_from(path: Path, text: str) -> ToolRegistry:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    registry: ToolRegistry = runpy.run_path(str(path))["R"]
    return registry


def test_the_flight_tools_are_offered_in_the_openai_format(tmp_path: Path) -> None:
    tools = registry_from(tmp_path / "flight_task" / "tools.py", FLIGHT_TOOLS).get_openai_tools()

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


@pytest.mark.parametrize("name", ["search flights", "", "x" * 65, "größe", "a.b", "a/b"])
def test_a_name_that_models_cannot_call_is_refused(name: str) -> None:
    registry = ToolRegistry("tools")

    def function():
        pass

    function.__name__ = name
    with pytest.raises(BundleError, match="models cannot call a tool of this name"):
        registry.tool(function)


@pytest.mark.parametrize(("text", "told"), [
    ("@R.tool()\ndef ping(): ...\n@R.tool(name='ping')\ndef other(): ...\n",
     "{0}:5: tool 'ping': the name is taken by the tool of {0}:3. Give one of them name=..."),
    ("\n@R.tool(parameters={'orign': str})\ndef search(origin): ...\n",
     "{0}:4: tool 'search': parameters lists 'orign', which the function does not take (it takes 'origin')"),
])  # fmt: skip
def test_a_faulty_tool_is_told_with_file_line_and_name(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(BundleError) as caught:
        registry_from(tmp_path / "tools.py", HEAD + text)
    assert str(caught.value) == told.format(tmp_path / "tools.py")


@pytest.mark.parametrize("file", ["tools.py", "tools/__init__.py", "__init__.py"])
def test_a_registry_knows_its_bundles_folder(tmp_path: Path, file: str) -> None:
    assert registry_from(tmp_path / "my_task" / file, HEAD).folder == (tmp_path / "my_task").resolve()


def test_a_registry_in_a_module_below_the_tools_knows_it_too(tmp_path: Path) -> None:
    folder = tmp_path / "my_task"
    (folder / "tools").mkdir(parents=True)
    (folder / "task.jsonl").touch()
    (folder / "tools" / "books.py").write_text(HEAD)
    made = runpy.run_path(str(folder / "tools" / "books.py"), run_name="my_task.tools.books")["R"]
    assert made.folder == folder.resolve()


def registry_of(name: str, *tools: str, **options: Any) -> ToolRegistry:
    made = ToolRegistry(name, **options)
    for tool in tools:
        made.tool(name=tool)(lambda: "ran")
    return made


def test_including_a_name_that_is_taken_names_both_registries_and_takes_nothing() -> None:
    registry = registry_of("main", "a", "b")
    with pytest.raises(BundleError, match=r"both 'main' and 'more' have the tool 'b' \(.*:\d+ and .*:\d+\)"):
        registry.include(registry_of("more", "c", "b"))
    assert list(registry.tools) == ["a", "b"]
    more = registry_of("more", "c")
    for one in (registry, more):

        def audit(db: Any) -> None: ...

        one.after_call(audit)
    with pytest.raises(BundleError, match=r"both 'main' and 'more' have the after_call 'audit' \("):
        registry.include(more)
    assert list(registry.tools) == ["a", "b"]


async def test_an_unknown_tool_is_told_with_the_nearest_name_and_all_names() -> None:
    registry = registry_of("tools", "search_flights", "pay_booking")
    result = await registry.call("search_flight", {})
    assert result.status == "unknown_tool"
    assert result.content == (
        "Error: unknown tool 'search_flight' (did you mean 'search_flights'?); "
        "available: search_flights, pay_booking"
    )
    assert (await ToolRegistry("none").call("x", {})).content == "Error: unknown tool 'x'; available: none"


def test_importing_a_bundles_tools_loads_no_web_framework_and_no_model_library(tmp_path: Path) -> None:
    (tmp_path / "flight_task").mkdir()
    (tmp_path / "flight_task" / "tools.py").write_text(FLIGHT_TOOLS)
    script = (
        "import json, sys, flight_task.tools\n"
        "heavy = ('fastapi', 'litellm', 'sqlalchemy', 'apsw', 'jsonschema')\n"
        "print(json.dumps([name for name in heavy if name in sys.modules]))\n"
        "print(repr(flight_task.tools.app))"
    )
    loaded, shown = new_python("-c", script, cwd=tmp_path).out.splitlines()
    assert json.loads(loaded) == []
    assert shown == "<tool server of 'flight_tools'>"


@pytest.mark.parametrize("options", [{"database": "memory"}, {"tool_timeout": 0}, {"tool_timeout": "1"}])
def test_an_impossible_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BundleError, match=rf"{Path(__file__).name}:\d+: {next(iter(options))} is "):
        ToolRegistry("tools", **options)


def test_functions_that_two_included_registries_share_are_one() -> None:
    common, registry = ToolRegistry("common"), ToolRegistry("main")

    def audit(db: Any) -> None: ...

    common.after_call(audit)
    for name in ("a", "b"):
        part = registry_of(name, name)
        part.include(common)
        registry.include(part)
    again = ToolRegistry("again")
    again.after_call(audit)
    registry.include(again)
    assert list(registry.functions["after_call"]) == ["audit"]
    assert list(registry.tools) == ["a", "b"]
