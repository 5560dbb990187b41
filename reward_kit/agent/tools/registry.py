"""The tools of a bundle: registered with a decorator, offered to models, called with checked arguments."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from copy import copy as shallow_copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from reward_kit.agent.base.encoding import copied, json_text
from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.text import did_you_mean
from reward_kit.agent.base.versions import install_line
from reward_kit.agent.tools.execution import Tool, ToolResult, call_tool, unknown_tool
from reward_kit.agent.tools.parameters import inner_function, parse_docstring
from reward_kit.agent.tools.schema import read_signature
from reward_kit.agent.tools.values import ArgumentError
from reward_kit.errors import BundleError, RewardKitError, ToolError

if TYPE_CHECKING:
    from types import FrameType

    from mcp.server.lowlevel import Server

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.database import Database
    from reward_kit.agent.rollout.rollout import Rollout
    from reward_kit.agent.servers.app import ToolApp
    from reward_kit.agent.servers.mcp_server import McpServer

__all__ = ["Tool", "ToolError", "ToolRegistry", "ToolResult"]

F = TypeVar("F", bound=Callable[..., Any])

FunctionKind = Literal["setup", "check", "after_call"]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class ToolRegistry:
    """The tools of a bundle, by convention named ``R`` in its ``tools`` module.

    ``database="file"`` gives each rollout a complete file with ``db.path`` and ``db.engine``. With
    ``parallel_tool_calls=False`` only the first call of an answer is run; models are not asked to make only
    one. ``tool_timeout`` is in seconds per call; ``None`` sets no limit. ``hidden`` names tables that are
    neither compared nor shown. With ``rollback=False`` a call that fails keeps what it has changed, and the
    functions of ``after_call`` run after it. ``folder`` is that of the module that made it, None at a prompt.
    """

    def __init__(
        self,
        name: str,
        description: str | None = None,
        *,
        database: Literal["overlay", "file"] = "overlay",
        parallel_tool_calls: bool = True,
        tool_timeout: float | None = 60.0,
        hidden: Iterable[str] = (),
        rollback: bool = True,
    ) -> None:
        maker = _caller()
        self.name = name
        self.description = description or f"Tool registry for {name}"
        self.database = database
        self.parallel_tool_calls = parallel_tool_calls
        self.tool_timeout = tool_timeout
        self.hidden = (hidden,) if isinstance(hidden, str) else tuple(hidden)
        self.rollback = rollback
        self.tools: dict[str, Tool] = {}
        self.unlisted: dict[str, Tool] = {}
        """Tools that can be called where they are not among ``tools``, too."""
        self.functions: dict[FunctionKind, dict[str, Tool]] = {"setup": {}, "check": {}, "after_call": {}}
        """Functions that no model is offered."""
        path = Path(maker.f_globals.get("__file__") or "").resolve()
        is_package = (path.name, path.parent.name) == ("__init__.py", "tools")
        above = [*path.parents][is_package : maker.f_globals.get("__name__", "").count(".") + is_package]
        files = ("task.jsonl", "seed.sql", "seed.py")  # the registry may be in a module below
        found = [one for one in above for name in files if (one / name).is_file()]
        self.folder = [*found, path.parents[is_package]][0] if maker.f_globals.get("__file__") else None
        self._openai_tools: list[dict[str, Any]] | None = None
        self._app: ToolApp | None = None
        if database not in ("overlay", "file"):
            fault, remedy = f"database is {database!r}", 'Use "overlay" or "file".'
            raise BundleError(fault, place=_place(maker), remedy=remedy)
        if tool_timeout is not None and not (isinstance(tool_timeout, int | float) and tool_timeout > 0):
            fault, remedy = f"tool_timeout is {tool_timeout!r}", "Give seconds above 0, or None."
            raise BundleError(fault, place=_place(maker), remedy=remedy)

    @overload
    def tool(self, description: F, /) -> F: ...

    @overload
    def tool(
        self,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        terminal: bool | Literal["always"] = False,
    ) -> Callable[[F], F]: ...

    def tool(
        self,
        description: str | F | None = None,
        parameters: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        terminal: bool | Literal["always"] = False,
    ) -> F | Callable[[F], F]:
        """Register a function, ``def`` or ``async def``, and return it unchanged; usable bare, ``@R.tool``.

        ``description`` is by default the docstring's first paragraph, ``name`` the function's. ``parameters``
        maps names to Python types, annotations or JSON schemas, or is the JSON schema of an object; by
        default annotations and docstring are read. ``db`` and ``rollout`` are injected. ``terminal=True``
        ends the rollout after a call that succeeds, ``terminal="always"`` also after one that fails. Raises
        ``BundleError`` with file and line if the tool cannot be offered to a model.
        """
        caller = _caller()
        place, namespace = _place(caller), caller.f_locals
        if terminal not in (True, False, "always"):
            raise BundleError(f"terminal is {terminal!r}", place=place, remedy='Use True, False or "always".')
        words = description if isinstance(description, str) else None

        def register(function: F) -> F:
            chosen = name or getattr(function, "__name__", None) or repr(function)
            if chosen in self.tools:
                fault = f"tool {chosen!r}: the name is taken by the tool of {self.tools[chosen].place}"
                raise BundleError(fault, place=place, remedy="Give one of them name=...")
            try:
                made = _make_tool(function, chosen, words, parameters, namespace)
            except BundleError as error:
                fault = f"tool {chosen!r}: {error.fault}"
                raise BundleError(fault, place=place, remedy=error.remedy) from error
            self.tools[chosen] = replace(made, terminal=terminal, place=place)
            self._openai_tools = None
            return function

        return register if description is None or isinstance(description, str) else register(description)

    def setup(self, function: F) -> F:
        """Register a function for the ``setup`` of rows, which runs once on their seeded data: ``@R.setup``.

        It is a plain ``def`` with the arguments that rows give, and ``db``.
        """
        return self._register("setup", function)

    def check(self, function: F) -> F:
        """Register a function for the ``checks`` of rows, which looks at the final data: ``@R.check``.

        It is a plain ``def`` with the arguments that rows give, and ``db``; it returns a JSON value.
        """
        return self._register("check", function)

    def after_call(self, function: F) -> F:
        """Register a function of ``db`` that runs after each call of either side: ``@R.after_call``.

        It is a plain ``def``, and runs in the transaction of a call that succeeds, or of any call of a
        registry with ``rollback=False``: if it fails, so does the call.
        """
        return self._register("after_call", function)

    def _register(self, kind: FunctionKind, function: F) -> F:
        caller = _caller()
        place, known = _place(caller), self.functions[kind]
        name = getattr(function, "__name__", repr(function))
        try:
            made = replace(_make_tool(function, name, None, None, caller.f_locals), place=place)
        except BundleError as error:
            raise BundleError(f"{kind} {name!r}: {error.fault}", place=place, remedy=error.remedy) from error
        if made.is_async:
            raise BundleError(f"{kind} {name!r} is async", place=place, remedy='Write a plain "def".')
        if name in known:
            fault = f"{kind} {name!r}: the name is taken by that of {known[name].place}"
            raise BundleError(fault, place=place, remedy="Rename one of them.")
        if kind == "after_call" and made.schema.get("properties"):
            raise BundleError(f"after_call {name!r} has arguments", place=place, remedy="It takes db alone.")
        known[name] = made
        return function

    def run_function(self, kind: FunctionKind, name: str, arguments: dict[str, Any], db: Any) -> Any:
        """Call a registered function; raises ``BundleError`` for every exception of it."""
        values = self.check_arguments(kind, name, arguments)
        function = self.functions[kind][name]
        try:
            return function.function(**values, **({"db": db} if "db" in function.injected else {}))
        except (Exception, SystemExit) as error:  # the border to the bundle's own code
            raise BundleError(f"{kind} {name!r} raised {fault_line(error)}") from error

    def check_arguments(self, kind: FunctionKind, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments for a registered function; raises ``BundleError`` if it does not take them."""
        function = self.functions[kind].get(name)
        if function is None:
            hint = did_you_mean(name, list(self.functions[kind]))
            remedy = f"Register it in the module of {self.name!r} with @R.{kind}."
            raise BundleError(f"there is no {kind} {name!r}{hint}", remedy=remedy)
        try:
            return function.check(json_text(arguments))
        except ArgumentError as error:
            remedy = f"One without a type is a string: annotate it at {function.place}, or correct the row."
            raise BundleError(f"invalid arguments for {kind} {name!r}: {error}", remedy=remedy) from error

    def include(self, other: ToolRegistry) -> None:
        """Add the tools that ``other`` has now; raises ``BundleError`` for a name that both have.

        Its hidden tables and its functions for setup, checks and after calls come too.
        """
        place = _place(_caller())
        if other.database == "file" and self.database != "file":
            raise BundleError(
                f"registry {other.name!r} needs database='file', which {self.name!r} does not have",
                place=place,
                remedy=f"Make it ToolRegistry({self.name!r}, database='file').",
            )
        both = {"tool": (self.tools, other.tools)}
        both |= {kind: (self.functions[kind], functions) for kind, functions in other.functions.items()}
        for kind, (own, others) in both.items():
            for name in [one for one in own.keys() & others if own[one].function is not others[one].function]:
                fault = f"both {self.name!r} and {other.name!r} have the {kind} {name!r}"
                places = f" ({own[name].place} and {others[name].place})"
                raise BundleError(fault + places, place=place, remedy="Rename one of them.")
        for own, others in both.values():
            own.update(others)
        self.hidden = tuple(dict.fromkeys((*self.hidden, *other.hidden)))
        self._openai_tools = None

    def only(self, names: Collection[str]) -> ToolRegistry:
        """A copy of the registry that has the tools of these names."""
        copy = shallow_copy(self)
        chosen = {name: tool for name, tool in self.tools.items() if name in names}
        vars(copy).update(tools=chosen, _openai_tools=None, _app=None)
        return copy

    def get_openai_tools(self) -> list[dict[str, Any]]:
        """The tools in the OpenAI format, in the order of registration; the list is the caller's own."""
        tools: list[dict[str, Any]] = copied(self.openai_tools)
        return tools

    @property
    def openai_tools(self) -> list[dict[str, Any]]:
        """``get_openai_tools()`` as one shared list, which callers must not change."""
        if self._openai_tools is None:
            self._openai_tools = [
                {
                    "type": "function",
                    "function": {"name": t.name, "description": t.description, "parameters": t.schema},
                }
                for t in self.tools.values()
            ]
        return self._openai_tools

    def unknown(
        self, name: str, known: Sequence[str], db: Database | None, after: Sequence[Tool]
    ) -> Coroutine[Any, Any, ToolResult]:
        """The result of a call of a tool that is not among the ``known``; the functions of ``after`` run."""
        return unknown_tool(name, known, db, self.tool_timeout, after)

    call = call_tool

    async def execute_tool(
        self,
        name: str,
        arguments: dict[str, Any] | str | bytes | None,
        db: Database | None = None,
        rollout: Rollout | None = None,
    ) -> str:
        """Run a tool; return the text for the model: a text itself, other values as JSON, or ``Error: …``."""
        return (await self.call(name, arguments, db=db, rollout=rollout)).content

    def create_fastapi_app(self) -> ToolApp:
        """The tools over HTTP, for trying them by hand: an ASGI application; its ``fastapi`` can be extended.

        ``uvicorn my_task.tools:app`` serves it from the folder above, ``uvicorn tools:app`` from inside;
        ``/docs`` lists every tool. State is a fork of the bundle's seed for each ``X-Session-Id``, held by
        one process: start it with one worker.
        """
        if self._app is None:
            self._app = _server_module("app").ToolApp(self)
        return self._app

    def create_mcp_server(self) -> Server[str]:
        """The tools as a server of the official MCP SDK, for its ``run`` or ``streamable_http_app``.

        Each session has a fork of the bundle's seed, which is dropped when the session ends. Raises
        ``RewardKitError`` if the package ``mcp`` is not installed. ``reward-kit mcp`` serves it.
        """
        return mcp_server_of(self).server


