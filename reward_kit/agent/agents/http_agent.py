"""An agent behind HTTP, in any language: asked for each turn, while a door offers it its rollout's tools."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from reward_kit.agent.agents.http_protocol import PROTOCOL, closed_request, read_answer, turn_request
from reward_kit.agent.cut_text import excerpt
from reward_kit.agent.doors import ToolDoor
from reward_kit.agent.tools.access import token_of
from reward_kit.errors import AgentError, BundleError, ModelError, ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from reward_kit.agent.agents.http_protocol import AgentAnswer
    from reward_kit.agent.completion import Message
    from reward_kit.agent.rollout import Rollout

TOKEN = "REWARD_KIT_AGENT_TOKEN"  # noqa: S105 - the name of the variable
"""Environment variable with the bearer token that the agent's server asks for."""

MAX_ANSWER = 10 * 1024 * 1024
"""Bytes of an agent's answer."""

CONNECTING = 10.0
"""Seconds that a connection to the agent may take."""

LAST_WORDS = 5.0
"""Seconds that an agent has to answer once its rollout is over: the reply is dropped, its usage counts."""

FAREWELL = 2.0
"""Seconds that the message of a rollout's end may take; nobody waits for it meanwhile."""

_REFUSED = frozenset({401, 403, 404, 405})
_BUSY = frozenset({408, 425, 429})
_EXCERPT = 200


class HttpAgents:
    """Makes the agents that speak for the server at ``url``; they share connections and a door for tools.

    ``BundleError`` for an address that cannot be one. ``open`` raises ``ModelSetupError`` where nobody
    listens.
    """

    def __init__(self, url: str) -> None:
        self.url = _checked_url(url)
        self.door = ToolDoor()
        self._http: Any = None
        self._token: str | None = None
        self._has_answered = False
        self._farewells: set[asyncio.Task[None]] = set()

    def __call__(self) -> HttpAgent:
        return HttpAgent(self)

    async def open(self) -> None:
        """See that somebody listens, and open the door."""
        import aiohttp

        self._token = token_of(TOKEN)
        await _reach(self.url)
        self._has_answered = False
        await self.door.open()
        self._http = aiohttp.ClientSession(
            # A connection for each request: a server may drop an idle one just when it is used again, and
            # a turn cannot simply be asked for twice.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECTING),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Let the messages of ended rollouts arrive, then close the door and all connections."""
        if self._farewells:
            await asyncio.wait(self._farewells, timeout=FAREWELL)
        if self._http is not None:
            await self._http.close()
            self._http = None
        await self.door.close()

    async def ask(self, body: bytes, *secrets: str) -> AgentAnswer:
        """What the agent answers to ``body``; errors show the beginning of what came instead.

        Raises ``AgentError`` for an answer that cannot be used, ``ModelError`` where none came, and
        ``ModelSetupError`` where the address or token was refused from the start.
        """
        import aiohttp

        try:
            status, text, location = await self._exchange(body)
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            reason = self._shown(f"{type(error).__name__}: {error}", secrets)
            raise ModelError(f"no answer from the agent: {reason}", place=self.url, retryable=True) from error
        if status == 200:
            self._has_answered = True
            try:
                return read_answer(text, self.url)
            except AgentError as error:
                raise AgentError(f"{error.fault}, got {self._shown(text, secrets)}") from None
        fault = f"the agent answered HTTP {status}: {self._shown(text, secrets)}"
        raise self._refusal(fault, status, location)

    def say_goodbye(self, rollout: Rollout) -> None:
        """Tell the agent that a rollout is over, without waiting for it or minding what comes back."""
        if self._http is None:
            return
        task = asyncio.ensure_future(self._farewell(closed_request(rollout)))
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)

    async def _farewell(self, body: bytes) -> None:
        import aiohttp

        with contextlib.suppress(aiohttp.ClientError, OSError, asyncio.TimeoutError, AgentError):
            await asyncio.wait_for(self._exchange(body), FAREWELL)

    async def _exchange(self, body: bytes) -> tuple[int, str, str | None]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        async with self._http.post(self.url, data=body, headers=headers, allow_redirects=False) as response:
            received = bytearray()
            async for chunk in response.content.iter_any():
                received += chunk
                if len(received) > MAX_ANSWER:
                    raise AgentError(f"the agent's answer is longer than {MAX_ANSWER} bytes")
            text = received.decode("utf-8", "replace")
            return response.status, text, response.headers.get("Location")

    def _refusal(self, fault: str, status: int, location: str | None) -> ModelError | AgentError:
        remedy = None
        if 300 <= status < 400:
            remedy = f"Redirects are not followed; it points to {_excerpt(location or 'nowhere')}."
        elif status in (401, 403):
            remedy = f"Set {TOKEN} to the token that it asks for."
        elif status in _REFUSED:
            remedy = f"Give the address that answers POST requests of {PROTOCOL} (docs/http-agent.md)."
        if remedy is not None and not self._has_answered:  # every rollout would meet the same
            return ModelSetupError(fault, place=self.url, remedy=remedy, status=status)
        if status >= 500 or status in _BUSY:
            return ModelError(fault, place=self.url, status=status, retryable=True)
        return AgentError(fault)

    def _shown(self, text: str, secrets: tuple[str, ...]) -> str:
        for secret in (*secrets, self._token):
            if secret:
                text = text.replace(secret, "***")
        return _excerpt(text)


