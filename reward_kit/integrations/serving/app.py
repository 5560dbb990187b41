"""Episodes over HTTP: begin one in a session, call tools, say lines, and finish it for a reward.

The tools of all rows are documented in ``/docs``; a session has those of its row. Nothing that is answered
tells what a row expects, or what its simulated user is told and does.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query, Request
from fastapi.responses import Response  # noqa: TC002 - FastAPI reads the annotations
from pydantic import BaseModel, Field
from starlette.routing import Route

from reward_kit.agent.base.types import StopReason  # noqa: TC001 - pydantic does
from reward_kit.agent.players.wrappers import call_hook
from reward_kit.agent.servers.http import (
    SESSION,
    SessionChanges,
    SessionHeader,
    SessionPath,
    add_tools,
    guarded_app,
)
from reward_kit.agent.servers.requests import arguments_of, body_of, fault, json_answer, takes
from reward_kit.agent.servers.sessions import DEFAULT
from reward_kit.agent.tools.values import json_value
from reward_kit.errors import BundleError, UsageError
from reward_kit.integrations.serving.episodes import SAY, Lesson, NoSuchSessionError, SessionExistsError
from reward_kit.integrations.serving.nemo_gym import ANY_TOOL, add_nemo_gym
from reward_kit.integrations.serving.openenv import add_openenv

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

    from fastapi import FastAPI

    from reward_kit.agent.tools.execution import Tool
    from reward_kit.integrations.serving.episodes import Episodes, Served

logger = logging.getLogger(__name__)
SeedQuery = Annotated[int | None, Query(ge=0, lt=2**63, description="Decides the tools' random numbers.")]
RowQuery = Annotated[str | None, Query(description="The id of a row; without one the seed chooses a row.")]
ToQuery = Annotated[str, Query(pattern=SESSION, description="The session of the copy.")]
STOPPED = "The reason for which the episode is over; null while it runs."


class EpisodeState(BaseModel):
    """An episode as its agent sees it."""

    session: str
    row: str
    seed: int
    messages: list[dict[str, Any]] = Field(description="In the OpenAI format, with the user's latest line.")
    tools: list[dict[str, Any]] = Field(description="In the OpenAI format.")
    steps: int
    turns: int
    stopped: StopReason | None = Field(description=STOPPED)


class CallAnswer(BaseModel):
    """The outcome of a tool call."""

    result: str = Field(description="What a model sees.")
    status: str = Field(description="ok, or why the tool did nothing, such as invalid_arguments.")
    stopped: StopReason | None = Field(description=STOPPED)


class Reply(BaseModel):
    """A line of the agent for the user."""

    text: str


class UserLine(BaseModel):
    """The answer of the user."""

    line: str | None = Field(description="Null if the episode is over.")
    stopped: StopReason | None = Field(description=STOPPED)


def build_app(episodes: Episodes, shared: Iterable[Any] = ()) -> FastAPI:
    """Return the server; ``shared`` are models, which are opened and closed with it."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            for one in shared:
                await call_hook(one, "open")
            yield
        finally:
            episodes.close()
            for one in shared:
                await call_hook(one, "close")

    name = episodes.bundle.tasks[0].row.toolset.removesuffix(".tools").strip(".") or "bundle"
    app = guarded_app(
        title=name, description="Episodes of a task bundle.", version="1.0.0", lifespan=lifespan
    )
    for kind, status in ((NoSuchSessionError, 404), (SessionExistsError, 409), (UsageError, 422)):
        app.add_exception_handler(kind, lambda _request, error, status=status: fault(status, str(error)))
    app.add_exception_handler(BundleError, _not_opened)
    _add_sessions(app, episodes)
    tools = {name: tool for task in episodes.bundle.tasks for name, tool in task.registry.tools.items()}
    _add_calls(app, episodes, tools)
    add_openenv(app, episodes)
    add_nemo_gym(app, episodes, {SAY, *tools})  # last: any path may be a tool

    @app.exception_handler(404)
    @app.exception_handler(405)
    async def unrouted(request: Request, _error: Exception) -> Response:
        path = request.url.path
        methods = {"POST"} if path[1:] in {SAY, *tools} else set()
        for route in app.routes:
            if isinstance(route, Route) and route.path != ANY_TOOL and route.path_regex.match(path):
                methods |= route.methods or set()
        if not methods:
            return fault(404, f"there is no path {path}; /docs lists those that there are")
        allowed = ", ".join(sorted(methods))
        return fault(405, f"{path} takes {allowed}, not {request.method}", {"Allow": allowed})

    return app


