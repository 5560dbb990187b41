"""Serve a reward function by import path: ``POST /evaluate``, ``GET /health``.

    python -m reward_kit.generic_server my_package.rewards.evaluate --port 8080

If ``RK_ENDPOINT_API_KEY`` is set, ``/evaluate`` requires it, as ``X-Api-Key`` or as a bearer token.
"""

from __future__ import annotations

import argparse
import hmac
import importlib
import logging
import os
import sys
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel, Field

from reward_kit.models import EvaluateResult, RewardOutput

from .server import answer_of

logger = logging.getLogger(__name__)

_LOADED_REWARD_FUNCTION: Any = None
_REWARD_FUNCTION_NAME = "N/A"


class EvaluationRequest(BaseModel):  # type: ignore[no-redef]  # a field called kwargs, as the published format has
    """Request body; ``kwargs`` are further keyword arguments of the reward function."""

    messages: list[dict[str, Any]]
    ground_truth: Any = None
    kwargs: dict[str, Any] | None = Field(default_factory=dict)


def load_reward_function(import_string: str) -> None:
    """Load ``package.module.function`` to serve it; if this raises, nothing is served."""
    global _LOADED_REWARD_FUNCTION, _REWARD_FUNCTION_NAME
    _LOADED_REWARD_FUNCTION, _REWARD_FUNCTION_NAME = None, "Error loading"
    module_name, name = import_string.rsplit(".", 1)
    _LOADED_REWARD_FUNCTION = getattr(importlib.import_module(module_name), name)
    _REWARD_FUNCTION_NAME = import_string


async def verify_api_key(
    x_api_key: Annotated[str | None, Header()] = None, authorization: Annotated[str | None, Header()] = None
) -> None:
    """Answer 401 without a key and 403 with a wrong one, if a key is required."""
    expected = os.environ.get("RK_ENDPOINT_API_KEY")
    if not expected:
        return
    scheme, _, token = (authorization or "").partition(" ")
    given = x_api_key or (token if scheme.lower() == "bearer" else None)
    if not given:
        raise HTTPException(status_code=401, detail="Not authenticated")
    if not hmac.compare_digest(given.encode(), expected.encode()):
        raise HTTPException(status_code=403, detail="Invalid API key")


app = FastAPI(title="Reward function server")


@app.get("/health")
async def health_check() -> dict[str, str]:
    """Report the loaded reward function."""
    if _LOADED_REWARD_FUNCTION is None:
        return {"status": "error", "reason": "Reward function not loaded"}
    return {"status": "ok", "reward_function": _REWARD_FUNCTION_NAME}


@app.post("/evaluate", dependencies=[Depends(verify_api_key)])
async def evaluate_endpoint(request: EvaluationRequest) -> EvaluateResult:
    """Return the reward function's result, or 500 with the error's text if it raises."""
    function = _LOADED_REWARD_FUNCTION
    if function is None:
        raise HTTPException(status_code=500, detail="Reward function not loaded.")
    arguments = {"messages": request.messages, "ground_truth": request.ground_truth, **(request.kwargs or {})}
    try:
        result = await answer_of(function, arguments)
        result = result.to_evaluate_result() if isinstance(result, RewardOutput) else result
        if isinstance(result, EvaluateResult):
            return EvaluateResult.model_validate(result.model_dump(mode="json"))
    except Exception as error:  # border to the reward's code: its error is the answer
        logger.exception("The reward function failed")
        raise HTTPException(status_code=500, detail=f"Error evaluating reward: {error}") from error
    logger.error("The reward function returned %r, which is no EvaluateResult", type(result))
    return EvaluateResult(
        score=0.0,
        reason="Invalid return type from reward function, check server logs.",
        is_score_valid=False,
    )


def main(argv: list[str] | None = None) -> None:
    """Load the function named on the command line and serve it until interrupted."""
    import uvicorn

    parser = argparse.ArgumentParser(description="Serve a reward function over HTTP.")
    parser.add_argument("import_string", help="the reward function, as package.module.function")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args(argv)
    # This file runs as __main__; the app that is served is the one of the imported module.
    server = importlib.import_module("reward_kit.generic_server")
    try:
        server.load_reward_function(options.import_string)
    except (ImportError, AttributeError, ValueError) as error:
        sys.exit(f"Error: {options.import_string} cannot be loaded: {error}")
    uvicorn.run(server.app, host=options.host, port=options.port)


if __name__ == "__main__":
    main()
