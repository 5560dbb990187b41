"""An agent behind HTTP, in any language: asked for each turn, with its rollout's tools at an endpoint.

docs/http-agent.md is the reference of the JSON between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import aiohttp
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from reward_kit.agent.base.redaction import label, redact
from reward_kit.agent.base.text import encodable, excerpt
from reward_kit.agent.base.types import Usage
from reward_kit.agent.rollout.rollout import episode_of
from reward_kit.agent.servers.endpoint import Admission, ToolEndpoint
from reward_kit.agent.servers.requests import token_of
from reward_kit.errors import AgentError, BundleError, ModelError, ModelSetupError

if TYPE_CHECKING:
    from reward_kit.agent.base.types import Message
    from reward_kit.agent.rollout.rollout import Rollout

TOKEN = "REWARD_KIT_AGENT_TOKEN"  # noqa: S105 - the name of the variable
"""Environment variable with the bearer token that the agent's server asks for."""
MAX_ANSWER = 10 * 1024 * 1024
"""Bytes of an agent's answer."""
CONNECTING = 10.0
"""Seconds that a connection to the agent may take."""
LAST_WORDS = 5.0
"""Seconds that an agent has to answer once its rollout is over: the reply is dropped, its usage counts."""
FAREWELL = 2.0
"""Seconds that the message of a rollout's end may take."""

_BUSY = frozenset({408, 425, 429})
_EXCERPT = 200
_LOST = (aiohttp.ClientError, OSError)


# -- the protocol

PROTOCOL = "reward-kit.agent/1"
EXPECTED = 'expected {"reply": "text"}'

_Tokens = Annotated[float, Field(ge=0, le=10**12, allow_inf_nan=False), BeforeValidator(lambda v: v or 0)]
_Amount = Annotated[float, Field(ge=0, le=10**6, allow_inf_nan=False)]


class ModelUsage(BaseModel, strict=True):
    """One model call of the agent; without ``cost`` (US dollars) it counts as unpriced."""

    model: str | None = None
    input_tokens: _Tokens = 0
    cached_tokens: _Tokens = 0
    output_tokens: _Tokens = 0
    reasoning_tokens: _Tokens = 0
    cost: _Amount | None = None
    seconds: _Amount | None = None

    def count(self, rollout: Rollout, default: str) -> None:
        """Add the call to the rollout's usage; ``default`` is the name of an unnamed model."""
        tokens = {name: int(value) for name, value in self if name.endswith("_tokens")}
        usage = Usage(calls=1, cost=self.cost or 0.0, unpriced_calls=int(self.cost is None), **tokens)
        model = label(self.model) if self.model else default
        rollout.count_usage(usage, model=model, seconds=self.seconds or 0.0)


def _as_list(value: Any) -> Any:
    return [] if value is None else [value] if isinstance(value, dict) else value


class AgentAnswer(BaseModel, strict=True):
    """The agent's answer to a turn; ``reply`` may be missing or empty only if it is ``done``."""

    reply: str | None = None
    reasoning: str | None = None
    done: bool = False
    usage: Annotated[list[ModelUsage], BeforeValidator(_as_list), Field(max_length=10_000)] = []

    @property
    def says_something(self) -> bool:
        return bool(self.reply and self.reply.strip())

    @property
    def message(self) -> Message:
        """The assistant message for the history."""
        message: Message = {"content": self.reply}
        return {**message, "reasoning_content": self.reasoning} if self.reasoning else message


def read_answer(body: str) -> AgentAnswer:
    """Return the answer in the body of a 200; raises ``AgentError`` that names the fault."""
    try:
        text = encodable(json.dumps(json.loads(body), ensure_ascii=False))
    except (ValueError, RecursionError):
        raise _unusable("is not JSON") from None
    try:
        answer = AgentAnswer.model_validate_json(text)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, fault["loc"]))
        reason = fault["msg"][:1].lower() + fault["msg"][1:]
        raise _unusable(f"has {place}: {reason}" if place else "is not a JSON object") from None
    if not answer.done and not answer.says_something:
        raise _unusable("has no reply" if answer.reply is None else "has an empty reply")
    return answer


