"""Models behind OpenAI-compatible endpoints, asked over aiohttp.

This costs less CPU per call than LiteLLM. Requests, completions and errors equal those of ``litellm``; tests
compare the two exchange by exchange. An answer needs nothing but a message: unknown fields are ignored, and
nulls count as missing. What the message holds beside text and tool calls goes back with the history.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import urllib.request
from contextlib import closing, suppress
from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit
from uuid import uuid4

from pydantic_core import from_json, to_json

from reward_kit.agent.base.redaction import keep_secrets, label, secrets_in
from reward_kit.agent.base.text import excerpt
from reward_kit.agent.base.types import Completion, Message
from reward_kit.agent.base.worker_thread import in_thread
from reward_kit.agent.models.answer_parts import StatedError, tokens_in
from reward_kit.agent.models.calls import RemoteModel, Request
from reward_kit.agent.models.litellm_library import (
    ABSENT,
    NotPlain,
    import_litellm,
    load_prices,
    openai_price,
    sent_messages,
    stated_cost,
    usage_by_litellm,
    usage_of,
)
from reward_kit.agent.models.providers import OPENAI, Endpoint, body_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping

    import aiohttp

    from reward_kit.agent.models.limiter import Limiter

KEEP_ALIVE = 30.0
"""Seconds that an unused connection stays open."""
LONGEST_ANSWER = 2**25
"""Bytes of an answer, unpacked: far more than any model writes, far less than a machine has."""
READ_BUFFER = 2**18
"""Bytes; an answer fits in it, so that reading it does not stop and start the connection."""
FIRST_WORDS = 200
"""Characters of an unreadable answer that its error quotes."""


@dataclass(eq=False, repr=False)
class OpenAIModel(RemoteModel):
    """The model at an ``Endpoint``; its options are those of ``LiteLLMModel`` and mean the same."""

    endpoint: Endpoint

    def __post_init__(self) -> None:
        self._secrets = keep_secrets(secrets_in({**self.model_args, "headers": self.endpoint.headers}))
        arguments = body_arguments({"temperature": self.temperature, **self.model_args})
        self._url = f"{self.endpoint.base}/chat/completions"
        self._begin = to_json({"model": self.endpoint.model, **arguments})[:-1] + b',"messages":['
        self._owner = (urlsplit(self.endpoint.base).hostname or "").rpartition(".")[0].rpartition(".")[2]
        self._connector: aiohttp.TCPConnector | None = None
        self._head = b""

    async def open(self) -> None:
        """Have the price table read a moment later, while the first answer is awaited."""
        asyncio.get_running_loop().call_later(0.1, load_prices)

    async def close(self) -> None:
        """Close the connections."""
        if self._connector is not None:
            await self._connector.close()
            self._connector = None

    def _resolved(self) -> tuple[str, str]:
        return self.endpoint.model, OPENAI

    def _request(self, messages: list[Message], options: dict[str, Any], sent: dict[Any, Any]) -> Request:
        """The request; ``sent`` keeps the JSON of messages and tools that the rollout's next one repeats.

        Until the assistant speaks again, its last message may still get tool calls.
        """
        kept, text, tools, tools_text = sent.get(self, ([], b"", None, b""))
        if len(kept) > len(messages) or not all(map(is_, kept, messages)):
            kept, text = [], b""
        last = len(messages) - 1
        while last > len(kept) and messages[last]["role"] != "assistant":
            last -= 1
        if last > len(kept):
            text += self._json(messages[len(kept) : last], is_first=not text) + b","
            kept = messages[:last]
        if tools is not options.get("tools"):
            tools = options.get("tools")
            tools_text = b',"tools":' + to_json(tools) if tools else b""
        sent[self] = kept, text, tools, tools_text
        others = {name: value for name, value in options.items() if name != "tools"}
        end = b"," + to_json(others)[1:] if others else b"}"
        tail = self._json(messages[max(last, 0) :], is_first=not text)
        body = b"".join((self._begin, text, tail, b"]", tools_text, end))
        return Request(self.endpoint.model, OPENAI, self.endpoint.base, len(body), body, [self._url])

    def _json(self, messages: list[Message], *, is_first: bool) -> bytes:
        return to_json(sent_messages(messages, self._owner, direct=True, is_first=is_first))[1:-1]

    async def _send(self, request: Request, limiter: Limiter | None) -> Completion:
        import aiohttp
        from aiohttp.http_exceptions import HttpProcessingError

        async with asyncio.timeout(None if math.isinf(self.timeout) else self.timeout):
            try:
                status, headers, answer = await self._exchange(request.body)
            except (aiohttp.ClientError, HttpProcessingError) as error:
                raise UnreachableError("Connection error.") from error
        if 300 <= status < 400 and "Location" in headers:
            raise RedirectError(status, urljoin(self._url, headers["Location"]))
        if status >= 300:
            stated: Any = {}
            with suppress(ValueError, LookupError, TypeError, RecursionError):
                found = json.loads(answer)
                stated = (found[0] if isinstance(found, list) else found)["error"]  # Google sends a list
            raise StatedError(stated, answer.decode(errors="replace"), status=status, headers=headers)
        if limiter is not None:
            limiter.read_headers(headers)
        try:
            return await read_answer(answer, request.model, self._secrets)
        except ValueError:
            kind = headers.get("Content-Type", "application/octet-stream").partition(";")[0]
            request.called[1:] = [f"HTTP {status}, {kind}"]
            raise

    async def _exchange(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and content of the answer to a request, on a connection that is kept open.

        aiohttp connects and parses; its session would make every request anew, at twice the CPU time.
        """
        connector = self._connector or self._connect()
        connection = await connector.connect(self._asked, traces=[], timeout=self._no_limit)
        if not self._head:  # connecting has added a proxy's account
            self._head = _head(self._asked)
        content = bytearray()
        with closing(connection):  # which does nothing to one that was released
            protocol = connection.protocol
            assert protocol is not None
            assert protocol.transport is not None
            protocol.set_response_params(read_until_eof=True, read_bufsize=READ_BUFFER)
            protocol.transport.write(b"%s%d\r\n\r\n%s" % (self._head, len(body), body))
            message, payload = await protocol.read()
            while 100 <= message.code < 200 and message.code != 101:  # not the answer yet
                message, payload = await protocol.read()
            while not payload.at_eof():
                content += await payload.readany()
                if len(content) > LONGEST_ANSWER:
                    raise ValueError(f"it is longer than {LONGEST_ANSWER // 2**20} MB")
            connection.release()
        return message.code, message.headers, bytes(content)

    def _connect(self) -> aiohttp.TCPConnector:
        """Connections without a limit of their number: the limiter decides how many calls there are."""
        import ssl

        import aiohttp
        import certifi
        from yarl import URL

        trusted: ssl.SSLContext | bool = True
        if self.endpoint.base.lower().startswith("https:"):
            certificates = os.environ.get("SSL_CERT_FILE") or certifi.where()  # as LiteLLM's clients
            trusted = ssl.create_default_context(cafile=certificates)
        url, proxy = urlsplit(self.endpoint.base), None
        if not urllib.request.proxy_bypass(url.hostname or ""):
            proxy = urllib.request.getproxies().get(url.scheme)
        self._asked = aiohttp.ClientRequest(
            "POST",
            URL(self._url),
            headers=self.endpoint.headers,
            proxy=URL(proxy) if proxy else None,
            loop=asyncio.get_running_loop(),
        )
        self._no_limit, self._head = aiohttp.ClientTimeout(total=None), b""
        self._connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE, ssl=trusted)
        return self._connector


