"""What an OpenTelemetry collector receives of an evaluation: a real OTLP receiver, real commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from command import Finished
from flight_bundle import GOLD, Bundle, flight_bundle
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from seeded_players import AGENT, USER, write_players
from stub_server import Answer, StubServer, call

from reward_kit.agent.runs.rollout_record import RolloutRecord, load_rollout
from reward_kit.agent.telemetry import exporter_names

ERROR = 2
CANARY = "sk-canary-0123456789"


class Collector:
    """Receives OTLP over HTTP; ``delay`` keeps every request waiting."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.answer = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                collector.headers.append(dict(self.headers))
                self.send_response(collector.answer)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def trace(self, rollout_id: str) -> tuple[Any, list[Any]]:
        """The span of a rollout, and those in it by time."""
        spans = [span for span in self.spans if span.trace_id.hex() == rollout_id]
        (root,) = [span for span in spans if not span.parent_span_id]
        inside = [span for span in spans if span.parent_span_id == root.span_id]
        assert len(spans) == 1 + len(inside)
        return root, sorted(inside, key=lambda span: span.start_time_unix_nano)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def attributes(span: Any) -> dict[str, Any]:
    """Attributes as Python values."""
    found: dict[str, Any] = {}
    for item in span.attributes:
        kind = item.value.WhichOneof("value")
        value = getattr(item.value, kind)
        found[item.key] = [one.string_value for one in value.values] if kind == "array_value" else value
    return found


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    made = flight_bundle(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    return made


Command = Callable[..., Finished]


def agent_eval(*options: str, code: str = "", **environment: str) -> Finished:
    """The command in a process of its own; ``code`` runs at its end."""
    program = f"import sys\nfrom reward_kit.cli import main\nend = main()\n{code}\nsys.exit(end)"
    done = subprocess.run(
        [sys.executable, "-c", program, "agent-eval", "-d", "flight_task", "--eval-id", "mine", *options],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **environment},
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def records() -> list[RolloutRecord]:
    return [load_rollout(path) for path in Path("runs").glob("*/roll_*.json")]


def of_model(collector: Collector, stub: StubServer, bundle: Bundle, **environment: str) -> RolloutRecord:
    """One rollout of a model that calls a tool, another one in vain, and speaks."""
    bundle.rows({"id": "a", "n_rollouts": 1, "sim_user_prompt": None, "system_prompt": "Be brief."})
    stub.script(
        "gpt-4o-mini",
        [
            call("create_booking", flight_id=1, passenger="Alice"),
            call("pay_booking"),
            Answer(
                content="Booked.", usage={"prompt_tokens": 70, "completion_tokens": 3, "total_tokens": 73}
            ),
        ],
    )
    ran = agent_eval(
        "--model", "openai/gpt-4o-mini", **{"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, **environment}
    )
    assert ran.code == 0, ran.err
    (record,) = records()
    return record


def test_a_rollout_is_a_trace_of_its_model_calls_and_tool_calls(
    bundle: Bundle, collector: Collector, stub_llm: StubServer
) -> None:
    record = of_model(collector, stub_llm, bundle)
    root, inside = collector.trace(record.id)
    assert root.name == "invoke_agent tool-calling"
    told = attributes(root)
    assert told["gen_ai.operation.name"] == "invoke_agent"
    assert told["gen_ai.agent.name"] == "tool-calling"
    assert told["gen_ai.conversation.id"] == record.id
    assert (told["gen_ai.provider.name"], told["gen_ai.request.model"]) == ("openai", "gpt-4o-mini")
    assert (told["reward_kit.eval_id"], told["reward_kit.row_id"]) == ("mine", "a")
    assert (told["reward_kit.rollout.index"], told["reward_kit.reward"]) == (0, record.reward)
    assert (told["reward_kit.stop_reason"], told["reward_kit.failure"]) == (
        record.stop_reason,
        record.failure["kind"] if record.failure else None,
    )
    assert told["gen_ai.usage.input_tokens"] == 270
    assert [span.name for span in inside] == [
        "chat gpt-4o-mini",
        "execute_tool create_booking",
        "chat gpt-4o-mini",
        "execute_tool pay_booking",
        "chat gpt-4o-mini",
    ]
    for span in inside:
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano + 5_000_000
    (event,) = root.events
    assert event.name == "gen_ai.evaluation.result"
    assert attributes(event)["gen_ai.evaluation.score.value"] == record.reward
    assert root.status.code != ERROR


def test_what_is_told_of_a_model_call_and_of_a_tool_call(
    bundle: Bundle, collector: Collector, stub_llm: StubServer
) -> None:
    record = of_model(collector, stub_llm, bundle)
    _, inside = collector.trace(record.id)
    chat = attributes(inside[4])
    assert chat["gen_ai.operation.name"] == "chat"
    assert (chat["gen_ai.provider.name"], chat["gen_ai.request.model"]) == ("openai", "gpt-4o-mini")
    assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) == (70, 3)
    assert chat["gen_ai.response.finish_reasons"] == ["stop"]
    assert attributes(inside[0])["gen_ai.response.finish_reasons"] == ["tool_calls"]
    tool = attributes(inside[1])
    assert tool["gen_ai.operation.name"] == "execute_tool"
    assert tool["gen_ai.tool.name"] == "create_booking"
    assert tool["gen_ai.tool.call.id"] == record.tool_calls[0].id
    assert (tool["reward_kit.tool.status"], tool["reward_kit.tool.changed_rows"]) == ("ok", 1)
    assert inside[1].status.code != ERROR
    assert attributes(inside[3])["error.type"] == record.tool_calls[1].status == "invalid_arguments"
    assert inside[3].status.code == ERROR


def test_a_model_call_that_failed_for_good_is_told_with_its_reason(
    bundle: Bundle, collector: Collector, stub_llm: StubServer
) -> None:
    bundle.rows({"id": "a", "n_rollouts": 1, "sim_user_prompt": None})
    too_long = Answer(status=400, code="context_length_exceeded", error="too many tokens")
    stub_llm.script("gpt-4o-mini", [call("create_booking", flight_id=1, passenger="Alice"), too_long])
    agent_eval("--model", "openai/gpt-4o-mini", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    (record,) = records()
    assert [one.error for one in record.model_calls] == [None, record.stop_detail]
    assert record.usage["agent"].calls == 1
    _, inside = collector.trace(record.id)
    failed = inside[-1]
    assert failed.name == "chat gpt-4o-mini"
    assert failed.status.code == ERROR
    assert "too many tokens" in failed.status.message
    told = attributes(failed)
    assert told["error.type"] == "model_error"
    assert not {name for name in told if "usage" in name or "finish" in name or "cost" in name}


def test_nothing_that_was_said_leaves_unless_it_is_asked_for(
    bundle: Bundle, collector: Collector, stub_llm: StubServer
) -> None:
    of_model(collector, stub_llm, bundle)
    everything = b"".join(request.SerializeToString() for request in collector.requests)
    for said in (b"Booked.", b"Alice", b"Be brief.", b"SFO", b"sk-test"):
        assert said not in everything


def test_contents_in_the_form_of_the_conventions_when_asked_for(
    bundle: Bundle, collector: Collector, stub_llm: StubServer
) -> None:
    record = of_model(collector, stub_llm, bundle, OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="true")
    root, inside = collector.trace(record.id)
    told = attributes(root)
    (instruction,) = json.loads(told["gen_ai.system_instructions"])
    assert instruction["type"] == "text"
    assert "Be brief." in instruction["content"]
    (question,) = json.loads(told["gen_ai.input.messages"])
    assert (question["role"], question["parts"][0]["type"]) == ("user", "text")
    answers = json.loads(told["gen_ai.output.messages"])
    assert [message["role"] for message in answers] == ["assistant", "tool", "assistant", "tool", "assistant"]
    (made,) = answers[0]["parts"]
    assert (made["type"], made["name"]) == ("tool_call", "create_booking")
    (given,) = answers[1]["parts"]
    assert (given["type"], given["id"]) == ("tool_call_response", made["id"])
    assert answers[4]["parts"] == [{"type": "text", "content": "Booked."}]
    tool = attributes(inside[1])
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"flight_id": 1, "passenger": "Alice"}
    assert tool["gen_ai.tool.call.result"] == record.tool_calls[0].content


def test_a_system_message_of_the_row_is_no_part_of_the_conversation(
    bundle: Bundle, collector: Collector, stub_llm: StubServer
) -> None:
    opening = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    bundle.rows({"id": "a", "n_rollouts": 1, "sim_user_prompt": None, "initial_messages": opening})
    stub_llm.script("gpt-4o-mini", ["Hello!"])
    where = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    told = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"}
    assert agent_eval("--model", "openai/gpt-4o-mini", **where, **told).code == 0
    (record,) = records()
    root = attributes(collector.trace(record.id)[0])
    roles = [
        [one["role"] for one in json.loads(root[f"gen_ai.{way}.messages"])] for way in ("input", "output")
    ]
    assert roles == [["user"], ["assistant"]]


def test_a_rollout_that_could_not_be_played_is_an_error(
    bundle: Bundle, collector: Collector, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("async def agent(rollout):\n    raise ValueError('no idea')\n")
    bundle.rows({"id": "a", "n_rollouts": 1, "sim_user_prompt": None})
    agent_eval("--agent", "broken:agent", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    (record,) = records()
    root, inside = collector.trace(record.id)
    assert inside == []
    assert attributes(root)["error.type"] == record.stop_reason == "agent_error"
    assert (root.status.code, root.status.message) == (ERROR, record.stop_detail)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_every_rollout_of_a_large_run_arrives_once(
    bundle: Bundle, collector: Collector, tmp_path: Path, workers: str
) -> None:
    write_players(tmp_path)
    bundle.rows({"id": "a"}, {"id": "b"})
    ran = agent_eval(
        *("--agent", AGENT, "--user", USER, "--n-rollouts", "100", "--workers", workers),
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_EXPORTER_OTLP_HEADERS=f"api-key={CANARY}",
        OTEL_RESOURCE_ATTRIBUTES="deployment=test",
    )
    assert ran.code == 0, ran.err
    assert len(collector.spans) == sum(1 + len(one.tool_calls) + len(one.model_calls) for one in records())
    assert {span.trace_id.hex() for span in collector.spans} == {record.id for record in records()}
    assert {headers["api-key"] for headers in collector.headers} == {CANARY}
    assert CANARY not in ran.out + ran.err
    for path in Path("runs").rglob("*"):
        assert path.is_dir() or CANARY.encode() not in path.read_bytes()
    for request in collector.requests:
        resource = attributes(request.resource_spans[0].resource)
        assert (resource["service.name"], resource["deployment"]) == ("reward-kit", "test")


def test_a_collector_that_is_not_there_hinders_nothing(bundle: Bundle) -> None:
    bundle.rows({"id": "a", "actions": GOLD, "n_rollouts": 3})
    ran = agent_eval("--agent", "gold", OTEL_EXPORTER_OTLP_ENDPOINT="http://user:hunter22@127.0.0.1:9")
    assert ran.code == 0, ran.err
    told = [line for line in ran.err.splitlines() if "spans" in line]
    assert len(told) == 1
    assert "spans were not delivered to OpenTelemetry's collector" in told[0]
    assert "Traceback" not in ran.err
    assert "hunter22" not in ran.err


def test_a_collector_that_refuses_is_told(bundle: Bundle, collector: Collector) -> None:
    collector.answer = 401
    bundle.rows({"id": "a", "actions": GOLD, "n_rollouts": 1})
    ran = agent_eval("--agent", "gold", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    assert ran.code == 0
    assert re.search(r"spans were not delivered .*401", " ".join(ran.err.split()))


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "no exporter zipkin is installed"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "no exporter otlp_proto_grpc is installed",
        ),
    ],
)
def test_an_exporter_that_is_not_installed_is_told(
    bundle: Bundle, environment: dict[str, str], said: str
) -> None:
    bundle.rows({"id": "a", "actions": GOLD, "n_rollouts": 1})
    ran = agent_eval("--agent", "gold", **environment)
    assert ran.code == 0
    assert f"no spans are sent: {said}" in ran.err


def test_without_the_extra_it_is_named(bundle: Bundle, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "opentelemetry" / "sdk"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError(name='opentelemetry.sdk')\n")
    (tmp_path / "hidden" / "sitecustomize.py").write_text(
        "import opentelemetry, os\n"
        "opentelemetry.__path__.insert(0, os.path.dirname(__file__) + '/opentelemetry')\n"
    )
    bundle.rows({"id": "a", "actions": GOLD, "n_rollouts": 1})
    ran = agent_eval(
        *("--agent", "gold"),
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        PYTHONPATH=str(tmp_path / "hidden"),
    )
    assert ran.code == 0
    assert "no spans are sent: opentelemetry.sdk is not installed. pip install 'reward-kit[otel]'" in ran.err


LOADED = "print('LOADED', sorted(name for name in sys.modules if name.startswith('opentelemetry.sdk')))"


def test_nothing_of_it_is_imported_where_no_exporter_is_configured(bundle: Bundle) -> None:
    bundle.rows({"id": "a", "actions": GOLD, "n_rollouts": 1})
    code = f"{LOADED}; print('API', 'opentelemetry' in sys.modules)"
    ran = agent_eval("--agent", "gold", code=code)
    assert "LOADED []\nAPI False" in ran.out, ran.err
    ran = agent_eval("--agent", "gold", "--n-rollouts", "2", code=LOADED, OTEL_TRACES_EXPORTER="console")
    assert "LOADED ['opentelemetry.sdk" in ran.out
    assert '"invoke_agent gold"' in ran.out


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, []),
        ({"OTEL_SERVICE_NAME": "mine"}, []),
        ({"OTEL_TRACES_EXPORTER": "none"}, []),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, []),
        ({"OTEL_TRACES_EXPORTER": ""}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "TRUE"}, []),
        ({"OTEL_TRACES_EXPORTER": "otlp, console"}, ["otlp_proto_http", "console"]),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["otlp_proto_grpc"]),
    ],
)
def test_which_exporters_the_environment_asks_for(environment: dict[str, str], names: list[str]) -> None:
    assert exporter_names(environment) == names