class HttpAgent:
    """One rollout of an agent behind HTTP."""

    def __init__(self, shared: HttpAgents) -> None:
        self._shared = shared
        self._admission = contextlib.ExitStack()
        self._rollout: Rollout | None = None
        self._token = ""
        self._stopped = asyncio.Event()

    async def respond(self, rollout: Rollout) -> Message | str:
        """Ask for the turn's reply; meanwhile the agent calls tools through the door."""
        if self._rollout is None:
            self._rollout = rollout
            admitted = self._shared.door.admit(rollout, on_stop=self._stopped.set)
            self._token = self._admission.enter_context(admitted)
        body = turn_request(rollout, self._shared.door, self._token)
        try:
            answer = await self._until_stopped(self._shared.ask(body, self._token))
        except (ModelError, AgentError):
            if rollout.stop_reason is None:
                raise
            return ""  # it is over already, and for another reason
        if answer is None:
            return ""
        for model, usage, seconds in answer.usage:
            rollout.count_usage(usage, model=model, seconds=seconds)
        if rollout.stop_reason is None and answer.done:
            if answer.reply and answer.reply.strip():
                rollout.reply(answer.message)
            rollout.stop("agent_done", "the agent said that it is done")
        return answer.message if answer.reply else ""

    async def close(self) -> None:
        """Nothing comes through the door any more, and the agent may forget the rollout."""
        self._admission.close()
        if self._rollout is not None:
            self._shared.say_goodbye(self._rollout)

    async def _until_stopped(self, asking: Coroutine[Any, Any, AgentAnswer]) -> AgentAnswer | None:
        """The answer; None where the rollout has ended meanwhile and the agent does not answer any more."""
        answer = asyncio.ensure_future(asking)
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({answer, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                await asyncio.wait({answer}, timeout=LAST_WORDS)
            return answer.result() if answer.done() else None
        finally:
            stopped.cancel()
            answer.cancel()
            await asyncio.gather(answer, stopped, return_exceptions=True)


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise _faulty(url, f"is not an address: {error}") from error
    if not host or re.search(r"[\s\x00-\x1f]", url):
        raise _faulty(url, "is not an address")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise BundleError(
            "the agent's address has more than host, port and path",  # not shown: it may hold a secret
            place="--agent",
            remedy=f"Addresses are stored with results; a token belongs into {TOKEN}.",
        )
    return url


def _faulty(url: str, fault: str) -> BundleError:
    return BundleError(f"{url} {fault}", place="--agent", remedy="It looks like http://127.0.0.1:9000.")


async def _reach(url: str) -> None:
    """Connect and hang up, which asks nothing of the agent but that it is there."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme.lower() == "https" else 80)
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(parts.hostname, port), CONNECTING)
    except (OSError, asyncio.TimeoutError) as error:
        reason = "no connection in time" if isinstance(error, asyncio.TimeoutError) else error
        raise ModelSetupError(
            f"no agent answers at {url}: {reason}",
            place="--agent",
            remedy="Start it, or give the address where it listens.",
        ) from error
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _excerpt(text: str) -> str:
    return excerpt(text, _EXCERPT) or "an empty body"
