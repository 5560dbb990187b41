"""The routes of OpenEnv, for its clients and its validator.

An action calls a tool: ``{"type": "call_tool", "tool_name": …, "arguments": {…}}``. ``say_to_user`` speaks to
the user, and without one ends the episode. The reward comes with ``done``; it is null for a rollout to leave
out.
"""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from fastapi import Request, WebSocket, WebSocketDisconnect
from fastapi.responses import Response  # noqa: TC002 - FastAPI reads the annotations
from pydantic import BaseModel, Field, ValidationError

from reward_kit.agent.base.history import parse_arguments
from reward_kit.agent.servers.http import SessionHeader  # noqa: TC001 - so it does
from reward_kit.agent.servers.requests import arguments_of, body_of, faults, json_answer, takes
from reward_kit.agent.servers.sessions import DEFAULT, TooManySessionsError
from reward_kit.errors import RewardKitError, UsageError
from reward_kit.integrations.serving.episodes import SAY, SAY_TOOL, NoSuchSessionError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from reward_kit.integrations.serving.episodes import Episodes, Served

INVALID, NO_METHOD, FAILED = -32600, -32601, -32000
"""Codes of JSON-RPC."""


class ResetRequest(BaseModel):
    """The beginning of an episode: a row by its id, or one that the seed chooses."""

    seed: int | None = Field(default=None, ge=0, lt=2**63)
    episode_id: str | None = Field(default=None, max_length=255)
    row: str | None = None


class ToolAction(BaseModel):
    """A tool call, or the question which tools there are."""

    type: Literal["call_tool", "list_tools"] = "call_tool"
    tool_name: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)


class StepRequest(BaseModel):
    """An action."""

    action: ToolAction


class Observation(BaseModel):
    """After a reset the row, messages and tools; after a call its result."""

    row: str | None = None
    seed: int | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_name: str | None = None
    result: str | None = None
    status: str | None = None
    error: None = None
    done: bool = False
    reward: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class State(BaseModel):
    """An episode by its name, and the number of its actions."""

    episode_id: str | None = None
    step_count: int = 0
    row: str | None = None
    stopped: str | None = None


class RpcRequest(BaseModel):
    """A request of JSON-RPC."""

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Any] = Field(default_factory=dict)


def add_openenv(app: FastAPI, episodes: Episodes) -> None:
    """Add the routes."""
    env = _Environment(episodes)

    @app.post("/reset", tags=["OpenEnv"], openapi_extra=takes(ResetRequest))
    async def reset(request: Request, session: SessionHeader = DEFAULT) -> Response:
        """Begin an episode."""
        return json_answer(await env.reset(session, await body_of(request, ResetRequest)))

    @app.post("/step", tags=["OpenEnv"], openapi_extra=takes(StepRequest))
    async def step(request: Request, session: SessionHeader = DEFAULT) -> Response:
        """Call a tool."""
        return json_answer(await env.step(session, (await body_of(request, StepRequest)).action))

    @app.get("/state", tags=["OpenEnv"], response_model=State)
    async def state(session: SessionHeader = DEFAULT) -> Response:
        """The episode's name and progress."""
        return json_answer(await env.state(session))

    @app.get("/schema", tags=["OpenEnv"])
    async def schema() -> dict[str, Any]:
        """The JSON schemas of actions, observations and state."""
        parts: dict[str, type[BaseModel]] = {"action": ToolAction, "observation": Observation, "state": State}
        return {name: part.model_json_schema() for name, part in parts.items()}

    @app.get("/metadata", tags=["OpenEnv"])
    async def metadata() -> dict[str, str]:
        """The environment's name and description."""
        return {"name": app.title, "description": app.description, "version": app.version}

    @app.post("/mcp", tags=["OpenEnv"])
    async def mcp(request: Request) -> Response:
        """JSON-RPC: tools/list and tools/call, and openenv/session/create and close."""
        return json_answer(await env.rpc(parse_arguments(await arguments_of(request))))

    @app.websocket("/ws")
    async def websocket(socket: WebSocket, session_id: str | None = None) -> None:
        """Play in a session that ends with the connection, or in one of /mcp."""
        await socket.accept()
        name = uuid.uuid4().hex if session_id is None else session_id
        try:
            while (message := await socket.receive())["type"] != "websocket.disconnect":
                answer = await env.message(name, message.get("text") or "")
                if answer is None:
                    await socket.close()
                    return
                await socket.send_text(json.dumps(answer))
        except WebSocketDisconnect:  # while it was answered
            return
        finally:
            if session_id is None:
                episodes.drop(name)


