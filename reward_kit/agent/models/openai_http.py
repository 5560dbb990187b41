"""Models behind OpenAI-compatible endpoints, asked over aiohttp.

This costs less CPU per call than LiteLLM. Requests, completions and errors equal those of ``litellm``; tests
compare the two exchange by exchange. LiteLLM reads the answers that have an unusual shape.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urljoin

from annotated_types import Len
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from pydantic_core import to_json

from reward_kit.agent.base.redaction import keep_secrets, label, secrets_in
from reward_kit.agent.base.types import Completion, Message, Usage
from reward_kit.agent.base.worker_thread import in_thread
from reward_kit.agent.models.calls import RemoteModel, Request
from reward_kit.agent.models.endpoint import PROVIDER, Endpoint, body_arguments
from reward_kit.agent.models.litellm_library import (
    OWN_FIELD,
    NotPlain,
    import_litellm,
    load_prices,
    openai_price,
    read_json,
)

if TYPE_CHECKING:
    import aiohttp

    from reward_kit.agent.models.limiter import Limiter

KEEP_ALIVE = 30.0
"""Seconds that an unused connection stays open."""
LONGEST_ANSWER = 2**25
"""Bytes of an answer, unpacked: far more than any model writes, far less than a machine has."""
READ_BUFFER = 2**18
"""Bytes; an answer fits in it, so that reading it does not stop and start the connection."""


@dataclass(eq=False, repr=False)
class OpenAIModel(RemoteModel):
    """The model at an ``Endpoint``; its options are those of ``LiteLLMModel`` and mean the same."""

    endpoint: Endpoint

    def __post_init__(self) -> None:
        self._secrets = keep_secrets(secrets_in({**self.model_args, "headers": self.endpoint.headers}))
        arguments = body_arguments({"temperature": self.temperature, **self.model_args})
        self._fixed = {"model": self.endpoint.model, **arguments}
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Have the price table read a moment later, while the first answer is awaited."""
        asyncio.get_running_loop().call_later(0.1, load_prices)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _resolved(self) -> tuple[str, str]:
        return self.endpoint.model, PROVIDER

    def _request(self, messages: list[Message], options: dict[str, Any]) -> Request:
        body = to_json({**self._fixed, "messages": [_sent(message) for message in messages], **options})
        return Request(self.endpoint.model, PROVIDER, self.endpoint.base, len(body), body)

    async def _send(self, request: Request, limiter: Limiter | None) -> Completion:
        import aiohttp

        url = f"{self.endpoint.base}/chat/completions"
        try:
            async with self._open_session().post(url, data=request.body, allow_redirects=False) as response:
                answer = await _content(response)
        except aiohttp.ClientError as error:
            raise UnreachableError("Connection error.") from error
        if 300 <= response.status < 400 and "Location" in response.headers:
            raise RedirectError(response.status, urljoin(url, response.headers["Location"]))
        if response.status >= 300:
            stated: Any = {}
            with suppress(ValueError, LookupError, TypeError):
                found = json.loads(answer)
                stated = (found[0] if isinstance(found, list) else found)["error"]  # Google sends a list
            body = answer.decode(errors="replace")
            raise StatedError(stated, body, status=response.status, headers=response.headers)
        if limiter is not None:
            limiter.read_headers(response.headers)
        return await read_answer(answer, request.model, self._secrets)

    def _open_session(self) -> aiohttp.ClientSession:
        """One session for any number of connections: the limiter decides how many calls there are."""
        if self._session is None:
            import ssl

            import aiohttp
            import certifi

            trusted: ssl.SSLContext | bool = True
            if self.endpoint.base.lower().startswith("https:"):
                certificates = os.environ.get("SSL_CERT_FILE") or certifi.where()  # as LiteLLM's clients
                trusted = ssl.create_default_context(cafile=certificates)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE, ssl=trusted),
                headers=self.endpoint.headers,
                timeout=aiohttp.ClientTimeout(total=None if math.isinf(self.timeout) else self.timeout),
                read_bufsize=READ_BUFFER,
                trust_env=True,
            )
        return self._session


def _sent(message: Message) -> Message:
    """A message without fields that are None, as LiteLLM sends it, and without LiteLLM's own field."""
    if None not in message.values() and OWN_FIELD not in message:
        return message
    return {name: value for name, value in message.items() if value is not None and name != OWN_FIELD}


