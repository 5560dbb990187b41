"""Serve one reward function over HTTP: ``POST /reward`` with messages, ``GET /health``.

uvicorn.run(create_app(evaluate))           # or: serve("my_rewards:evaluate", port=8000)
"""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, HTTPException
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel

from reward_kit.reward_function import as_result, awaited, call_arguments, imported_function

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["RewardServer", "create_app", "serve"]

logger = logging.getLogger(__name__)


class RequestMessage(BaseModel, extra="allow"):
    """A message of a request; the reward function receives it as the same dict."""

    role: str
    content: Any = ""


class RewardRequest(BaseModel, extra="allow"):
    """Request body; further fields become keyword arguments of the reward function."""

    messages: list[RequestMessage]
    ground_truth: str | list[RequestMessage] | None = None


def create_app(reward_func: Callable[..., Any]) -> FastAPI:
    """Make an app that serves ``reward_func``.

    Without ``ground_truth``, all messages but the last are the ground truth. If the reward raises or
    returns something other than a result, the answer is 500 with the error's text as ``detail``.
    """
    app = FastAPI(title="Reward function")

    @app.get("/")
    async def root() -> dict[str, Any]:
        return {"status": "ok", "endpoints": ["/reward"]}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/reward")
    async def reward(request: RewardRequest) -> dict[str, Any]:
        try:
            body = request.model_dump(exclude_unset=True)
            messages, ground_truth = body.pop("messages"), body.pop("ground_truth", None)
            arguments = call_arguments(reward_func, messages, ground_truth, body)
            return as_result(await answer_of(reward_func, arguments)).model_dump(mode="json")
        except Exception as error:  # border to the reward's code: its error is the answer
            logger.exception("The reward function failed")
            raise HTTPException(status_code=500, detail=str(error)) from error

    return app


async def answer_of(reward_func: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call the function; if it is ``async``, it runs where the server's other tasks do."""
    if inspect.iscoroutinefunction(reward_func):
        return await reward_func(**arguments)
    return await run_in_threadpool(lambda: awaited(reward_func(**arguments)))


class RewardServer:
    """A reward function, loaded by path, and the app that serves it."""

    def __init__(self, func_path: str, host: str = "127.0.0.1", port: int = 8000) -> None:
        self.func_path = func_path
        self.host = host
        self.port = port
        self.reward_func = imported_function(func_path)
        self.app = create_app(self.reward_func)

    def run(self) -> None:
        """Serve until interrupted."""
        import uvicorn

        uvicorn.run(self.app, host=self.host, port=self.port)


def serve(func_path: str, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve the reward function that ``package.module:function`` names, until interrupted."""
    RewardServer(func_path, host=host, port=port).run()
