"""A small OpenAI-compatible server on 127.0.0.1 that answers from a script.

In tests, through the fixture ``stub_llm``::

    stub_llm.script("gpt-4o-mini", [call("search_flights", origin="SFO"), "There is one at nine."])
    stub_llm.fail("gpt-4o-mini", Answer(status=429, headers={"Retry-After": "0"}), times=2)

As a program, for commands typed by hand::

    python tests/agent/stub_server.py script.json --port 8123
    # {"gpt-4o-mini": ["Hello"], "gpt-3.5-turbo": {"variants": [["Thanks ###STOP###"], ["No ###STOP###"]]}}

An answer is chosen by its place in the conversation (the assistant messages that the request holds beyond
those of the conversation's first request), so rollouts may run side by side; the last answer of a script is
repeated.
"""

from __future__ import annotations

import argparse
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

DEFAULT_USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


@dataclass
class Answer:
    """What the server does for a request; ``body`` is sent as it is, ``drop`` hangs up without an answer."""

    content: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=lambda: dict(DEFAULT_USAGE))
    message: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    status: int = 200
    error: str = "scripted error"
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    body: bytes | None = None
    drop: bool = False


Script = str | dict[str, Any] | Answer
Chooser = Callable[[dict[str, Any], int], Script]


def call(name: str, raw: str | None = None, /, **arguments: Any) -> Answer:
    """An answer that calls one tool; ``raw`` replaces the JSON text of the arguments."""
    return calls((name, arguments if raw is None else raw))


def book_and_pay(request: dict[str, Any], place: int) -> Any:
    """A model that books a flight for Alice, pays for what it has booked, and says so."""
    if place == 0:
        return call("create_booking", flight_id=1, passenger="Alice")
    if place == 1:
        return call("pay_booking", booking_id=json.loads(request["messages"][-1]["content"])["booking_id"])
    return "Booked and paid."


def calls(*wanted: tuple[str, dict[str, Any] | str], content: str | None = None) -> Answer:
    """An answer that calls several tools."""
    tool_calls = [{"name": name, "arguments": arguments} for name, arguments in wanted]
    return Answer(content=content, tool_calls=tool_calls)


def called(name: str, *wanted: tuple[str, dict[str, Any]]) -> Answer:
    """An answer that calls several tools; its calls have ids with this name, the same in each run."""
    answer = calls(*wanted)
    for number, each in enumerate(answer.tool_calls):
        each["id"] = f"call_{name}_{number}"
    return answer


def _rollout(request: dict[str, Any]) -> Any:
    """What tells rollouts apart: the seed without its last bits, which change when a model is asked again."""
    seed = request.get("seed")
    return seed >> 2 if isinstance(seed, int) else seed


class _Server(ThreadingHTTPServer):
    request_queue_size = 1024  # with the usual 5, connections made at the same time are a second late


