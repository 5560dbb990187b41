"""The tools of a registry over HTTP, each with its own schema in ``/docs``, with a database per session.

Arguments are checked as in a rollout, not by FastAPI, so that a call has the same meaning in both.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Header, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from fastapi_offline import FastAPIOffline
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from reward_kit.agent.servers import requests
from reward_kit.agent.servers.requests import MAX_BODY, LocalOrTrusted, fault, json_answer
from reward_kit.agent.servers.sessions import DEFAULT, NoSuchRowError, TooManySessionsError
from reward_kit.agent.tools.values import json_value
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from reward_kit.agent.servers.sessions import Sessions
    from reward_kit.agent.tools.execution import Tool
    from reward_kit.agent.tools.registry import ToolRegistry

TOKEN = "REWARD_KIT_SERVER_TOKEN"  # noqa: S105 - the name of the variable
"""Environment variable with the bearer token that clients must send; without it only this machine may call.
"""

SESSION = r"^[A-Za-z0-9._-]{1,64}$"
"""The ids that a session may have."""
_OWN_COPY = "The session, which has its own copy of the seed."
SessionHeader = Annotated[str, Header(alias="X-Session-Id", pattern=SESSION, description=_OWN_COPY)]
SessionPath = Annotated[str, Path(alias="id", pattern=SESSION)]
RowQuery = Annotated[str | None, Query(description="The id of a row of the bundle's task.jsonl.")]


class ToolAnswer(BaseModel):
    """The outcome of a tool call."""

    result: Any = Field(description="What the tool returned, as JSON; null if it did not succeed.")
    content: str = Field(description="What a model sees.")
    error: bool = Field(description="True if the tool refused or failed; the database is then unchanged.")
    status: str = Field(description="ok, refused or failed")
    changes: list[dict[str, Any]] = Field(description="The rows that this call changed.")


class HttpFault(BaseModel):
    """The reason why a request was not carried out."""

    detail: str


class SessionChanges(BaseModel):
    """The rows in which a session differs from the seed."""

    session: str
    changes: list[dict[str, Any]]


def build_app(registry: ToolRegistry, sessions: Sessions) -> FastAPI:
    """Return a server of the tools that ``registry`` has now."""
    app = guarded_app(title=registry.name, description=registry.description)
    add_tools(app, registry.tools.values(), partial(_caller, sessions), ToolAnswer)

    @app.post("/tools/{name}", include_in_schema=False)
    async def unknown(name: str) -> Response:
        return fault(404, (await registry.call(name, None)).content)

    @app.post("/sessions/{id}/reset", tags=["sessions"])
    async def reset(session: SessionPath, row: RowQuery = None) -> SessionChanges:
        """Return to the seed; with a row's id to the state in which rollouts of that row begin."""
        sessions.reset(session, row)
        return SessionChanges(session=session, changes=[])

    @app.delete("/sessions/{id}", tags=["sessions"], status_code=204)
    async def delete(session: SessionPath) -> None:
        """Drop the session and its changes."""
        sessions.reset(session)

    @app.get("/sessions/{id}/changes", tags=["sessions"], response_model=SessionChanges)
    async def changes(session: SessionPath) -> Response:
        """The rows in which the session differs from the seed."""
        return json_answer({"session": session, "changes": json_value(await sessions.changes(session))})

    @app.get("/tools", tags=["tools"])
    async def tools() -> list[dict[str, Any]]:
        """The tools in the OpenAI format."""
        return registry.get_openai_tools()

    @app.get("/health", tags=["server"])
    async def health() -> dict[str, Any]:
        """Answer if the server is up."""
        return {"status": "ok", "registry": registry.name, "tools": len(registry.tools)}

    return app


def guarded_app(**options: Any) -> FastAPI:
    """Return an application that answers whom ``LocalOrTrusted`` lets in, and refuses in one line."""
    app: FastAPI = FastAPIOffline(responses={code: {"model": HttpFault} for code in (404, 422)}, **options)
    app.add_middleware(LocalOrTrusted, variable=TOKEN, open_paths=("/health",))

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        return fault(422, "; ".join(f"{found['loc'][-1]}: {found['msg']}" for found in error.errors()))

    for kind, status in ((NoSuchRowError, 404), (TooManySessionsError, 503), (RewardKitError, 500)):
        app.add_exception_handler(kind, lambda _request, error, status=status: fault(status, str(error)))
    app.add_exception_handler(ClientDisconnect, requests.client_gone)

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return RedirectResponse("docs")

    return app


def add_tools(
    app: FastAPI,
    tools: Iterable[Tool],
    caller: Callable[[str], Callable[..., Awaitable[Response]]],
    answer: type[BaseModel],
) -> None:
    """Add ``POST /tools/NAME`` for each tool, with its schema; ``caller`` makes the function behind it."""
    definitions: dict[str, Any] = {}
    for tool in tools:
        schema = _openapi_schema(tool, definitions)
        content = {"application/json": {"schema": schema}}
        app.add_api_route(
            f"/tools/{tool.name}",
            caller(tool.name),
            methods=["POST"],
            operation_id=tool.name,
            summary=tool.description.splitlines()[0][:80],
            description=tool.description,
            tags=["tools"],
            response_model=answer,
            openapi_extra={"requestBody": {"required": bool(schema["required"]), "content": content}},
        )

    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        document.setdefault("components", {}).setdefault("schemas", {}).update(definitions)
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # the documented way to extend the document


def _caller(sessions: Sessions, tool: str) -> Callable[..., Awaitable[Response]]:
    async def call(request: Request, session: SessionHeader = DEFAULT) -> Response:
        result = await sessions.call(session, tool, await requests.json_text(request, MAX_BODY))
        if result.status == "invalid_arguments":
            return fault(422, result.content)
        ok = result.status == "ok"
        answer = {"result": json_value(result.value) if ok else None, "content": result.content}
        changes = result.changes.to_json() if result.changes else []
        return json_answer({**answer, "error": not ok, "status": result.status, "changes": changes})

    return call


def _openapi_schema(tool: Tool, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema for an OpenAPI document, which has all ``definitions`` in one place."""
    text = json.dumps(tool.schema).replace('"#/$defs/', f'"#/components/schemas/{tool.name}.')
    schema: dict[str, Any] = json.loads(text)
    for name, definition in schema.pop("$defs", {}).items():
        definitions[f"{tool.name}.{name}"] = definition
    return schema
