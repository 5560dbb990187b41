"""Sends finished rollouts as traces to the exporters that OpenTelemetry's environment variables name.

Spans are made from the record of a finished rollout, with the times in it. Without an exporter nothing of
OpenTelemetry is imported; no rollout waits for a collector.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.history import shown_text
from reward_kit.agent.base.redaction import hide, redact
from reward_kit.agent.base.types import UNJUDGED_STOPS
from reward_kit.agent.base.versions import install_line
from reward_kit.agent.rollout.outcome import REWARD_ERROR, total_usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    from reward_kit.agent.base.types import Message, ModelCall, ToolCall, Usage
    from reward_kit.agent.rollout.trace import Trace

PATIENCE = 5.0
"""Seconds at the end of a run to send what is left."""
QUEUE = 32768
"""Spans that may wait; OpenTelemetry's default of 2048 is too few if 500 rollouts end at once."""
QUEUE_VARIABLE = "OTEL_BSP_MAX_QUEUE_SIZE"
CONTENTS_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
WITH_CONTENTS = frozenset({"true", "1", "span_only", "span_and_event"})
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")

logger = logging.getLogger(__name__)


def open_telemetry(warn: Callable[[str], None]) -> Telemetry | None:
    """The sender of rollouts; None without an exporter, or with a warning if it is not set up right."""
    try:
        if names := exporter_names(os.environ):
            return Telemetry([_exporter(name) for name in names])
    except ImportError as error:
        warn(f"no spans are sent: {error.name or error} is not installed. {install_line('otel')}")
    except Exception as error:  # noqa: BLE001 - an exporter is foreign code, given a person's settings
        warn(f"no spans are sent: {redact(str(error))}")
    return None


def exporter_names(environment: Mapping[str, str]) -> list[str]:
    """The trace exporters that the standard variables ask for."""
    chosen = environment.get("OTEL_TRACES_EXPORTER", "").strip()
    if not chosen and (environment.get(ENDPOINTS[0]) or environment.get(ENDPOINTS[1])):
        chosen = "otlp"
    if not chosen or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    protocol = next((environment[key].strip() for key in PROTOCOLS if environment.get(key)), "http/protobuf")
    otlp = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    names = [name.strip() for name in chosen.split(",")]
    return [otlp if name == "otlp" else name for name in names if name not in ("", "none")]


def _exporter(name: str) -> SpanExporter:
    found = next(iter(entry_points(group="opentelemetry_traces_exporter", name=name)), None)
    if found is None:
        hint = install_line("otel") if name == "otlp_proto_http" else "it needs another package"
        raise LookupError(f"no exporter {name} is installed ({hint})")
    made: SpanExporter = found.load()()
    return made


