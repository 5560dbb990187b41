"""A served local model, for agents and users: like any other model, at no cost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from reward_kit.agent.models.litellm import remote_model
from reward_kit.agent.models.local.backends import ARGUMENTS, TOOL_CALLS_IN_TEMPLATE, read_json
from reward_kit.agent.models.local.server import logger
from reward_kit.agent.models.openai_http import OpenAIModel
from reward_kit.errors import ModelError, ModelSetupError

if TYPE_CHECKING:
    from reward_kit.agent.base.types import Completion, Message
    from reward_kit.agent.models.calls import RemoteModel
    from reward_kit.agent.models.local.server import ModelServer

CHECK_SECONDS = 0.5
"""Seconds between checks of the server during a call."""


class LocalModel:
    """Calls the model of a ``ModelServer``, between ``open`` and ``close``.

    ``name`` in results is the last part of the path. Calls cost 0 and count as priced. ``client`` is that of
    ``remote_model``, the other arguments (``limits``: ``retries`` and ``timeout``) are those of
    ``LiteLLMModel``.
    """

    def __init__(
        self,
        server: ModelServer,
        *,
        client: str = "direct",
        temperature: float | None = None,
        model_args: dict[str, Any] | None = None,
        **limits: Any,
    ) -> None:
        self.name = server.file.name
        self._server = server
        self._client = client
        self._temperature = temperature
        self._model_args = dict(model_args or {})
        self._limits = limits
        self._asked: RemoteModel | None = None
        self._warned = False

    def identity(self) -> dict[str, Any]:
        """Return everything that determines its answers besides the conversation."""
        asked = {"temperature": self._temperature, "model_args": self._model_args}
        return {**self._server.identity(), **asked}

    async def open(self) -> None:
        """Start the server unless it runs, and request one token.

        Raises ``ModelSetupError`` with the server's last lines if it does not start or answer.
        """
        if self._asked is not None:
            return
        started = await self._server.open()
        self._asked = self._reached(self._model_args, temperature=self._temperature, **self._limits)
        if started:
            await self._try()
        file, backend = self._server.file, self._server.backend.name
        settings = read_json(file.path / "generation_config.json")
        if self._temperature and backend == "transformers" and not settings.get("do_sample"):
            logger.warning(
                "warning: %s ignores the temperature: its generation_config.json does not set "
                '"do_sample": true, which transformers requires',
                self.name,
            )

    async def close(self) -> None:
        """Release the server, which ends with its last user."""
        asked, self._asked = self._asked, None
        if asked is None:
            return
        last = await self._server.close()
        # LiteLLM closes the connections of all clients, which others may still need
        if last or isinstance(asked, OpenAIModel):
            await asked.close()

    async def complete(
        self,
        messages: list[Message],
        *,
        tools: list[dict[str, Any]] | None = None,
        **options: Any,
    ) -> Completion:
        """Answer ``messages``.

        Raises ``ModelError``, at once and with the server's last lines if the server exits.
        """
        if self._asked is None:
            raise ModelSetupError("its server is not started: call open() first", place=self._server.place)
        call = asyncio.ensure_future(self._asked.complete(messages, tools=tools, **options))
        try:
            while not (await asyncio.wait({call}, timeout=CHECK_SECONDS))[0]:
                fault = self._server.fault()
                if fault is not None:
                    raise fault
            completion = call.result()
        except ModelError as error:
            fault = await self._server.fault_behind(error)
            if fault is not None:
                raise fault from error
            self._explain(error)
            raise
        finally:
            call.cancel()
        if tools and not completion.message.get("tool_calls") and not self._warned:
            text = str(completion.message.get("content"))
            if sign := next((sign for sign, _ in TOOL_CALLS_IN_TEMPLATE if sign in text), None):
                self._warned = True
                logger.warning(
                    f"warning: an answer of {self.name} contains {sign} as text, so "
                    f"{self._server.backend.name} may not recognise its tool calls "
                    "(docs/local-models.md, Tool calls)"
                )
        completion.model = self.name
        completion.usage.cost, completion.usage.unpriced_calls = 0.0, 0
        return completion

    async def _try(self) -> None:
        """Request one token, to find a missing template or lack of memory before the rollouts."""
        others = {name: value for name, value in self._model_args.items() if name != "max_completion_tokens"}
        asked = self._reached({**others, "max_tokens": 1}, retries=0, timeout=self._server.timeout)
        try:
            await asked.complete([{"role": "user", "content": "Hello"}])
        except ModelError as error:
            fault = await self._server.fault_behind(error)
            words = "" if fault else f": {self._server.last_words()}"
            raise ModelSetupError(
                f"its server cannot answer: {(fault or error).fault}{words}", place=self._server.place
            ) from error
        finally:
            if isinstance(asked, OpenAIModel):
                await asked.close()

    def _reached(self, model_args: dict[str, Any], **settings: Any) -> RemoteModel:
        """Make a client for the served model."""
        arguments = {**model_args, "api_base": self._server.url, "api_key": "none"}
        name = self._server.served_name
        return remote_model(name, "openai", client=self._client, model_args=arguments, **settings)

    def _explain(self, error: ModelError) -> None:
        """Add the model's name, the fix or the server's last lines to an error."""
        error.place = self._server.place
        if "--tool-call-parser" in error.fault:
            raise ModelSetupError(
                "vLLM needs a tool-call parser for this model",
                place=error.place,
                remedy=f'Name one: {ARGUMENTS}="--enable-auto-tool-choice --tool-call-parser NAME", '
                "or use an agent that writes actions as text: --agent react.",
            ) from error
        if error.status is not None and error.status >= 500:
            error.remedy = f"The server's last lines: {self._server.last_words()}"
