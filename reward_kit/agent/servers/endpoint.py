"""A server on this machine through which remote agents call the tools of the rollouts they play."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from reward_kit.agent.base.deadline import end_tasks
from reward_kit.agent.base.history import parse_arguments
from reward_kit.agent.base.network import LOOPBACK, listen
from reward_kit.agent.base.versions import install_line
from reward_kit.agent.rollout.calls import answered
from reward_kit.agent.rollout.rollout import episode_of
from reward_kit.agent.servers import requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.datastructures import Headers
    from starlette.requests import Request
    from starlette.responses import Response

    from reward_kit.agent.rollout.rollout import Rollout
    from reward_kit.agent.servers.mcp_server import RolloutMcp

MAX_BODY = 10 * 1024 * 1024
"""Bytes of a request's body."""
STOPPING = 2
"""Seconds that open requests have when the server stops."""
KEEP_ALIVE = 600
"""Seconds that an idle connection is kept: closing early would race with a client that reuses it."""

_UNKNOWN = "no running rollout has this token; send 'Authorization: Bearer <token>'"
_PATHS = "there are GET /tools, POST /tools/{name}, GET /rollout and /mcp"


class Admission:
    """The access of one remote agent to ``rollout``, by ``token``, until ``revoke``.

    ``stopped`` is set when an answer has said that the rollout is over.
    """

    def __init__(self, rollout: Rollout, admissions: dict[bytes, Admission]) -> None:
        self.rollout = rollout
        self.token = secrets.token_urlsafe(32)
        self.stopped = asyncio.Event()
        self._running: set[asyncio.Task[dict[str, Any]]] = set()
        self._admissions = admissions
        # The time to look up a digest does not depend on the token.
        admissions[_digest(self.token)] = self

    def revoke(self) -> None:
        """Refuse further requests."""
        self._admissions.pop(_digest(self.token), None)

    async def call(self, name: str, arguments: dict[str, Any] | str) -> dict[str, Any]:
        """Make a call as ``answered``, also if its client hangs up meanwhile."""
        task = asyncio.ensure_future(self._call(name, arguments))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def cancel(self) -> None:
        """End the calls that are still running."""
        await end_tasks(self._running)

    async def _call(self, name: str, arguments: dict[str, Any] | str) -> dict[str, Any]:
        answer = await answered(episode_of(self.rollout), name, arguments)
        if answer["stopped"] is not None:
            self.stopped.set()
        return answer


class ToolEndpoint:
    """One HTTP server for all admitted rollouts, in the event loop of the evaluation.

    ::

        endpoint = ToolEndpoint()
        await endpoint.open()
        admission = endpoint.admit(rollout)
        ...  # requests to endpoint.url with "Authorization: Bearer <admission.token>" act on this rollout
        admission.revoke()
        await endpoint.close()

    ``GET /tools`` lists the tools, ``POST /tools/{name}`` calls one, ``GET /rollout`` shows the conversation,
    ``/mcp`` is the same for MCP clients. docs/http-agent.md is the reference.
    """

    def __init__(self) -> None:
        self.url = ""
        """``http://127.0.0.1:PORT`` while it is open, and the ``addresses`` as remote agents get them."""
        self.addresses: dict[str, str | None] = {}
        self._admissions: dict[bytes, Admission] = {}
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen on a free port of this machine; calls then run on the current event loop."""
        mcp = _rollout_mcp(self._admission)
        listener = listen(LOOPBACK, 0)
        self.url = f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        paths = {"tools_url": "/tools", "rollout_url": "/rollout", "mcp_url": "/mcp" if mcp else None}
        self.addresses = {name: path and self.url + path for name, path in paths.items()}
        off: dict[str, Any] = dict.fromkeys(("access_log", "proxy_headers", "server_header"), False)
        times: dict[str, Any] = {"timeout_keep_alive": KEEP_ALIVE, "timeout_graceful_shutdown": STOPPING}
        config = uvicorn.Config(self._application(mcp), log_config=None, ws="none", **off, **times)
        self._server = _Server(config)
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[listener]))

    def admit(self, rollout: Rollout) -> Admission:
        """Let the holder of the token in the result act on ``rollout``."""
        return Admission(rollout, self._admissions)

    async def close(self) -> None:
        """End the running calls and the server; may be called again."""
        if self._server is None or self._serving is None:
            return
        for admission in list(self._admissions.values()):
            await admission.cancel()
        self._server.should_exit = True
        await self._serving

    def _application(self, mcp: RolloutMcp | None) -> Starlette:
        app = Starlette(
            routes=[
                Route("/tools", self._list_tools),
                Route("/tools/{name}", self._call_tool, methods=["POST"]),
                Route("/rollout", self._show_rollout),
                Route("/mcp", mcp or self._explain_mcp, methods=None if mcp else ["GET", "POST"]),
            ],
            exception_handlers={HTTPException: _refused, ClientDisconnect: requests.client_gone},
            lifespan=mcp.lifespan if mcp else None,
        )
        app.router.redirect_slashes = False
        return app

    def _admission(self, headers: Headers) -> Admission:
        """Return the admission by the request's token; raises ``HTTPException`` without one."""
        if (foreign := requests.foreign_origin(headers)) is not None:
            raise HTTPException(403, foreign)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        admission = self._admissions.get(_digest(token.strip())) if scheme.lower() == "bearer" else None
        if admission is None:
            raise HTTPException(401, _UNKNOWN, requests.ASK_FOR_TOKEN)
        return admission

    async def _list_tools(self, request: Request) -> Response:
        return requests.json_answer(self._admission(request.headers).rollout.tools)

    async def _call_tool(self, request: Request) -> Response:
        admission = self._admission(request.headers)
        text = await requests.arguments_of(request, MAX_BODY)
        if parse_arguments(text) is None:
            raise HTTPException(400, "the body is not a JSON object with the tool's arguments")
        return requests.json_answer(await admission.call(request.path_params["name"], text))

    async def _show_rollout(self, request: Request) -> Response:
        rollout = self._admission(request.headers).rollout
        fields = ("id", "row_id", "index", "seed", "steps", "max_steps", "messages")
        shown = {name: getattr(rollout, name) for name in fields}
        return requests.json_answer({**shown, "turn": rollout.turns, "stopped": rollout.stop_reason})

    async def _explain_mcp(self, request: Request) -> Response:
        self._admission(request.headers)
        raise HTTPException(501, f"MCP needs the package mcp beside reward-kit: {install_line('mcp')}")


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave Ctrl-C to the evaluation."""
        yield


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for it alone"
    detail = _PATHS if error.status_code == 404 else error.detail
    return requests.fault(error.status_code, detail, error.headers)


def _rollout_mcp(admission: Callable[[Headers], Admission]) -> RolloutMcp | None:
    """Return the MCP side of the endpoint; None if the package ``mcp`` is not installed."""
    try:
        from reward_kit.agent.servers.mcp_server import RolloutMcp
    except ImportError:
        return None
    return RolloutMcp(admission, MAX_BODY)
