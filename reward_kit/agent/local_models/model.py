"""A local model as agents and users see it: any other model, which costs nothing."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from reward_kit.agent.local_models.backends import ARGUMENTS, HOST, TOOL_CALLS_IN_TEMPLATE
from reward_kit.agent.local_models.server import logger
from reward_kit.agent.model_clients.remote import remote_model
from reward_kit.agent.openai_http.model import OpenAIModel
from reward_kit.errors import ModelError, ModelSetupError

if TYPE_CHECKING:
    from reward_kit.agent.completion import Completion, Message
    from reward_kit.agent.llm import LiteLLMModel
    from reward_kit.agent.local_models.server import ModelServer

LOOK_EVERY = 0.5
"""Seconds between two looks whether the server still runs, while it owes an answer."""


class LocalModel:
    """Asks a ``ModelServer``, as a model at a provider is asked. Use it between ``open`` and ``close``.

    ``name`` is what the results say: the last part of the path. Calls cost 0 and count as priced.
    ``client`` is that of ``remote_model``, the other arguments are those of ``LiteLLMModel``.
    """

    def __init__(
        self,
        server: ModelServer,
        *,
        client: str = "direct",
        temperature: float | None = None,
        model_args: dict[str, Any] | None = None,
        retries: int = 3,
        timeout: float = 600.0,
    ) -> None:
        self.name = server.file.name
        self._server = server
        self._client = client
        self._settings: dict[str, Any] = {"temperature": temperature, "retries": retries, "timeout": timeout}
        self._model_args = dict(model_args or {})
        self._asked: OpenAIModel | LiteLLMModel | None = None
        self._warned = False

    def identity(self) -> dict[str, Any]:
        """What decides its answers besides the conversation."""
        asked = {"temperature": self._settings["temperature"], "model_args": self._model_args}
        return {**self._server.identity(), **asked}

    async def open(self) -> None:
        """Start the server if nobody has, and have it answer once.

        Raises ``ModelSetupError`` with the server's last words where it does not start or cannot answer.
        """
        if self._asked is not None:
            return
        started = await self._server.open()
        _go_past_proxies()
        self._asked = self._reached(self._model_args, **self._settings)
        if started:
            await self._try()
        self._warn_of_greed()

    async def close(self) -> None:
        """Let go of the server, which ends with its last user."""
        asked, self._asked = self._asked, None
        if asked is None:
            return
        last = await self._server.close()
        # LiteLLM closes the connections of all, and others may need theirs to this server till now
        if last or isinstance(asked, OpenAIModel):
            await asked.close()

    async def complete(
        self,
        messages: list[Message],
        *,
        tools: list[dict[str, Any]] | None = None,
        seed: int | None = None,
        parallel_tool_calls: bool = True,
    ) -> Completion:
        """Answer ``messages``.

        Raises ``ModelError`` where that fails; at once, and with what the server said last, if it has ended.
        """
        if self._asked is None:
            raise ModelSetupError("its server is not started: open() comes first", place=self._server.place)
        call = asyncio.ensure_future(
            self._asked.complete(messages, tools=tools, seed=seed, parallel_tool_calls=parallel_tool_calls)
        )
        try:
            while not (await asyncio.wait({call}, timeout=LOOK_EVERY))[0]:
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
        if tools and not completion.message.get("tool_calls"):
            self._warn_of_text(str(completion.message.get("content")))
        completion.model = self.name
        completion.usage.cost, completion.usage.unpriced_calls = 0.0, 0
        return completion

    async def _try(self) -> None:
        """One token: a missing template or memory shows now, not in every rollout."""
        others = {name: value for name, value in self._model_args.items() if name != "max_completion_tokens"}
        asked = self._reached({**others, "max_tokens": 1}, retries=0, timeout=self._server.timeout)
        try:
            await asked.complete([{"role": "user", "content": "Hello"}])
        except ModelError as error:
            fault = await self._server.fault_behind(error)
            words = "" if fault else f": {self._server.log.end()}"
            raise ModelSetupError(
                f"its server cannot answer: {(fault or error).fault}{words}", place=self._server.place
            ) from error
        finally:
            if isinstance(asked, OpenAIModel):
                await asked.close()

    def _warn_of_greed(self) -> None:
        """Transformers heeds a temperature only where the model's own settings switch sampling on."""
        if self._settings["temperature"] and self._server.never_samples:
            logger.warning(
                "warning: %s always takes the likeliest token, whatever the temperature: its "
                'generation_config.json does not say "do_sample": true, and transformers goes by that',
                self.name,
            )

    def _warn_of_text(self, text: str) -> None:
        """A tool call that the server has not recognised looks as if the model had not made one."""
        signs = [sign for sign, _ in TOOL_CALLS_IN_TEMPLATE if sign in text]
        if signs and not self._warned:
            self._warned = True
            logger.warning(
                "warning: an answer of %s holds %s as text, so %s may not know how it writes tool calls "
                "(docs/local-models.md, Tool calls)",
                self.name, signs[0], self._server.backend.name,
            )  # fmt: skip

    def _reached(self, model_args: dict[str, Any], **settings: Any) -> OpenAIModel | LiteLLMModel:
        """The served model, as a client asks it."""
        address = {"api_base": self._server.url, "api_key": "none"}
        return remote_model(
            self._server.served_name,
            "openai",
            client=self._client,
            model_args={**model_args, **address},
            **settings,
        )

    def _explain(self, error: ModelError) -> None:
        """Name the model as a person knows it, and where more can be read."""
        error.place = self._server.place
        if "--tool-call-parser" in error.fault:
            raise ModelSetupError(
                "vLLM has to be told how this model writes tool calls",
                place=error.place,
                remedy=f'Name one of its parsers, {ARGUMENTS}="--enable-auto-tool-choice --tool-call-parser '
                'NAME", or take an agent that has them written as text: --agent react.',
            ) from error
        if error.status is not None and error.status >= 500:
            error.remedy = f"The server's last lines: {self._server.log.end()}"


def _go_past_proxies() -> None:
    """A proxy that the environment names must not be asked for this machine's own servers."""
    if not any(os.environ.get(name) for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")):
        return
    for name in ("NO_PROXY", "no_proxy"):
        kept = [host.strip() for host in os.environ.get(name, "").split(",") if host.strip()]
        if HOST not in kept:
            os.environ[name] = ",".join([*kept, HOST])