class _Environment:
    def __init__(self, episodes: Episodes) -> None:
        self._episodes = episodes

    async def reset(self, name: str, asked: ResetRequest) -> dict[str, Any]:
        served = await self._episodes.reset(name, asked.row, asked.seed, asked.episode_id)
        episode = served.play.episode
        if SAY in episode.task.registry.tools:
            self._episodes.drop(name)
            raise UsageError(f"the row has a tool {SAY}, with which agents speak to the user here")
        about = {"row": episode.row.id, "seed": episode.seed, "messages": episode.messages}
        return await self._observed(served, {**about, "tools": self._tools(served)})

    async def step(self, name: str, action: ToolAction) -> dict[str, Any]:
        async with self._episodes.playing(name) as served:
            served.actions += 1
            if action.type == "list_tools":
                return await self._observed(served, {"tools": self._tools(served)})
            if action.tool_name == SAY:
                found = await served.say(action.arguments.get("text"))
            else:
                found = await served.call(action.tool_name, action.arguments)
            about = {"tool_name": action.tool_name, "result": found["result"], "error": None}
            return await self._observed(served, {**about, "status": found["status"]})

    async def state(self, name: str) -> dict[str, Any]:
        try:
            async with self._episodes.playing(name) as served:
                about = {"episode_id": served.name, "step_count": served.actions}
                return {**about, "row": served.play.episode.row.id, "stopped": served.stopped}
        except NoSuchSessionError:
            return State().model_dump()

    async def _observed(self, served: Served, observation: dict[str, Any]) -> dict[str, Any]:
        done, reward, metadata = served.stopped is not None, 0.0 if served.actions else None, {}
        if done:
            metadata = (await self._episodes.lesson(served)).model_dump()
            reward = metadata.pop("reward")
        observation["metadata"] = metadata
        return {"observation": observation, "reward": reward, "done": done, "metadata": metadata}

    def _tools(self, served: Served | None) -> list[dict[str, Any]]:
        first = self._episodes.bundle.tasks[0].registry
        listed = first.get_openai_tools() if served is None else served.play.episode.tools
        functions = [tool["function"] for tool in (*listed, SAY_TOOL)]
        return [
            {"name": one["name"], "description": one["description"], "input_schema": one["parameters"]}
            for one in functions
        ]

    async def message(self, name: str, text: str) -> dict[str, Any] | None:
        """Return the answer to a message of a WebSocket; None to the last one."""
        message = parse_arguments(text)
        if message is None:
            return _error("INVALID_JSON", "the message is not a JSON object")
        kind, data = message.get("type"), message.get("data", {})
        try:
            if kind == "close":
                return None
            if kind == "reset":
                found = await self.reset(name, ResetRequest.model_validate(data))
            elif kind == "step":
                found = await self.step(name, ToolAction.model_validate(data))
            elif kind == "state":
                found = await self.state(name)
            elif kind == "mcp":
                found = await self.rpc(data, name)
            else:
                return _error("UNKNOWN_TYPE", f"there is no message type {kind!r}")
        except ValidationError as error:
            return _error("VALIDATION_ERROR", faults(error))
        except TooManySessionsError as error:
            return _error("CAPACITY_REACHED", str(error))
        except RewardKitError as error:
            return _error("EXECUTION_ERROR", str(error))
        return {"type": "observation" if kind in ("reset", "step") else kind, "data": found}

    async def rpc(self, given: Any, name: str | None = None) -> dict[str, Any]:
        """Return the answer to a JSON-RPC request, which names its session unless ``name`` is it."""
        number = given.get("id") if isinstance(given, dict) else None
        try:
            request = RpcRequest.model_validate(given)
            result = await self._answer(request, name or str(request.params.get("session_id")))
        except ValidationError as error:
            return _rpc_fault(number, INVALID, faults(error))
        except RewardKitError as error:
            return _rpc_fault(number, FAILED, str(error))
        if result is None:
            return _rpc_fault(number, NO_METHOD, f"there is no method {request.method!r}")
        return {"jsonrpc": "2.0", "id": number, "result": result}

    async def _answer(self, request: RpcRequest, name: str) -> dict[str, Any] | None:
        if request.method == "openenv/session/create":
            return {"session_id": uuid.uuid4().hex}
        if request.method == "openenv/session/close":
            self._episodes.drop(name)
            return {"session_id": name, "closed": True}
        if request.method == "tools/list":
            with suppress(NoSuchSessionError):
                async with self._episodes.playing(name) as served:
                    return {"tools": self._tools(served)}
            return {"tools": self._tools(None)}
        if request.method == "tools/call":
            asked = {
                "tool_name": request.params.get("name"),
                "arguments": request.params.get("arguments", {}),
            }
            answer = await self.step(name, ToolAction.model_validate(asked))
            end = {"done": answer["done"], "reward": answer["reward"]}
            return {**answer["observation"], **end, "data": answer["observation"]["result"]}
        return None


def _error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code}}


def _rpc_fault(number: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}
