"""The spans of evaluations, as a real OTLP receiver gets them."""

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from command import Finished, new_python, run_command, run_patched
from flight_bundle import GOLD, Bundle
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from seeded_players import AGENT, USER, write_players
from stub_server import Answer, StubServer, call

from reward_kit.agent import Usage, agent_eval
from reward_kit.agent.evaluation.telemetry import exporter_names
from reward_kit.agent.rollout.trace import Trace

ERROR = 2
CANARY = "sk-canary-0123456789"
PATIENCE = "reward_kit.agent.evaluation.telemetry.PATIENCE"
EVALUATION = ("agent-eval", "-d", "flight_task", "--eval-id", "mine")
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
CONTENTS = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


class Collector:
    """Receives OTLP over HTTP."""

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
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

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
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    made = Collector()
    monkeypatch.setenv(ENDPOINT, made.url)
    yield made
    made.close()


def play(bundle: Bundle, *, agent: Any = None, **row: Any) -> Trace:
    """The record of one rollout of the stub model, or of ``agent``."""
    bundle.rows({"id": "a", "n_rollouts": 1, "sim_user_prompt": None, **row})
    chosen = {"agent": agent} if agent else {"model": "openai/gpt-4o-mini"}
    (record,) = agent_eval(bundle.dataset, eval_id="mine", **chosen).records()
    return record


def command(*options: str, **environment: str) -> Finished:
    """The command in a process of its own."""
    return run_command(*EVALUATION, *options, env={**os.environ, **environment})


@pytest.fixture
def scripted(stub_llm: StubServer) -> None:
    """A model that calls a tool, another one in vain, and speaks."""
    usage = {"prompt_tokens": 70, "completion_tokens": 3, "total_tokens": 73}
    calls = [call("create_booking", flight_id=1, passenger="Alice"), call("pay_booking")]
    stub_llm.script("gpt-4o-mini", [*calls, Answer(content="Booked.", usage=usage)])


@pytest.mark.usefixtures("scripted")
def test_a_rollout_is_a_trace_of_its_model_calls_and_tool_calls(bundle: Bundle, collector: Collector) -> None:
    record = play(bundle, system_prompt="Be brief.")
    root, inside = collector.trace(record.id)
    assert root.name == "invoke_agent tool-calling"
    assert root.status.code != ERROR
    expected = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "tool-calling",
        "gen_ai.conversation.id": record.id,
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o-mini",
        "gen_ai.usage.input_tokens": 270,
        "reward_kit.eval_id": "mine",
        "reward_kit.row_id": "a",
        "reward_kit.rollout.index": 0,
        "reward_kit.reward": record.reward,
        "reward_kit.stop_reason": record.stop_reason,
        "reward_kit.failure": record.failure["kind"] if record.failure else None,
    }
    assert expected.items() <= attributes(root).items()
    chat, tools = "chat gpt-4o-mini", ("execute_tool create_booking", "execute_tool pay_booking")
    assert [span.name for span in inside] == [chat, tools[0], chat, tools[1], chat]
    for span in inside:
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano + 5_000_000
    (event,) = root.events
    assert event.name == "gen_ai.evaluation.result"
    assert attributes(event)["gen_ai.evaluation.score.value"] == record.reward
    chat, tool, refused = (attributes(inside[place]) for place in (4, 1, 3))
    assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) == (70, 3)
    assert chat["gen_ai.response.finish_reasons"] == ["stop"]
    assert tool["gen_ai.tool.name"] == "create_booking"
    assert tool["gen_ai.tool.call.id"] == record.tool_calls[0].id
    assert (tool["reward_kit.tool.status"], tool["reward_kit.tool.changed_rows"]) == ("ok", 1)
    assert refused["error.type"] == "invalid_arguments"
    assert [inside[place].status.code == ERROR for place in (1, 3)] == [False, True]
    everything = b"".join(request.SerializeToString() for request in collector.requests)
    for text in (b"Booked.", b"Alice", b"Be brief.", b"SFO", b"sk-test"):
        assert text not in everything


def test_what_has_no_price_has_no_cost(bundle: Bundle, collector: Collector, stub_llm: StubServer) -> None:
    stub_llm.script("gpt-4o-mini", [Answer(content="Hi", usage={})])
    root, inside = collector.trace(play(bundle).id)
    assert not [span for span in (root, *inside) if "reward_kit.cost" in attributes(span)]


def test_the_address_of_an_agent_is_no_provider(bundle: Bundle, collector: Collector) -> None:
    """It stands for the model of an agent behind HTTP that names none."""
    address = "http://127.0.0.1:9000/agent"

    async def agent(rollout: Any) -> str:
        rollout.count_usage(Usage(calls=1), model=address)
        return "Hi"

    _, (span,) = collector.trace(play(bundle, agent=agent).id)
    told = attributes(span)
    assert (span.name, told["gen_ai.request.model"]) == (f"chat {address}", address)
    assert "gen_ai.provider.name" not in told


@pytest.mark.usefixtures("scripted")
def test_contents_are_sent_in_the_form_of_the_conventions_if_asked_for(
    bundle: Bundle, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONTENTS, "true")
    opening = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    record = play(bundle, initial_messages=opening)
    root, inside = collector.trace(record.id)
    sent = attributes(root)
    assert {"type": "text", "content": "Be kind."} in json.loads(sent["gen_ai.system_instructions"])
    (question,) = json.loads(sent["gen_ai.input.messages"])
    assert question == {"role": "user", "parts": [{"type": "text", "content": "Hello"}]}
    answers = json.loads(sent["gen_ai.output.messages"])
    assert [message["role"] for message in answers] == ["assistant", "tool", "assistant", "tool", "assistant"]
    (made,), (given,) = answers[0]["parts"], answers[1]["parts"]
    assert (made["type"], made["name"]) == ("tool_call", "create_booking")
    assert (given["type"], given["id"]) == ("tool_call_response", made["id"])
    tool = attributes(inside[1])
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"flight_id": 1, "passenger": "Alice"}
    assert tool["gen_ai.tool.call.result"] == record.tool_calls[0].content