def _unusable(fault: str) -> AgentError:
    return AgentError(f"the agent's answer {fault}; {EXPECTED}")


def turn_request(rollout: Rollout, addresses: dict[str, str | None], token: str) -> bytes:
    """Return the body that asks for the agent's next reply."""
    heard = rollout.lines[-1] if rollout.lines else None
    return _encoded(
        rollout,
        "turn",
        system_prompt=rollout.system_prompt,
        messages=rollout.messages,
        message=heard.text if heard is not None and heard.speaker == "user" else "",
        tools=rollout.tools,
        door={**addresses, "token": token},
    )


def _encoded(rollout: Rollout, event: str, **fields: Any) -> bytes:
    identity = {name: getattr(rollout, name) for name in ("id", "row_id", "index", "seed")}
    identity["turn"] = rollout.turns
    body = {"protocol": PROTOCOL, "event": event, "rollout": identity, **fields}
    # Escaped to ASCII, so that text which is not valid Unicode can be sent as well.
    return json.dumps(body, default=str).encode("ascii")


# -- agents


class HttpAgents:
    """The agents that speak for the server at ``url``; they share connections and a tool endpoint.

    Raises ``BundleError`` for a malformed address; ``open`` raises ``ModelSetupError`` if nobody listens.
    """

    def __init__(self, url: str) -> None:
        _check_address(url)
        self.url = url
        self.endpoint = ToolEndpoint()
        self._http: aiohttp.ClientSession | None = None
        self._token: str | None = None
        self._has_answered = False

    def __call__(self) -> HttpAgent:
        return HttpAgent(self)

    async def open(self) -> None:
        """Check that a server listens, and open the tool endpoint."""
        self._token = token_of(TOKEN)
        await _connect(self.url)
        await self.endpoint.open()
        self._http = aiohttp.ClientSession(
            # A connection for each request: a server may drop an idle one just when it is used again, and
            # a turn cannot simply be asked for twice.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECTING),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close the endpoint and all connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None
        await self.endpoint.close()

    async def ask(self, body: bytes, secret: str) -> AgentAnswer:
        """Return the agent's answer to ``body``; errors show the beginning of what came instead.

        Raises ``AgentError`` for an answer that cannot be used, ``ModelError`` if none came, and
        ``ModelSetupError`` if the address or token was refused from the start.
        """
        try:
            status, text, location = await self._exchange(body)
        except _LOST as error:
            reason = self._shown(f"{type(error).__name__}: {error}", secret)
            raise ModelError(f"no answer from the agent: {reason}", place=self.url, retryable=True) from error
        if status == 200:
            self._has_answered = True
            try:
                return read_answer(text)
            except AgentError as error:
                raise AgentError(f"{error.fault}, got {self._shown(text, secret)}") from None
        fault = f"the agent answered HTTP {status}: {self._shown(text, secret)}"
        remedy = _remedy(status, self._shown(location or "nowhere", secret))
        if remedy is not None and not self._has_answered:  # every rollout would meet the same
            raise ModelSetupError(fault, place=self.url, remedy=remedy, status=status)
        if status > 500 or status in _BUSY:  # 500 is a fault of the agent's own
            raise ModelError(fault, place=self.url, status=status, retryable=True)
        raise AgentError(fault)

    async def say_goodbye(self, rollout: Rollout) -> None:
        """Send that a rollout is over; the answer is ignored."""
        if self._http is not None:
            with contextlib.suppress(*_LOST, AgentError):  # TimeoutError is an OSError
                async with asyncio.timeout(FAREWELL):
                    await self._exchange(_encoded(rollout, "closed", stop_reason=rollout.stop_reason))

    async def _exchange(self, body: bytes) -> tuple[int, str, str | None]:
        """Return status, text and ``Location`` of the agent's answer."""
        assert self._http is not None, "open() comes first"
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        async with self._http.post(self.url, data=body, headers=headers, allow_redirects=False) as response:
            data = bytearray()
            async for chunk in response.content.iter_any():
                data += chunk
                if len(data) > MAX_ANSWER:
                    raise AgentError(f"the agent's answer is longer than {MAX_ANSWER} bytes")
            return response.status, data.decode("utf-8-sig", "replace"), response.headers.get("Location")

    def _shown(self, text: str, secret: str) -> str:
        return excerpt(redact(text, [secret, self._token or secret]), _EXCERPT) or "an empty body"


class HttpAgent:
    """One rollout of an agent behind HTTP."""

    def __init__(self, shared: HttpAgents) -> None:
        self._shared = shared
        self._rollout: Rollout | None = None
        self._admission: Admission | None = None

    async def respond(self, rollout: Rollout) -> Message | str:
        """Ask for the turn's reply; meanwhile the agent calls tools at the endpoint."""
        self._rollout = rollout
        if self._admission is None:
            self._admission = self._shared.endpoint.admit(rollout)
        try:
            answer = await self._answer(rollout, self._admission)
        except (ModelError, AgentError):
            if rollout.stop_reason is None:
                raise
            return ""  # it is over already, and for another reason
        for call in answer.usage:
            call.count(rollout, self._shared.url)
        if rollout.stop_reason is None and answer.done:
            if answer.says_something:
                episode_of(rollout).reply(answer.message)
            rollout.stop("agent_done", "the agent said that it is done")
        return answer.message if answer.reply else ""

    async def close(self) -> None:
        """Revoke the token and tell the agent that the rollout is over."""
        if self._admission is not None and self._rollout is not None:
            self._admission.revoke()
            await self._shared.say_goodbye(self._rollout)

    async def _answer(self, rollout: Rollout, admission: Admission) -> AgentAnswer:
        """Return the answer; once the rollout has ended, it must come in ``LAST_WORDS`` to count."""
        body = turn_request(rollout, self._shared.endpoint.addresses, admission.token)
        answer = asyncio.ensure_future(self._shared.ask(body, admission.token))
        stopped = asyncio.ensure_future(admission.stopped.wait())
        try:
            await asyncio.wait({answer, stopped}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({answer}, timeout=LAST_WORDS)
            return answer.result() if answer.done() else AgentAnswer()
        finally:
            stopped.cancel()
            answer.cancel()
            await asyncio.gather(answer, stopped, return_exceptions=True)


def _remedy(status: int, location: str) -> str | None:
    """Return the fix for a status that all rollouts would meet."""
    if 300 <= status < 400:
        return f"Redirects are not followed; it points to {location}."
    if status in (401, 403):
        return f"Set {TOKEN} to the token that it asks for."
    if status in (404, 405):
        return f"Give the address that answers POST requests of {PROTOCOL} (docs/http-agent.md)."
    return None


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        valid = bool(parts.hostname) and (parts.port or 1) > 0 and not re.search(r"[\s\x00-\x1f]", url)
    except ValueError:
        valid = False
    if not valid:
        remedy = "It looks like http://127.0.0.1:9000."
        raise BundleError(f"{url} is not an address", place="--agent", remedy=remedy)
    if parts.username or parts.password or parts.query or parts.fragment:
        fault = "the agent's address has more than host, port and path"  # not shown: it may hold a secret
        remedy = f"Addresses are stored with results; give a token in {TOKEN}."
        raise BundleError(fault, place="--agent", remedy=remedy)


async def _connect(url: str) -> None:
    """Connect and close without a request; raises ``ModelSetupError`` if no server listens."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme.lower() == "https" else 80)
    try:
        async with asyncio.timeout(CONNECTING):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError as error:
        reason = "no connection in time" if isinstance(error, TimeoutError) else error
        remedy = "Start it, or give the address where it listens."
        raise ModelSetupError(
            f"no agent answers at {url}: {reason}", place="--agent", remedy=remedy
        ) from error
    writer.close()
