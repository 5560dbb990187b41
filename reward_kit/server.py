"""One reward function behind HTTP: ``POST /reward`` with messages, ``GET /health``.

uvicorn.run(create_app(evaluate))           # or: serve("my_rewards:evaluate", port=8000)
"""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, HTTPException
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict

from reward_kit.local_call import as_result, call_arguments, imported_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.models import EvaluateResult

__all__ = ["RewardServer", "create_app", "serve"]

logger = logging.getLogger(__name__)


class RequestMessage(BaseModel):
    """A message of a request; it reaches the reward function as the dict it came as."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: Any = ""


class RewardRequest(BaseModel):
    """What is posted; further fields become keyword arguments of the reward function."""

    model_config = ConfigDict(extra="allow")

    messages: list[RequestMessage]
    ground_truth: str | list[RequestMessage] | None = None


def create_app(reward_func: Callable[..., Any]) -> FastAPI:
    """The app that serves ``reward_func``.

    A request without ``ground_truth`` has all messages but the last for it. A reward that raises, or
    returns what is no result, answers 500 with the error's text as ``detail``.
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
            return (await _result_for(reward_func, request)).model_dump()
        except Exception as error:  # the reward is foreign code: its error is the answer
            logger.exception("The reward function failed")
            raise HTTPException(status_code=500, detail=str(error)) from error

    return app


async def _result_for(reward_func: Callable[..., Any], request: RewardRequest) -> EvaluateResult:
    body = request.model_dump(exclude_unset=True)
    messages, ground_truth = body.pop("messages"), body.pop("ground_truth", None)
    arguments = call_arguments(reward_func, messages, ground_truth, body)
    if inspect.iscoroutinefunction(reward_func):
        return as_result(await reward_func(**arguments))
    return as_result(await run_in_threadpool(reward_func, **arguments))


class RewardServer:
    """A reward function, found by its path, and the app that serves it."""

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
