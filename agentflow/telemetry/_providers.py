"""Providers of OpenTelemetry's SDK that send spans and metrics over OTLP.

They never disturb a run: a collector that does not answer costs one line of the log.
"""

import logging
from collections.abc import Mapping, Sequence
from math import inf
from threading import Lock
from time import monotonic
from typing import Final, Protocol

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from agentflow._secrets import mask_text
from agentflow.telemetry._tracer import Tracer, tracer_of

_logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 30.0
"""Time without exports after one has failed."""
EXPORT_SECONDS: Final = 5.0
"""Time for one export, unless `OTEL_EXPORTER_OTLP_TIMEOUT` gives another."""
QUIET: Final = (
    "opentelemetry.exporter.otlp",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.metrics",
)


class _Reachability:
    """State of the collector, shared by the exporters of a process."""

    def __init__(self, address: str) -> None:
        self.until: float | None = None
        """Time at which it is tried again; `None`: the last export went well, or there was none."""
        self._address = address
        self._warned = False
        self._lock = Lock()

    @property
    def is_down(self) -> bool:
        """The last export failed a short time ago."""
        return self.until is not None and monotonic() < self.until

    def report(self, ok: bool) -> None:
        """Note the result of an export."""
        with self._lock:
            self.until = None if ok else monotonic() + RETRY_SECONDS
            if ok or self._warned:
                return
            self._warned = True
        _logger.warning(
            "no traces are sent: the collector at %s does not take them", mask_text(self._address)
        )


class _PatientSpanExporter(SpanExporter):
    def __init__(self, exporter: SpanExporter, reach: _Reachability) -> None:
        self._exporter = exporter
        self._reach = reach

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans; drop them while the collector does not answer."""
        if self._reach.is_down:
            return SpanExportResult.FAILURE
        result = self._exporter.export(spans)
        self._reach.report(result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        """End it."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return true: nothing is kept here."""
        return True


class _MetricsExporter(Protocol):
    def shutdown(self) -> None: ...


class Providers:
    """Providers of this process."""

    def __init__(self, address: str | None, service: str, variables: Mapping[str, str]) -> None:
        """:param address: address of the collector, before the paths of its signals; `None`: that of the variables.
        :param service: name of this program.
        """
        for name in QUIET:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        base = None if address is None else address.rstrip("/")
        named = base or variables.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "http://localhost:4318"
        self._reach = _Reachability(variables.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or named)
        seconds = None if variables.get("OTEL_EXPORTER_OTLP_TIMEOUT") else EXPORT_SECONDS
        resource_attributes = {} if variables.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: service}
        resource = Resource.create(resource_attributes)
        self._spans = SdkTracerProvider(resource=resource, shutdown_on_exit=False)
        if variables.get("OTEL_TRACES_EXPORTER", "otlp") != "none":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter(None if base is None else f"{base}/v1/traces", timeout=seconds)
            self._spans.add_span_processor(BatchSpanProcessor(_PatientSpanExporter(exporter, self._reach)))
        self._sent: _MetricsExporter | None = None
        self._meters: SdkMeterProvider | None = None
        if variables.get("OTEL_METRICS_EXPORTER", "otlp") != "none":
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

            self._sent = sent = OTLPMetricExporter(
                None if base is None else f"{base}/v1/metrics", timeout=seconds
            )
            # Exemplars cost a quarter of a measurement, and few collectors keep them.
            exemplars = None if variables.get("OTEL_METRICS_EXEMPLAR_FILTER") else AlwaysOffExemplarFilter()
            self._meters = SdkMeterProvider(
                [PeriodicExportingMetricReader(sent)],
                resource=resource,
                shutdown_on_exit=False,
                exemplar_filter=exemplars,
            )
        self.tracer: Tracer = tracer_of(self._spans, self._meters or metrics.NoOpMeterProvider())
        """Tracer of this process."""

    @property
    def unreachable(self) -> bool:
        """The collector did not answer the last time."""
        return self._reach.is_down

    def publish(self) -> None:
        """Make them the global ones, so that servers and clients of MCP use them, too."""
        trace.set_tracer_provider(self._spans)
        if self._meters is not None:
            metrics.set_meter_provider(self._meters)

    def close(self) -> None:
        """End them without sending what is queued."""
        self._reach.until = inf
        self._spans.shutdown()
        if self._sent is not None:
            self._sent.shutdown()
        if self._meters is not None:
            self._meters.shutdown()

    def flush(self) -> None:
        """Send everything that is queued."""
        self._spans.force_flush()
        if self._meters is not None and not self.unreachable:
            self._meters.force_flush()
