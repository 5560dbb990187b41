"""A model provider on 127.0.0.1, in the provider's own protocol.

    with ProviderStub(Anthropic(), key="sk-test") as stub:
        ...  # send requests to stub.url
    assert stub.refusals == []

A protocol reads a request into a ``Conversation``, raises ``Refused`` for a request that the provider refuses
according to its documentation, and writes an ``Answer`` in the provider's form. The model is the same behind
all protocols. Given tools, it is an agent that looks for a flight and books it in one answer, pays, and says
so. Without tools, it is the user, who says one more line and then ends the conversation.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

Json = dict[str, Any]

NUMBERS = itertools.count(1)
"""For the ids of calls and answers."""


class Refused(Exception):  # noqa: N818 - an answer of the provider, no fault of the stub
    """The request is not as documented: HTTP 400."""


def need(holds: object, fault: str) -> None:
    """Refuse the request unless this holds."""
    if not holds:
        raise Refused(fault)


def known(given: Json, allowed: str, where: str) -> None:
    """Refuse fields that are not in the space-separated list of those allowed."""
    unknown = sorted(given.keys() - set(allowed.split()))
    need(not unknown, f"{where}: unknown fields {unknown}")


@dataclass
class Conversation:
    """The parts of a request that the model's answer depends on; ``said`` counts its earlier answers."""

    has_tools: bool
    results: list[str]
    said: int
    parallel: bool = True


@dataclass
class Call:
    name: str
    arguments: Json
    number: int = field(default_factory=lambda: next(NUMBERS))


@dataclass
class Answer:
    """The model's answer, whatever the protocol."""

    text: str
    calls: list[Call] = field(default_factory=list)


def answer_to(conversation: Conversation) -> Answer:
    """The model."""
    if not conversation.has_tools:
        return Answer("Thank you. ###STOP###" if conversation.said > 1 else "Is it paid?")
    results = " ".join(conversation.results)
    booked = re.search(r"booking_id\W+([0-9A-F]{8})", results)
    if booked is None:
        wanted = {"origin": "SFO", "dest": "JFK", "date": "2025-05-20"}
        calls = [
            Call("search_flights", wanted),
            Call("create_booking", {"flight_id": 1, "passenger": "Alice"}),
        ]
        return Answer("Let me look.", calls if conversation.parallel else calls[1:])
    if not re.search(r"ok\W+true", results, re.IGNORECASE):
        return Answer("", [Call("pay_booking", {"booking_id": booked[1]})])
    return Answer("Booked and paid.")


@dataclass
class Request:
    path: str
    query: str
    headers: dict[str, str]
    body: Json


class ProviderProtocol(Protocol):
    """A provider's way to ask a model."""

    def read(self, request: Request) -> Conversation:
        """The conversation; raises ``Refused``."""

    def write(self, answer: Answer, request: Request) -> Json:
        """The body of an answer."""

    def fault(self, text: str) -> Json:
        """The body of an error."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


class ProviderStub:
    """The server, the requests that it has received, and what it has refused.

    ``key`` must be in a header of each request.
    """

    def __init__(self, protocol: ProviderProtocol, *, key: str = "") -> None:
        self.requests: list[Request] = []
        self.refusals: list[str] = []
        self._protocol, self._key = protocol, key
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> ProviderStub:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, request: Request) -> tuple[int, Json]:
        """The status and the body of the answer to a request."""
        with self._lock:  # protocols may remember what they have sent
            self.requests.append(request)
            try:
                need(any(self._key in value for value in request.headers.values()), "no valid key")
                if request.path.endswith("/api/show"):  # LiteLLM asks Ollama before each call
                    return 200, {"model_info": {}, "capabilities": ["tools", "thinking"], "template": ""}
                return 200, self._protocol.write(answer_to(self._protocol.read(request)), request)
            except (Refused, LookupError, TypeError, ValueError) as error:
                fault = f"{type(error).__name__}: {error}"
                self.refusals.append(fault)
                return 400, self._protocol.fault(fault)


def _handler(stub: ProviderStub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            path, _, query = self.path.partition("?")
            status, answer = stub.answer(Request(path, query, dict(self.headers), body))
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class gives it
            pass

    return Handler