async def _not_opened(_request: Request, error: Exception) -> Response:
    logger.error("an episode cannot be opened: %s", error)  # which may name what a row expects
    return fault(500, "the episode cannot be opened; the log of the server says why")


def shown(served: Served, session: str) -> dict[str, Any]:
    """Return an episode as ``EpisodeState``."""
    episode = served.play.episode
    about = {"session": session, "row": episode.row.id, "seed": episode.seed, "stopped": served.stopped}
    counted = {"steps": episode.steps, "turns": episode.turns}
    return {**about, "messages": episode.messages, "tools": episode.tools, **counted}


def _add_sessions(app: FastAPI, episodes: Episodes) -> None:
    @app.get("/rows", tags=["sessions"])
    async def rows() -> list[str]:
        """The ids of the rows."""
        return [task.row.id for task in episodes.bundle.tasks]

    @app.post("/sessions/{id}/reset", tags=["sessions"], response_model=EpisodeState)
    async def reset(session: SessionPath, row: RowQuery = None, seed: SeedQuery = None) -> Response:
        """Begin an episode. If the row has a simulated user, its first line is the last message."""
        return json_answer(shown(await episodes.reset(session, row, seed), session))

    @app.get("/sessions/{id}", tags=["sessions"], response_model=EpisodeState)
    async def state(session: SessionPath) -> Response:
        """The episode so far."""
        async with episodes.playing(session) as served:
            return json_answer(shown(served, session))

    @app.get("/sessions/{id}/changes", tags=["sessions"], response_model=SessionChanges)
    async def changes(session: SessionPath) -> Response:
        """The rows of the database that the episode has changed, by either side."""
        async with episodes.playing(session) as served:
            found = served.play.episode.changes().to_json()
            return json_answer({"session": session, "changes": json_value(found)})

    @app.post("/sessions/{id}/fork", tags=["sessions"], response_model=EpisodeState)
    async def fork(session: SessionPath, to: ToQuery, seed: SeedQuery = None) -> Response:
        """Copy the episode as it is now into a new session."""
        async with episodes.playing(session) as served:
            return json_answer(shown(episodes.fork(served, to, seed), to))

    @app.post("/sessions/{id}/finish", tags=["sessions"], response_model=Lesson)
    async def finish(session: SessionPath) -> Response:
        """End the episode; returns its reward."""
        async with episodes.playing(session) as served:
            return json_answer((await episodes.lesson(served)).model_dump())

    @app.delete("/sessions/{id}", tags=["sessions"], status_code=204)
    async def delete(session: SessionPath) -> None:
        """Drop the session and its episode."""
        episodes.drop(session)

    about: dict[str, Any] = {"response_model": UserLine, "openapi_extra": takes(Reply)}

    @app.post("/sessions/{id}/say", tags=["sessions"], **about)
    async def say(request: Request, session: SessionPath) -> Response:
        """Say something to the user; returns the answer. Without a user the episode is then over."""
        text = (await body_of(request, Reply)).text
        async with episodes.playing(session) as served:
            line = None if served.stopped else await served.play.say(text)
            return json_answer({"line": line, "stopped": served.stopped})


def _add_calls(app: FastAPI, episodes: Episodes, tools: Mapping[str, Tool]) -> None:
    def caller(tool: str) -> Callable[..., Awaitable[Response]]:
        async def call(request: Request, session: SessionHeader = DEFAULT) -> Response:
            arguments = await arguments_of(request)
            async with episodes.playing(session) as served:
                return json_answer(await served.call(tool, arguments))

        return call

    add_tools(app, tools.values(), caller, CallAnswer)

    @app.post("/tools/{name}", include_in_schema=False)
    async def other(request: Request, name: str, session: SessionHeader = DEFAULT) -> Response:
        return await caller(name)(request, session)

    @app.get("/health", tags=["server"])
    async def health() -> dict[str, str]:
        """Answer if the server is up."""
        return {"status": "healthy"}