async def _content(response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > LONGEST_ANSWER:
            response.close()
            raise ValueError(f"it is longer than {LONGEST_ANSWER // 2**20} MB")
    return bytes(content)


# -- errors, in the form that ``models.errors`` reads


class UnreachableError(Exception):
    """No connection, or one that broke off before the answer was whole."""


class RedirectError(Exception):
    """An answer that sends the conversation and the key elsewhere, which is not followed."""

    def __init__(self, status: int, target: str) -> None:
        super().__init__(f"HTTP {status}: it redirects to {target.partition('?')[0]}, which is not followed")


class StatedError(Exception):
    """An answer that states an ``error``, with the text of its ``body``.

    Aggregators of providers send them with a status of success; then ``status_code`` is the number that the
    error names, if it does.
    """

    def __init__(self, error: Any, body: str = "", *, status: int | None = None, headers: Any = None) -> None:
        stated = error if isinstance(error, dict) else {"message": error}
        self.body = body
        self.code = stated.get("code")
        self.status_code: int | None = self.code if status is None and type(self.code) is int else status
        self.litellm_response_headers = headers
        super().__init__(str(stated.get("message") or body or "it only says that there was an error"))


# -- answers


class _Plain(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class _Function(_Plain):
    name: str
    arguments: str


class _ToolCall(_Plain):
    id: str
    type: Literal["function"]
    function: _Function
    index: Any = None


class _Message(_Plain):
    role: Literal["assistant"]
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None
    reasoning_content: str | None = None
    refusal: Literal[""] | None = None
    annotations: Annotated[list[Any], Len(0, 0)] | None = None
    function_call: None = None
    audio: None = None


class _Choice(_Plain):
    index: Any = None
    message: _Message
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]
    logprobs: Any = None


class _Usage(_Plain):
    prompt_tokens: NonNegativeInt
    completion_tokens: NonNegativeInt
    total_tokens: Any = None
    prompt_tokens_details: dict[str, NonNegativeInt | None] | None = None
    completion_tokens_details: dict[str, NonNegativeInt | None] | None = None


class _Answer(_Plain):
    """An answer in the shape that nearly all have."""

    model_config = ConfigDict(extra="ignore")

    choices: Annotated[list[_Choice], Len(1, 1)]
    model: str
    usage: _Usage
    error: None = None


async def read_answer(body: bytes, model: str, secrets: frozenset[str]) -> Completion:
    """The completion in an answer's body; a malformed one raises whatever reading it raises.

    Raises ``StatedError`` for one that holds an error.
    """
    try:
        return _plain_completion(_Answer.model_validate_json(body), model, secrets)
    except (ValidationError, NotPlain):
        pass  # LiteLLM reads it, so that it means the same
    answer = json.loads(body)
    choices = answer.get("choices") if isinstance(answer, dict) else None
    for holder in (answer, *(choices[:1] if isinstance(choices, list) else ())):
        error = holder.get("error") if isinstance(holder, dict) else None
        if error and (not isinstance(error, dict) or error.get("message") or error.get("code")):
            raise StatedError(error)
    if choices == []:
        raise ValueError("it has no choices")
    await in_thread(import_litellm)  # the first time this takes seconds, which others need not wait
    return read_json(answer, model, PROVIDER, secrets)


def _plain_completion(answer: _Answer, model: str, secrets: frozenset[str]) -> Completion:
    """The completion of a plain answer; raises ``NotPlain`` if LiteLLM has to work out its price or text."""
    (choice,) = answer.choices
    said, used = choice.message, answer.usage
    if said.content is not None and said.content.startswith("<"):
        raise NotPlain  # thoughts, perhaps
    usage = Usage(
        calls=1,
        input_tokens=used.prompt_tokens,
        cached_tokens=_only_count(used.prompt_tokens_details, "cached_tokens"),
        output_tokens=used.completion_tokens,
        reasoning_tokens=_only_count(used.completion_tokens_details, "reasoning_tokens"),
    )
    if usage.cached_tokens > usage.input_tokens:
        raise NotPlain
    cost = openai_price(usage, (answer.model, model))
    usage.cost, usage.unpriced_calls = cost or 0.0, int(cost is None)
    message: Message = {"role": "assistant", "content": said.content}
    if said.tool_calls:
        message["tool_calls"] = [call.model_dump(exclude={"index"}) for call in said.tool_calls]
    if said.reasoning_content:
        message["reasoning_content"] = said.reasoning_content
    stops_to_call = choice.finish_reason == "stop" and said.tool_calls
    return Completion(
        message=message,
        usage=usage,
        finish_reason="tool_calls" if stops_to_call else choice.finish_reason,
        model=label(answer.model or model, secrets),
    )


def _only_count(details: dict[str, int | None] | None, name: str) -> int:
    """The count of this name; raises ``NotPlain`` if others, such as sound, have prices of their own."""
    counts = dict(details or {})
    count = counts.pop(name, None) or 0
    if any(counts.values()):
        raise NotPlain
    return count
