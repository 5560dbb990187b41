"""The routes of a resources server of NeMo Gym, and the rows for its agents.

A session is a cookie. The agent server owns the turns, so the agent speaks to a simulated user with the tool
``say_to_user``; its first call brings the user's opening line. A rollout to leave out has ``mask_sample``.
"""

from __future__ import annotations

import json
import math
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Cookie, HTTPException, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from reward_kit.agent.base.history import parse_arguments
from reward_kit.agent.base.text import text_of
from reward_kit.agent.bundles.task import rollout_seed
from reward_kit.agent.servers.requests import arguments_of, body_of, json_answer, takes
from reward_kit.errors import UsageError
from reward_kit.integrations.serving.episodes import SAY, SAY_TOOL, NoSuchSessionError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from fastapi import FastAPI

    from reward_kit.integrations.playing import Play
    from reward_kit.integrations.serving.episodes import Episodes

MAX_ROLLOUT = 64 * 1024 * 1024
"""Bytes of a body with whole rollouts, which may have the ids and log probabilities of all tokens."""
COOKIE = "reward_kit_session"
SessionCookie = Annotated[str, Cookie(alias=COOKIE)]
WAITING = f"A user is waiting. Talk to them with the tool {SAY}; your first call brings their request."


class Seeded(BaseModel):
    """A row of ``GET /nemo_gym/rows``, as the agent server sends it."""

    row: str
    index: int = Field(default=0, alias="_ng_rollout_index")


class Conversation(BaseModel, extra="allow"):
    """The response of an agent, in the form of OpenAI's Responses."""

    output: list[dict[str, Any]] = Field(default_factory=list)


class PlayedRow(BaseModel, extra="allow"):
    """A row and the response to it."""

    response: Conversation


class Verified(PlayedRow):
    """The fields of the request, and the reward: 0 with ``mask_sample`` for a rollout to leave out."""

    reward: float
    mask_sample: bool = False
    failure_kind: str | None = None
    failure_reason: str | None = None


class Rollouts(BaseModel):
    """Answers of ``/verify``, as far as their rewards go."""

    verify_responses: list[dict[str, Any]]


ANY_TOOL = "/{tool}"
"""The path that agents call tools at, also those that there are not."""


def add_nemo_gym(app: FastAPI, episodes: Episodes, tools: Collection[str]) -> None:
    """Add the routes; outside of a session there are paths of ``tools`` alone."""
    taken = {getattr(route, "path", "").strip("/") for route in app.routes}
    taken |= {"seed_session", "verify", "aggregate_metrics", SAY}

    @app.get("/nemo_gym/rows", tags=["NeMo Gym"], response_class=Response)
    async def rows() -> Response:
        """The rows as JSON lines, for the agents of NeMo Gym."""
        lines = []
        for task in episodes.bundle.tasks:
            with closing(await episodes.opened(task)) as play:
                lines.append(json.dumps(_row(play)))
        return Response("".join(f"{line}\n" for line in lines), media_type="application/jsonl")

    @app.post("/seed_session", tags=["NeMo Gym"], openapi_extra=takes(Seeded))
    async def seed_session(request: Request) -> Response:
        """Begin an episode; its session is a cookie."""
        asked, name = await body_of(request, Seeded), uuid.uuid4().hex
        served = await episodes.reset(name, asked.row, rollout_seed(0, asked.row, asked.index))
        if clash := taken & served.play.episode.task.registry.tools.keys():
            episodes.drop(name)
            raise UsageError(f"the tool {min(clash)!r} has the name of a route of this server")
        return _named(json_answer({}), name)

    @app.post("/verify", tags=["NeMo Gym"], response_model=Verified, openapi_extra=takes(PlayedRow))
    async def verify(request: Request, session: SessionCookie = "") -> Response:
        """End the episode, without a user after the last reply; returns the reward."""
        played = await body_of(request, PlayedRow, MAX_ROLLOUT)
        found: dict[str, Any] = {"reward": 0.0, "mask_sample": True, "failure_kind": "session_lost"}
        try:
            async with episodes.playing(session) as served:
                last = played.response.output[-1] if played.response.output else {}
                if last.get("type") == "message" and not (served.play.talks or served.stopped):
                    await served.play.say(text_of(last.get("content")))
                lesson = await episodes.lesson(served)
        except NoSuchSessionError as error:
            return json_answer({**played.model_dump(), **found, "failure_reason": error.fault})
        episodes.drop(session)
        masked = lesson.reward is None
        found = {"reward": lesson.reward or 0.0, "mask_sample": masked}
        found["failure_kind"] = f"reward_kit:{lesson.failure_kind}" if masked else None
        found["failure_reason"] = lesson.reason if masked else None
        return json_answer({**played.model_dump(), **found})

    @app.post("/aggregate_metrics", tags=["NeMo Gym"], openapi_extra=takes(Rollouts))
    async def aggregate_metrics(request: Request) -> dict[str, Any]:
        """The mean reward of the rollouts that count."""
        found = (await body_of(request, Rollouts, MAX_ROLLOUT)).verify_responses
        given = [one.get("reward", 0.0) for one in found if not one.get("mask_sample")]
        rewards = [one for one in given if isinstance(one, int | float) and math.isfinite(one)]
        mean = {"mean/reward": sum(rewards) / len(rewards)} if rewards else {}
        return {"agent_metrics": mean, "key_metrics": mean, "group_level_metrics": []}

    @app.post(ANY_TOOL, include_in_schema=False)
    async def call(tool: str, request: Request, session: SessionCookie = "") -> Response:
        """Call a tool; the answer is the text for the model."""
        if not session and tool not in tools:
            raise HTTPException(404)
        arguments = await arguments_of(request)
        async with episodes.playing(session) as served:
            if tool == SAY and served.play.talks:
                heard = await served.say((parse_arguments(arguments) or {}).get("text"), opens=True)
            else:
                heard = await served.call(tool, arguments)
        return _named(Response(heard["result"].encode("utf-8", "replace"), media_type="text/plain"), session)


def _named(response: Response, session: str) -> Response:
    """Name the session in an answer: agents send back the cookies of the last answer alone."""
    response.set_cookie(COOKIE, session, httponly=True)
    return response


def _row(play: Play) -> dict[str, Any]:
    episode = play.episode
    given = list(episode.messages)  # those that the agent sees
    if play.episode.user_opens:
        given.append({"role": "user", "content": WAITING})
    tools = [*episode.tools, *([SAY_TOOL] if play.talks else [])]
    flat = [{"type": "function", **tool["function"], "strict": False} for tool in tools]
    asked = {"input": [*_items(given)], "tools": flat, "parallel_tool_calls": episode.parallel_tool_calls}
    return {"responses_create_params": asked, "row": episode.row.id}


def _items(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The messages in the form of OpenAI's Responses."""
    for message in messages:
        if message["role"] == "tool":
            called = {"call_id": message["tool_call_id"], "output": text_of(message["content"])}
            yield {"type": "function_call_output", **called}
            continue
        if text := text_of(message.get("content")):
            yield {"role": message["role"], "content": text}
        for call in message.get("tool_calls") or ():
            yield {"type": "function_call", "call_id": call["id"], **call["function"]}
