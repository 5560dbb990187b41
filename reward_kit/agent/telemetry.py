"""Sending finished rollouts to where OpenTelemetry's environment variables say, if they say so.

Spans are made from the record of a rollout that is over, with the times that are in it: nothing is measured
or imported while no exporter is configured, and nothing waits for a collector while rollouts run.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from reward_kit.agent.redaction import redact
from reward_kit.agent.reports.spans import SpanData, spans_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    from reward_kit.agent.runs.rollout_record import RolloutRecord

PATIENCE = 5.0
"""Seconds at the end of a run for what is not sent yet."""
SHORT_PATIENCE = 1.5
"""The same where the collector has never answered."""
QUEUE = 32768
"""Spans that may wait: OpenTelemetry's 2048 are fewer than five hundred rollouts that end at once have."""
QUEUE_VARIABLE = "OTEL_BSP_MAX_QUEUE_SIZE"
CONTENTS_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
WITH_CONTENTS = frozenset({"true", "1", "span_only", "span_and_event"})
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
GROUP = "opentelemetry_traces_exporter"
INSTALL = "pip install 'reward-kit[otel]'"

logger = logging.getLogger(__name__)


class TelemetryError(Exception):
    """The exporter that the environment names cannot be had."""


def open_telemetry() -> Telemetry | None:
    """What sends rollouts away, or None where no exporter is configured.

    A faulty configuration is logged, no more: watching an evaluation never hinders it.
    """
    names = exporter_names(os.environ)
    if not names:
        return None
    try:
        return Telemetry([_exporter(name) for name in names])
    except ImportError as error:
        logger.warning("no spans are sent: %s is not installed. %s", error.name or error, INSTALL)
    except TelemetryError as error:
        logger.warning("no spans are sent: %s", error)
    except Exception as error:  # noqa: BLE001 - an exporter's own code, fed with a person's settings
        logger.warning("no spans are sent: %s", redact(str(error)))
    return None


def exporter_names(environment: Mapping[str, str]) -> list[str]:
    """The exporters of traces that the standard variables ask for: none, unless one of them is set."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    chosen = environment.get("OTEL_TRACES_EXPORTER", "")
    if not chosen.strip():
        chosen = "otlp" if any(environment.get(name) for name in ENDPOINTS) else "none"
    names = [name.strip() for name in chosen.split(",")]
    return [_full_name(name, environment) for name in names if name and name != "none"]


def _full_name(name: str, environment: Mapping[str, str]) -> str:
    if name != "otlp":
        return name
    protocol = next((environment[key] for key in PROTOCOLS if environment.get(key)), "http/protobuf")
    return "otlp_proto_grpc" if protocol.strip() == "grpc" else "otlp_proto_http"


def _exporter(name: str) -> SpanExporter:
    from importlib.metadata import entry_points

    found = next(iter(entry_points(group=GROUP, name=name)), None)
    if found is None:
        hint = INSTALL if name == "otlp_proto_http" else "it needs a package of its own"
        raise TelemetryError(f"no exporter {name} is installed ({hint})")
    made: SpanExporter = found.load()()
    return made


class Telemetry:
    """Sends rollouts to ``exporters``, from a thread of its own. ``record`` may be called from any thread."""

    def __init__(self, exporters: Sequence[SpanExporter]) -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._contents = os.environ.get(CONTENTS_VARIABLE, "").strip().lower() in WITH_CONTENTS
        resource = Resource.create()
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "reward-kit"}))
        self._ids = _make_ids()
        # Not the global provider: what other libraries of the process trace is not ours to send.
        provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self._delivery = _Delivery()
        size = None if os.environ.get(QUEUE_VARIABLE) else QUEUE
        self._processors = [
            BatchSpanProcessor(self._delivery.counted(exporter), max_queue_size=size)
            for exporter in exporters
        ]
        for processor in self._processors:
            provider.add_span_processor(processor)
        self._tracer = provider.get_tracer("reward_kit")
        self._lock = threading.Lock()
        logging.getLogger("opentelemetry").addHandler(self._delivery)

    def record(self, record: RolloutRecord) -> None:
        """Hand over a finished rollout; the trace has the rollout's id."""
        try:
            self._send(record)
        except Exception as error:  # noqa: BLE001 - samplers and the like are foreign, and the rollout is saved
            self._delivery.failed = True
            self._delivery.reason = str(error)

    def _send(self, record: RolloutRecord) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context

        rollout, *calls = spans_of(record, contents=self._contents)
        with self._lock:
            self._ids.trace_id = _trace_id(record.id)
            root = self._start(rollout, Context())
            inside = trace.set_span_in_context(root, Context())
            for call in calls:
                self._start(call, inside).end(call.ended)
            root.end(rollout.ended)

    def _start(self, data: SpanData, context: Any) -> Any:
        from opentelemetry.trace import SpanKind, Status, StatusCode

        kind = SpanKind.CLIENT if data.kind == "client" else SpanKind.INTERNAL
        span = self._tracer.start_span(
            data.name, context=context, kind=kind, attributes=data.attributes, start_time=data.started
        )
        for name, attributes in data.events:
            span.add_event(name, attributes, timestamp=data.ended)
        if data.error is not None:
            span.set_status(Status(StatusCode.ERROR, data.error))
        return span

    def close(self, warn: Callable[[str], None] | None = None) -> None:
        """Send what is left, for ``PATIENCE`` seconds at most; ``warn`` is told if not all was delivered."""
        warn = warn or logger.warning
        closing = [threading.Thread(target=one.shutdown, daemon=True) for one in self._processors]
        for thread in closing:
            thread.start()
        begun = time.monotonic()
        while any(thread.is_alive() for thread in closing):
            time.sleep(0.01)
            patience = SHORT_PATIENCE if self._delivery.in_vain else PATIENCE
            if time.monotonic() - begun > patience:
                break
        logging.getLogger("opentelemetry").removeHandler(self._delivery)
        if any(thread.is_alive() for thread in closing) or self._delivery.failed:
            reason = f": {redact(self._delivery.reason)}" if self._delivery.reason else ""
            warn(f"spans were not delivered to OpenTelemetry's collector{reason}")


class _Delivery(logging.Handler):
    """Notices what exporters could not deliver, and keeps what they say of it from the terminal."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.failed = False
        self.delivered = False
        self.reason = ""

    @property
    def in_vain(self) -> bool:
        """Whether there was trouble and nothing but trouble."""
        return bool(self.reason) and not self.delivered

    def emit(self, record: logging.LogRecord) -> None:
        self.reason = record.getMessage().splitlines()[0] if record.getMessage() else self.reason
        self.failed |= "dropping" in self.reason

    def counted(self, exporter: SpanExporter) -> SpanExporter:
        from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

        delivery = self

        class Counted(SpanExporter):
            def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
                result = exporter.export(spans)
                if result is SpanExportResult.SUCCESS:
                    delivery.delivered = True
                else:
                    delivery.failed = True
                return result

            def shutdown(self) -> None:
                exporter.shutdown()

        return Counted()


def _make_ids() -> Any:
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):
        """Gives the trace of a rollout the rollout's id."""

        trace_id: int | None = None

        def generate_trace_id(self) -> int:
            return self.trace_id or super().generate_trace_id()

    return Ids()


def _trace_id(rollout_id: str) -> int | None:
    """The id of a rollout as that of a trace: both are 32 hexadecimal digits."""
    try:
        return int(rollout_id, 16) % (1 << 128) or None
    except ValueError:
        return None
