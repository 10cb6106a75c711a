"""Spans and metrics of a block, in memory."""

from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentflow.telemetry import tracing_to


class Collected:
    """The spans and metrics that were emitted."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.spans = TracerProvider(shutdown_on_exit=False)
        self.spans.add_span_processor(SimpleSpanProcessor(self.exporter))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        """All spans, in the order of their ends."""
        return self.exporter.get_finished_spans()

    def of(self, operation: str) -> list[ReadableSpan]:
        """Return the spans of an operation."""
        return [span for span in self.all if attributes(span)["gen_ai.operation.name"] == operation]

    def metrics(self) -> dict[str, Metric]:
        """Return the metrics by name."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def attributes(span: ReadableSpan) -> dict[str, object]:
    """Return the attributes of a span."""
    return dict(span.attributes or {})


def trace_of(span: ReadableSpan) -> str:
    """Return the id of a span's trace."""
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


@contextmanager
def collected() -> Generator[Collected]:
    """Collect what is emitted in the block."""
    found = Collected()
    try:
        with tracing_to(found.spans, found.meters):
            yield found
    finally:
        found.spans.shutdown()
        found.meters.shutdown()