class Telemetry:
    """Sends rollouts to ``exporters`` from background threads. ``record`` may be called from any thread."""

    def __init__(self, exporters: Sequence[SpanExporter]) -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._contents = os.environ.get(CONTENTS_VARIABLE, "").strip().lower() in WITH_CONTENTS
        resource = Resource.create()
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "reward-kit"}))
        self._ids: Any = _trace_ids()
        # not the global provider: traces of other libraries in the process are not ours to send
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        size = None if os.environ.get(QUEUE_VARIABLE) else QUEUE
        for exporter in exporters:
            self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=size))
        self._tracer = self._provider.get_tracer("reward_kit")
        self._delivery = _Delivery()
        self._lock = threading.Lock()
        logging.getLogger("opentelemetry").addHandler(self._delivery)

    def record(self, record: Trace) -> None:
        """Queue a finished rollout; the id of the trace is that of the rollout."""
        from opentelemetry import trace
        from opentelemetry.context import Context

        try:
            contents = self._contents  # messages, arguments and results
            rollout = _rollout(record, contents=contents)
            calls = [_chat(call, record.models, contents=contents) for call in record.model_calls]
            calls += [_tool(call, contents=contents) for call in record.tool_calls]
            with self._lock:
                self._ids.trace_id = int(record.id, 16)
                inside = trace.set_span_in_context(self._add(rollout, Context()), Context())
                for call in calls:
                    self._add(call, inside)
        except Exception as error:  # noqa: BLE001 - samplers are foreign code, and the rollout is saved already
            self._delivery.failed = True
            self._delivery.reason = str(error)

    def _add(self, data: Span, context: Any) -> Any:
        from opentelemetry.trace import SpanKind, Status, StatusCode

        start, end = (int(at * 1_000_000_000) for at in (data.started, data.started + data.seconds))
        kind = SpanKind.CLIENT if data.is_client else SpanKind.INTERNAL
        known = _known(data.attributes)
        span = self._tracer.start_span(data.name, context, kind=kind, attributes=known, start_time=start)
        if data.judgement is not None:
            span.add_event("gen_ai.evaluation.result", _known(data.judgement), timestamp=end)
        if data.error is not None:
            span.set_status(Status(StatusCode.ERROR, hide(data.error)))
        span.end(end)
        return span

    def close(self, warn: Callable[[str], None] | None = None) -> None:
        """Send the remaining spans within ``PATIENCE`` seconds; call ``warn`` if some were not delivered."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(PATIENCE)
        if not (late := closing.is_alive()):  # A late exporter's messages still need a handler.
            logging.getLogger("opentelemetry").removeHandler(self._delivery)
        if late or self._delivery.failed:
            reason = f": {redact(self._delivery.reason)}" if self._delivery.reason else ""
            (warn or logger.warning)(f"spans were not delivered to OpenTelemetry's collector{reason}")


def _known(attributes: Attributes) -> dict[str, Any]:
    known = {name: value for name, value in attributes.items() if value is not None}
    return {name: hide(value) if isinstance(value, str) else value for name, value in known.items()}


class _Delivery(logging.Handler):
    """Keeps the warnings of exporters from the terminal, and notices failed deliveries."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.failed = False
        self.reason = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.reason = record.getMessage().partition("\n")[0] or self.reason
        self.failed |= record.levelno >= logging.ERROR or "drop" in self.reason


def _trace_ids() -> IdGenerator:
    """A generator whose next traces have the id ``trace_id``."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class TraceIds(RandomIdGenerator):
        trace_id = 0

        def generate_trace_id(self) -> int:
            return self.trace_id

    return TraceIds()


Value = str | int | float | bool | list[str] | None
Attributes = dict[str, Value]

FAULTY_STOPS = frozenset({*UNJUDGED_STOPS, "agent_error", "timeout"})
PROVIDERS = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
"""Names of providers in the conventions that are not LiteLLM's."""


class Span(NamedTuple):
    """One span: ``started`` in Unix seconds, then its duration; ``error`` describes a failure.

    Attributes that are None are not known. ``judgement`` are those of an event at the end of the span, the
    result of an evaluation.
    """

    name: str
    started: float
    seconds: float
    attributes: Attributes
    error: str | None = None
    is_client: bool = False
    judgement: Attributes | None = None


def _rollout(record: Trace, *, contents: bool) -> Span:
    error, kind = record.error, REWARD_ERROR if record.error is not None else None
    if record.stop_reason in FAULTY_STOPS:
        error, kind = record.stop_detail or record.stop_reason, record.stop_reason
    own = ("eval_id", "row_id", "user", "steps", "turns", "stop_reason", "reward")
    attributes: Attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": record.agent,
        "gen_ai.conversation.id": record.id,
        **{f"reward_kit.{name}": getattr(record, name) for name in own},
        **{f"reward_kit.rollout.{name}": getattr(record, name) for name in ("index", "attempt", "seed")},
        "reward_kit.failure": record.failure["kind"] if record.failure else None,
        "reward_kit.cost": total_usage(record.usage.values()).known_cost,
        "error.type": kind,
        **(_provider_and_model(record.models["agent"]) if "agent" in record.models else {}),
        **(_usage(record.usage["agent"]) if "agent" in record.usage else {}),
        **(_conversation(record) if contents else {}),
    }
    judgement: Attributes | None = None
    if record.reward is not None:
        reason = (record.result or {}).get("reason")
        judgement = {
            "gen_ai.evaluation.name": "reward",
            "gen_ai.evaluation.score.value": record.reward,
            "gen_ai.evaluation.explanation": reason if contents and isinstance(reason, str) else None,
        }
    name = f"invoke_agent {record.agent}"
    return Span(name, record.started, record.seconds, attributes, error, judgement=judgement)


