"""Bodies of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from reward_kit.agent.servers.http import MAX_BODY
from reward_kit.agent.servers.requests import json_text

if TYPE_CHECKING:
    from starlette.requests import Request

M = TypeVar("M", bound=BaseModel)


async def body_of(request: Request, model: type[M], most: int = MAX_BODY) -> M:
    """Return the body of a request, of at most ``most`` bytes; raises ``HTTPException``."""
    try:
        return model.model_validate_json(await json_text(request, most) or b"{}")
    except ValidationError as error:
        raise HTTPException(422, faults(error)) from None


def faults(error: ValidationError) -> str:
    """Return what is wrong with a body in one line."""
    found = [(".".join(map(str, one["loc"])), one["msg"]) for one in error.errors()]
    return "; ".join(f"{place}: {text}" if place else text for place, text in found)


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a body that ``body_of`` reads."""
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


async def arguments_of(request: Request) -> str:
    """Return the arguments of a call as the model wrote them; raises ``HTTPException``."""
    try:
        return (await json_text(request, MAX_BODY)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise HTTPException(400, f"the body is not UTF-8: byte {error.start}") from None
