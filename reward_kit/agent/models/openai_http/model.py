"""A model behind an OpenAI-compatible endpoint, asked over aiohttp."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.redaction import secrets_in
from reward_kit.agent.models.addresses import base_from_environment
from reward_kit.agent.models.calls import BoundModel, ask
from reward_kit.agent.models.errors import model_error
from reward_kit.agent.models.litellm_answer import without_secrets
from reward_kit.agent.models.openai_http.answer import read_answer
from reward_kit.agent.models.openai_http.endpoint import PROVIDER, Endpoint, body_arguments
from reward_kit.agent.models.openai_http.faults import HTTPStatusError, RedirectError, UnreachableError
from reward_kit.agent.models.openai_http.prices import load_prices
from reward_kit.agent.models.openai_http.request import RequestWriter

if TYPE_CHECKING:
    import aiohttp

    from reward_kit.agent.base.types import Completion, Message, Model
    from reward_kit.agent.models.calls import Caller
    from reward_kit.agent.models.limiter import Limiters
    from reward_kit.errors import ModelError

KEEP_ALIVE = 30.0
"""Seconds that an unused connection stays open."""
LONGEST_ANSWER = 2**25
"""Bytes of an answer, unpacked: far more than any model writes, far less than a machine has."""
READ_BUFFER = 2**18
"""Bytes; an answer fits in it, so that reading it does not stop and start the connection."""


class OpenAIModel:
    """The model at an ``Endpoint``; it takes what ``LiteLLMModel`` takes and means the same.

    ``timeout`` is in seconds for one attempt; a fault that may pass is raised after ``retries`` further
    attempts, between which it waits a random part of ``backoff`` * 2^n seconds, on top of what the provider
    asks for. With ``limiters``, calls go through the limiter of the endpoint.
    """

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        *,
        temperature: float | None = None,
        model_args: dict[str, Any] | None = None,
        timeout: float = 600.0,
        retries: int = 3,
        backoff: float = 1.0,
        limiters: Limiters | None = None,
    ) -> None:
        self.name = name
        self.timeout = timeout
        self.retries = retries
        self.backoff = backoff
        self._endpoint = endpoint
        self._limiter = limiters.of(PROVIDER, endpoint.base) if limiters is not None else None
        self._temperature = temperature
        self._model_args = dict(model_args or {})
        self._secrets = secrets_in({**self._model_args, "headers": endpoint.headers})
        arguments = {"temperature": temperature, **self._model_args}
        self._writer = RequestWriter(endpoint.model, body_arguments(arguments))
        self._session: aiohttp.ClientSession | None = None

    async def complete(
        self,
        messages: list[Message],
        *,
        tools: list[dict[str, Any]] | None = None,
        seed: int | None = None,
        parallel_tool_calls: bool = True,
        caller: Caller | None = None,
    ) -> Completion:
        """Ask the model; raises ``ModelError`` or one of its subclasses where it does not answer."""
        body = self._writer.write(messages, tools=tools, seed=seed, parallel_tool_calls=parallel_tool_calls)
        return await ask(
            lambda: self._attempt(body),
            retries=self.retries,
            backoff=self.backoff,
            limiter=self._limiter,
            size=len(body),
            caller=caller,
        )

    def for_rollout(self, caller: Caller) -> Model:
        """The model as one rollout asks it."""
        return BoundModel(self, caller)

    def identity(self) -> dict[str, Any]:
        """What decides its answers besides the conversation; the same as of ``LiteLLMModel``."""
        return {
            "model": self._endpoint.model,
            "provider": PROVIDER,
            "api_base": base_from_environment(PROVIDER),
            "api_version": os.environ.get("OPENAI_API_VERSION"),
            "temperature": self._temperature,
            "model_args": self._model_args,
        }

    async def open(self) -> None:
        """Read the price table before the first answer waits for it."""
        load_prices()

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _attempt(self, body: bytes) -> Completion | ModelError:
        try:
            completion = await read_answer(await self._post(body), self._endpoint.model)
            return without_secrets(completion, self._secrets)
        except Exception as error:  # noqa: BLE001 - a malformed answer makes its reader raise anything
            fault = model_error(
                error,
                model=self._endpoint.model,
                provider=PROVIDER,
                address=self._endpoint.base,
                timeout=self.timeout,
                secrets=self._secrets,
            )
            fault.__cause__ = error
            return fault

    async def _post(self, body: bytes) -> bytes:
        import aiohttp

        try:
            async with self._open_session().post(
                self._endpoint.url, data=body, allow_redirects=False
            ) as response:
                answer = await _body(response)
        except aiohttp.ClientError as error:
            raise UnreachableError from error
        if self._limiter is not None:
            self._limiter.read_headers(response.headers)
        if 300 <= response.status < 400 and "Location" in response.headers:
            raise RedirectError(response.status, self._endpoint.url, response.headers["Location"])
        if response.status >= 300:
            raise HTTPStatusError(response.status, response.headers, answer)
        return answer

    def _open_session(self) -> aiohttp.ClientSession:
        """One session with as many connections as there are calls: how many, is decided elsewhere."""
        if self._session is None:
            import aiohttp

            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE, ssl=_trusted()),
                headers=self._endpoint.headers,
                timeout=aiohttp.ClientTimeout(total=None if math.isinf(self.timeout) else self.timeout),
                read_bufsize=READ_BUFFER,
                trust_env=True,
                auto_decompress=True,
            )
        return self._session


async def _body(response: aiohttp.ClientResponse) -> bytes:
    parts = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > LONGEST_ANSWER:
            response.close()
            raise ValueError(f"it is longer than {LONGEST_ANSWER // 2**20} MB")
    return b"".join(parts)


def _trusted() -> Any:
    """Whom to trust, as LiteLLM's clients do: ``SSL_CERT_FILE``, else the certificates of certifi."""
    import ssl

    import certifi

    return ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE") or certifi.where())