def _head(asked: aiohttp.ClientRequest) -> bytes:
    """The head of each request, up to the length of its body."""
    target = str(asked.url) if asked.proxy and not asked.is_ssl() else asked.url.raw_path_qs
    own = [f"{name}: {value}" for name, value in asked.headers.items() if name != "Content-Length"]
    return "\r\n".join([f"POST {target} HTTP/1.1", *own, "Content-Length: "]).encode()


# -- errors, in the form that ``models.errors`` reads


class UnreachableError(Exception):
    """No connection, or one that broke off before the answer was whole."""


class RedirectError(Exception):
    """An answer that sends the conversation and the key elsewhere, which is not followed."""

    def __init__(self, status: int, target: str) -> None:
        super().__init__(f"HTTP {status}: it redirects to {target.partition('?')[0]}, which is not followed")


# -- answers


_READ = frozenset({"role", "content", "tool_calls", "function_call", "annotations", "audio"})
"""Fields of a message that are read, or that servers do not take back."""
_FINISH_REASONS = {"max_tokens": "length", "model_length": "length", "eos": "stop", "end_turn": "stop"}
"""Words of some servers, in OpenAI's."""


async def read_answer(body: bytes, model: str, secrets: frozenset[str]) -> Completion:
    """The completion in an answer's body.

    Raises ``StatedError`` for an answer that holds an error, ``ValueError`` for anything else.
    """
    try:
        answer = _parsed(body)
        choice = answer["choices"][0] if answer.get("choices") else {}
        for error in (answer.get("error"), choice.get("error")):
            if error and (not isinstance(error, dict) or error.get("message") or error.get("code")):
                raise StatedError(error)
        message = _message(choice["message"])
        stated = usage if isinstance(usage := answer.get("usage"), dict) else {}
        usage = usage_of(stated)
        tokens = tokens_in(answer.get("prompt_token_ids"), choice)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        said = excerpt(body[: 4 * FIRST_WORDS].decode(errors="replace"), FIRST_WORDS)
        raise ValueError(f"no chat completion: {said or 'it is empty'}") from error
    answered_by = str(answer.get("model") or model)
    try:
        cost = stated_cost(stated)
        if cost is None:
            cost = openai_price(usage, (answered_by, model))
        usage.cost, usage.unpriced_calls = cost or 0.0, int(cost is None)
    except NotPlain:
        await in_thread(import_litellm)  # the first time this takes seconds, which others need not wait
        usage = usage_by_litellm(stated, answered_by, model, OPENAI)
    reason = str(choice.get("finish_reason") or "stop")
    reason = "tool_calls" if reason == "stop" and message.get("tool_calls") else reason
    return Completion(
        message=message,
        usage=usage,
        finish_reason=label(_FINISH_REASONS.get(reason.lower(), reason), secrets),
        model=label(answered_by, secrets),
        tokens=tokens,
    )