def mcp_server_of(registry: ToolRegistry, task: Task | None = None) -> McpServer:
    """The MCP server of a registry, with its sessions; see ``ToolRegistry.create_mcp_server``.

    With ``task``, one of the registry's, its data is that of the task's row.
    """
    try:
        module = _server_module("mcp_server")
    except ImportError as error:
        raise RewardKitError(
            f"MCP needs the package mcp, version 2: {error}", remedy=install_line("mcp")
        ) from error
    server: McpServer = module.McpServer(registry, task)
    return server


def _server_module(name: str) -> Any:
    """Import a module of ``servers``, the one room above that this one uses, when it is first needed."""
    return importlib.import_module(f"reward_kit.agent.servers.{name}")


def _make_tool(
    function: Callable[..., Any],
    name: str,
    description: str | None,
    parameters: Mapping[str, Any] | None,
    namespace: Mapping[str, Any],
) -> Tool:
    if not callable(function):
        raise BundleError(f"{function!r} is not a function")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BundleError(
            "models cannot call a tool of this name",
            remedy="Use 1 to 64 of the characters a-z A-Z 0-9 _ and -.",
        )
    inner = inner_function(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise BundleError("it is a generator", remedy="Return a list.")
    summary, described = parse_docstring(inner.__doc__)
    signature = read_signature(function, parameters, described, namespace)
    undescribed = [] if description or summary else ["no description"]
    if untyped := signature.untyped:
        named = f"taken for text: {', '.join(untyped)}. Write {untyped[0]}: str"
        undescribed.append(f"parameters without a type, {named}")
    return Tool(
        name=name,
        description=description or summary or name.replace("_", " "),
        schema=signature.schema,
        function=function,
        is_async=inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__),
        injected=signature.injected,
        needed=signature.needed,
        check=signature.check,
        undescribed=tuple(undescribed),
    )


def _caller() -> FrameType:
    """The frame that called into this module, past constructors of classes derived from the registry."""
    frame = inspect.currentframe()
    assert frame is not None
    while frame.f_back is not None and (
        frame.f_code.co_filename == __file__ or frame.f_code.co_name == "__init__"
    ):
        frame = frame.f_back
    return frame


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