class StubServer:
    """The server, its scripts by model name, and the requests that it has received.

    ``prepare`` is given it before the first request is answered.
    """

    def __init__(self, port: int = 0, prepare: Callable[[StubServer], object] | None = None) -> None:
        self.requests: list[dict[str, Any]] = []
        self.request_headers: list[dict[str, str]] = []
        self._scripts: dict[str, Chooser] = {}
        self._faults: dict[str, list[Answer]] = {}
        self._beginnings: dict[Any, int] = {}
        self._seeds: list[Any] = []
        self._issued = 0
        self._lock = threading.Lock()
        if prepare is not None:
            prepare(self)
        self._server = _Server(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The base address for OPENAI_API_BASE."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that lead commands to it."""
        return {"OPENAI_API_BASE": self.url, "OPENAI_API_KEY": "sk-test-0123456789abcdef"}

    def script(self, model: str, answers: Sequence[Script] | Chooser) -> None:
        """Answers of ``model`` in order, or a function of (request, place in the conversation)."""
        if callable(answers):
            self._scripts[model] = answers
            return
        fixed = list(answers)
        self._scripts[model] = lambda request, place: fixed[min(place, len(fixed) - 1)]

    def variants(self, model: str, scripts: Sequence[Sequence[Script]]) -> None:
        """One script for the first rollout, the next for the second, ...; they are told apart by ``seed``."""

        def choose(request: dict[str, Any], place: int) -> Script:
            script = scripts[self._seeds.index(_rollout(request)) % len(scripts)]
            return script[min(place, len(script) - 1)]

        self._scripts[model] = choose

    def fail(self, model: str, answer: Answer, times: int = 1) -> None:
        """Give ``answer`` to the next requests for ``model``, before its script goes on."""
        self._faults.setdefault(model, []).extend([answer] * times)

    def requests_for(self, model: str) -> list[dict[str, Any]]:
        return [request for request in self.requests if request.get("model") == model]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: dict[str, Any], headers: dict[str, str]) -> Answer:
        """Choose the answer to a request, and remember the request."""
        with self._lock:
            self.requests.append(request)
            self.request_headers.append(headers)
            model = request.get("model", "")
            if _rollout(request) not in self._seeds:
                self._seeds.append(_rollout(request))
            if self._faults.get(model):
                return self._faults[model].pop(0)
            if model not in self._scripts:
                return Answer(status=404, error=f"The model `{model}` does not exist", code="model_not_found")
            messages = request.get("messages", [])
            spoken = sum(message.get("role") == "assistant" for message in messages)
            first = messages[0].get("content") if messages else None
            conversation = model, _rollout(request), json.dumps(first)
            begun = self._beginnings.setdefault(conversation, spoken)
            self._beginnings[conversation] = begun = min(begun, spoken)
            chosen = self._scripts[model](request, spoken - begun)
        if isinstance(chosen, str):
            return Answer(content=chosen)
        return Answer(**chosen) if isinstance(chosen, dict) else chosen

    def body(self, answer: Answer, model: str) -> bytes:
        """The JSON text of an answer in the format of chat completions."""
        if answer.body is not None:
            return answer.body
        if answer.status != 200:
            fault = {"message": answer.error, "type": "error", "code": answer.code, "param": None}
            return json.dumps({"error": fault}).encode()
        message: dict[str, Any] = {"role": "assistant", "content": answer.content, **answer.message}
        if answer.tool_calls:
            message["tool_calls"] = [self._tool_call(wanted) for wanted in answer.tool_calls]
        reason = answer.finish_reason or ("tool_calls" if answer.tool_calls else "stop")
        with self._lock:
            self._issued += 1
        choice = {"index": 0, "message": message, "finish_reason": reason}
        about = {"id": f"chatcmpl-{self._issued}", "object": "chat.completion", "created": 1_700_000_000}
        return json.dumps({**about, "model": model, "choices": [choice], "usage": answer.usage}).encode()

    def _tool_call(self, wanted: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._issued += 1
        arguments = wanted["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call_id = wanted.get("id", f"call_{self._issued}")
        return {"id": call_id, "type": "function", "function": {"name": wanted["name"], "arguments": text}}


def served(monkeypatch: Any) -> Iterator[StubServer]:
    """A server that the environment points at, while a fixture of this body lasts."""
    stub = StubServer()
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    for name, value in stub.environment.items():
        monkeypatch.setenv(name, value)
    yield stub
    stub.close()


def _handler(stub: StubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body waits 40 ms for the acknowledgement of its headers

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            request = json.loads(self.rfile.read(length))
            answer = stub.answer(request, dict(self.headers))
            if answer.delay:
                time.sleep(answer.delay)
            if answer.drop:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self._send(answer.status, stub.body(answer, request.get("model", "")), answer.headers)

        def do_GET(self) -> None:
            self._send(200, json.dumps({"object": "list", "data": []}).encode(), {})

        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            try:
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client has given up waiting

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class gives it
            pass

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description="A server that answers from a JSON script.")
    parser.add_argument("script", type=Path)
    parser.add_argument("--port", type=int, default=8123)
    arguments = parser.parse_args()
    stub = StubServer(arguments.port)
    for model, answers in json.loads(arguments.script.read_text()).items():
        if isinstance(answers, dict):
            stub.variants(model, answers["variants"])
        else:
            stub.script(model, answers)
    print(f"OPENAI_API_BASE={stub.url}", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        stub.close()


if __name__ == "__main__":
    main()