def _conversation(record: Trace) -> Attributes:
    opening = sum(message.get("role") != "system" for message in record.messages[: record.opening])
    messages = [{"role": message["role"], "parts": list(_parts(message))} for message in record.messages]
    system = [part for message in messages if message["role"] == "system" for part in message["parts"]]
    talk = [message for message in messages if message["role"] != "system"]
    return {
        "gen_ai.system_instructions": _json(system),
        "gen_ai.input.messages": _json(talk[:opening]),
        "gen_ai.output.messages": _json(talk[opening:]),
    }


def _chat(call: ModelCall, models: Mapping[str, str], *, contents: bool) -> Span:
    configured = models.get(call.role) or ""  # with its provider, which the name in a call may lack
    named = _provider_and_model(configured if configured.endswith(f"/{call.model}") else call.model)
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        **named,
        **{f"reward_kit.{name}": getattr(call, name) for name in ("role", "step", "turn")},
        "reward_kit.cached": call.cached or None,
        "error.type": None if call.error is None else "model_error",
    }
    if call.error is None:
        attributes |= _usage(call.usage) | {"reward_kit.cost": call.usage.known_cost}
        attributes["gen_ai.response.finish_reasons"] = [call.finish_reason]
    if contents and call.answer is not None:
        parts = [{"type": "text", "content": call.answer}]
        answer = {"role": "assistant", "parts": parts, "finish_reason": call.finish_reason}
        attributes["gen_ai.output.messages"] = _json([answer])
    seconds = 0.0 if call.cached else call.seconds  # those of the call that was made once
    name = f"chat {named['gen_ai.request.model']}"
    return Span(name, call.started + call.waited, seconds, attributes, call.error, is_client=True)


def _tool(call: ToolCall, *, contents: bool) -> Span:
    failure = None if call.status == "ok" else call.status
    attributes: Attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.call.id": call.id,
        "gen_ai.tool.type": "function",
        "reward_kit.tool.status": call.status,
        "reward_kit.tool.by": call.by,
        "reward_kit.tool.changed_rows": len(call.changes),
        "reward_kit.step": call.step,
        "reward_kit.turn": call.turn,
        "error.type": failure,
    }
    if contents:
        written = call.arguments if isinstance(call.arguments, str) else _json(call.arguments)
        attributes |= {"gen_ai.tool.call.arguments": written, "gen_ai.tool.call.result": call.content}
        failure = failure and call.content
    return Span(f"execute_tool {call.name}", call.started, call.seconds, attributes, failure)


def _provider_and_model(name: str) -> Attributes:
    """LiteLLM's ``provider/model`` taken apart; a name without a provider, or an address, is the model."""
    provider, slash, model = name.partition("/")
    if not slash or "://" in name:
        return {"gen_ai.request.model": name}
    return {"gen_ai.provider.name": PROVIDERS.get(provider, provider), "gen_ai.request.model": model}


def _usage(usage: Usage) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens or None,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens or None,
    }


def _parts(message: Message) -> Iterator[dict[str, Any]]:
    """The content in the form of the conventions: texts, tool calls, answers of tools."""
    content = shown_text(message.get("content"))
    if message["role"] == "tool":
        yield {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}
        return
    if content:
        yield {"type": "text", "content": content}
    for call in message.get("tool_calls") or ():
        yield {"type": "tool_call", "id": call["id"], **call["function"]}


def _json(value: list[Any] | dict[str, Any]) -> str:
    return json.dumps(value, default=str)