def _parsed(body: bytes) -> Any:
    try:
        return from_json(body)
    except ValueError:  # half of a surrogate pair, or no JSON at all
        return from_json(json.dumps(json.loads(body), ensure_ascii=False).encode(errors="replace"))


def _message(given: dict[str, Any]) -> Message:
    """The message as it came, but for its tool calls and its content, which become OpenAI's."""
    content = given.get("content")
    message: Message = {"role": "assistant", "content": None if content is None else _texts(content, "text")}
    if calls := given.get("tool_calls"):
        message["tool_calls"] = [_tool_call(call) for call in calls]
    message |= {name: one for name, one in given.items() if name not in _READ and one not in ABSENT}
    if isinstance(content, list) and (thought := _texts(content, "thinking")):
        message.setdefault("reasoning_content", thought)
    return message


def _texts(content: Any, field: str) -> str:
    """The text of a content, or the thoughts in its parts."""
    if isinstance(content, list):
        return "".join(_texts(part.get(field), "text") for part in content)
    return content if isinstance(content, str) else ""


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    """The call with an id, and with arguments that are text."""
    function = call["function"]
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else json.dumps(arguments)
    kept = {name: value for name, value in call.items() if value is not None and name != "index"}
    call_id = call.get("id") or uuid4().hex[:9]
    return {**kept, "id": call_id, "type": "function", "function": {**function, "arguments": arguments}}