def test_a_failed_model_call_has_no_usage(bundle: Bundle, collector: Collector, stub_llm: Any) -> None:
    too_long = Answer(status=400, code="context_length_exceeded", error="too many tokens")
    stub_llm.script("gpt-4o-mini", [call("create_booking", flight_id=1, passenger="Alice"), too_long])
    record = play(bundle)
    assert [one.error for one in record.model_calls] == [None, record.stop_detail]
    failed = collector.trace(record.id)[1][-1]
    assert (failed.name, failed.status.code) == ("chat gpt-4o-mini", ERROR)
    assert "too many tokens" in failed.status.message
    assert attributes(failed)["error.type"] == "model_error"
    assert not {name for name in attributes(failed) if "usage" in name or "finish" in name or "cost" in name}


@pytest.mark.parametrize("workers", [[], ["--workers", "2"]])
def test_every_rollout_arrives_once_and_no_key_is_shown(
    bundle: Bundle, collector: Collector, tmp_path: Path, workers: list[str]
) -> None:
    write_players(tmp_path)
    bundle.rows({"id": "a"}, {"id": "b"})
    ran = command(
        *("--agent", AGENT, "--user", USER, "--n-rollouts", "10", *workers),
        OTEL_EXPORTER_OTLP_HEADERS=f"api-key={CANARY}",
        OTEL_RESOURCE_ATTRIBUTES="deployment=test",
    )
    assert ran.code == 0, ran.err
    records = list(agent_eval(resume="mine").records())
    assert len(collector.spans) == sum(1 + len(one.tool_calls) + len(one.model_calls) for one in records)
    assert {span.trace_id.hex() for span in collector.spans} == {record.id for record in records}
    assert {headers["api-key"] for headers in collector.headers} == {CANARY}
    assert CANARY not in ran.out + ran.err
    for path in Path("runs").rglob("*"):
        assert path.is_dir() or CANARY.encode() not in path.read_bytes()
    for request in collector.requests:
        resource = attributes(request.resource_spans[0].resource)
        assert (resource["service.name"], resource["deployment"]) == ("reward-kit", "test")


def test_a_collector_that_is_away_or_refuses_is_one_warning(bundle: Bundle, collector: Collector) -> None:
    bundle.rows({"id": "a", "actions": GOLD, "n_rollouts": 3})
    collector.answer = 401
    away = "http://user:hunter22@127.0.0.1:9"
    for url, reason, patience in ((away, "", 1.0), (away, "", 0.0), (collector.url, "401", 5.0)):
        arguments = (*EVALUATION, "--agent", "gold", "--eval-id", f"mine{reason}{patience}")
        ran = run_patched({PATIENCE: patience}, *arguments, env={**os.environ, ENDPOINT: url})
        assert ran.code == 0, ran.err
        (warning,) = [line for line in ran.err.splitlines() if "spans" in line]
        assert "spans were not delivered to OpenTelemetry's collector" in warning
        assert reason in ran.err
        assert "Traceback" not in ran.err
        assert "hunter22" not in ran.err


def test_without_an_exporter_nothing_is_imported_a_missing_one_named(bundle: Bundle, tmp_path: Path) -> None:
    bundle.rows({"id": "a", "actions": GOLD, "n_rollouts": 1})
    looks = "import sys\ndef agent(message):\n    return str('opentelemetry' in sys.modules)\n"
    Path("looks.py").write_text(looks)
    looked = new_python("-m", "reward_kit", *EVALUATION, "--agent", "looks:agent", "--no-sim-user")
    assert looked.code == 0, looked.err
    (record,) = agent_eval(resume="mine").records()
    assert record.messages[-1]["content"] == "False"
    hidden = tmp_path / "hidden" / "opentelemetry" / "sdk"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError(name='opentelemetry.sdk')\n")
    (tmp_path / "hidden" / "sitecustomize.py").write_text(
        "import opentelemetry, os\n"
        "opentelemetry.__path__.insert(0, os.path.dirname(__file__) + '/opentelemetry')\n"
    )
    where = {ENDPOINT: "http://127.0.0.1:9", "PYTHONPATH": str(tmp_path / "hidden")}
    ran = command("--agent", "gold", "--eval-id", "other", **where)
    assert ran.code == 0
    assert "no spans are sent: opentelemetry.sdk is not installed. pip install 'opentelemetry-" in ran.err
    ran = command("--agent", "gold", "--eval-id", "third", OTEL_TRACES_EXPORTER="zipkin")
    assert "no spans are sent: no exporter zipkin is installed" in ran.err


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_exporter_that_does_not_exist_is_one_warning_of_the_run(bundle: Bundle, workers: str) -> None:
    bundle.rows({"id": "a", "actions": GOLD, "n_rollouts": 4})
    ran = command("--agent", "gold", "--workers", workers, OTEL_TRACES_EXPORTER="zipkin")
    (warning,) = [line for line in ran.error.splitlines() if "spans" in line]
    assert warning.startswith("warning: no spans are sent: no exporter zipkin is installed")


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, []),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, []),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "TRUE"}, []),
        ({"OTEL_TRACES_EXPORTER": "otlp, console"}, ["otlp_proto_http", "console"]),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["otlp_proto_grpc"]),
    ],
)
def test_which_exporters_the_environment_asks_for(environment: dict[str, str], names: list[str]) -> None:
    assert exporter_names(environment) == names
