"""Spans and metrics with the providers of OpenTelemetry. Loaded only where there is one."""

import os
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from enum import StrEnum
from time import perf_counter
from types import TracebackType
from typing import Final, Self
from weakref import WeakSet

import msgspec
from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, MeterProvider, NoOpMeterProvider, Observation
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    NoOpTracerProvider,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TracerProvider,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from agentflow._secrets import mask_text
from agentflow._typeguards import is_list_or_tuple, is_mapping
from agentflow.telemetry import _conventions as names
from agentflow.telemetry._spans import Operation, QueueSource, Value

MAX_NAME_CHARS: Final = 200
"""Longest text of an attribute that is no content."""
MAX_TEXT_CHARS: Final = 16_384
"""Longest text inside content."""
MAX_CONTENT_CHARS: Final = 262_144
"""Longest content; beyond it, each of its texts is cut to `MAX_NAME_CHARS`."""
_CAPTURED: Final = {"true", "1", "span_only", "span_and_event"}
_SILENT: Final = contexts.create_key("agentflow-silent")
_MARKS: Final = contexts.create_key("agentflow-marks")
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_TRACE_HEADERS: Final = ("traceparent", "tracestate")

Ids = tuple[int | None, int | None]
"""Ids of the next trace and span; `None`: random ones."""
_NEXT_IDS: ContextVar[Ids] = ContextVar("agentflow_next_ids", default=(None, None))
"""Ids of the span that begins now."""


class Tracer:
    """Makes spans and metrics with the providers of this process."""

    def __init__(self, spans: TracerProvider, meters: MeterProvider) -> None:
        self.spans = spans.get_tracer(names.SCOPE)
        """Tracer of OpenTelemetry."""
        self.content = os.environ.get(names.CAPTURE_CONTENT, "").strip().lower() in _CAPTURED
        """Spans get content."""
        self._measures = not isinstance(meters, NoOpMeterProvider)
        meter = meters.get_meter(names.SCOPE)
        self._queues: dict[str, WeakSet[QueueSource]] = {}
        self._histograms = {
            name: meter.create_histogram(
                name, "s", "Duration.", explicit_bucket_boundaries_advisory=names.SECONDS
            )
            for name in dict.fromkeys(names.DURATIONS.values())
        } | {
            name: meter.create_histogram(
                name, "{token}", "Tokens of an operation.", explicit_bucket_boundaries_advisory=names.TOKENS
            )
            for name in names.TOKENS_OF
        }
        meter.create_observable_gauge(
            names.QUEUE_LENGTH, [self._lengths], "{request}", "Requests that wait for their turn."
        )

    def operation(
        self,
        operation: str,
        target: str,
        attributes: Mapping[str, Value | None],
        *,
        client: bool = False,
        ids: Ids | None = None,
        link: Operation | None = None,
        unfinished: bool = False,
    ) -> Operation:
        """Return an operation.

        :param ids: ids of a new trace and its first span; `None`: a child of the current span.
        :param link: operation that a new trace is linked to.
        :param unfinished: emit nothing unless `finish` is called.
        """
        all_attributes = {names.OPERATION_NAME: operation, **attributes}
        return _LiveOperation(self, operation, target, all_attributes, client, ids, link, unfinished)

    def current(self) -> Context:
        """Return the current context."""
        return contexts.get_current()

    @contextmanager
    def attached(self, context: Context) -> Generator[None]:
        """Make a context the current one."""
        token = contexts.attach(context)
        try:
            yield
        finally:
            contexts.detach(token)

    def marked(self, marks: Mapping[str, str]) -> AbstractContextManager[None]:
        """Add attributes to the spans of a block."""
        now = contexts.get_current()
        return self.attached(contexts.set_value(_MARKS, {**_marks(now), **marks}, now))

    def continued(self, headers: Mapping[str, str]) -> AbstractContextManager[None]:
        """Continue the trace of another program in a block."""
        lower = {name.lower(): value for name, value in headers.items() if name.lower() in _TRACE_HEADERS}
        return self.attached(_PROPAGATOR.extract(lower))

    def is_continued(self) -> bool:
        """Return true if the current span is that of another program."""
        return trace.get_current_span().get_span_context().is_remote

    def silent(self) -> AbstractContextManager[None]:
        """Emit nothing in a block, here and in servers that it calls: the trace counts as not sampled there."""
        now = trace.get_current_span().get_span_context()
        ids = (now.trace_id, now.span_id) if now.is_valid else (1, 1)
        unsampled = NonRecordingSpan(SpanContext(*ids, is_remote=False, trace_flags=TraceFlags(0)))
        return self.attached(contexts.set_value(_SILENT, True, trace.set_span_in_context(unsampled)))

    def score(self, name: str, value: float, label: str) -> None:
        """Add the event of a score to the current span."""
        if contexts.get_value(_SILENT):
            return
        event: dict[str, str | float] = {names.EVALUATION_NAME: clean_text(name)}
        event[names.EVALUATION_SCORE] = float(value)
        if label:
            event[names.EVALUATION_LABEL] = clean_text(label)
        trace.get_current_span().add_event(names.EVALUATION_RESULT, event)

    def observe(self, name: str, source: QueueSource) -> None:
        """Report the length of a queue while its source is alive."""
        self._queues.setdefault(name, WeakSet()).add(source)

    def measure(
        self, operation: str, seconds: float, attributes: Mapping[str, Value], context: Context
    ) -> None:
        """Record the metrics of a finished operation.

        :param context: context with its span, for exemplars.
        """
        metric = names.DURATIONS.get(operation)
        if metric is None or not self._measures:
            return
        shared = {name: attributes[name] for name in names.DIMENSIONS[metric] if name in attributes}
        self._histograms[metric].record(seconds, shared, context)
        shared.pop(names.ERROR_TYPE, None)
        for metric, name in names.TOKENS_OF.items():
            if isinstance(used := attributes.get(name), int):
                self._histograms[metric].record(used, shared, context)

    def _lengths(self, _: CallbackOptions) -> Iterable[Observation]:
        for name, sources in self._queues.items():
            yield Observation(sum(source.waiting for source in tuple(sources)), {names.QUEUE: name})


class _LiveOperation(Operation):
    """Operation that emits a span and records metrics."""

    __slots__ = (
        "_added", "_attributes", "_began", "_context", "_dropped", "_ids", "_kind", "_link", "_name", "_operation", "_token", "_tracer",
        "span",
    )  # fmt: skip

    def __init__(
        self,
        tracer: Tracer,
        operation: str,
        target: str,
        attributes: dict[str, Value | None],
        client: bool,
        ids: Ids | None,
        link: Operation | None,
        unfinished: bool,
    ) -> None:
        self.span: Span | None = None
        """Its span, once it has begun; `None` in a silent block."""
        self._tracer = tracer
        self._operation = operation
        self._name = clean_text(f"{operation} {target}" if target else operation)
        self._attributes = {name: _clean(value) for name, value in attributes.items() if value is not None}
        self._kind = SpanKind.CLIENT if client else SpanKind.INTERNAL
        self._ids = ids
        self._link = link
        self._dropped = unfinished
        self._added: dict[str, Value] = {}

    def __enter__(self) -> Self:
        parent = contexts.get_current()
        self._began = perf_counter()
        if contexts.get_value(_SILENT, parent):
            self._token = contexts.attach(parent)
            return self
        if self._ids is None:
            self._attributes = {**_marks(parent), **self._attributes}
            self.span = self._start(parent)
        else:
            parent = Context()
            reset = _NEXT_IDS.set(self._ids)
            try:
                self.span = self._start(parent)
            finally:
                _NEXT_IDS.reset(reset)
        self._context = trace.set_span_in_context(self.span, parent)
        self._token = contexts.attach(self._context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        contexts.detach(self._token)
        if self.span is None or self._dropped or not (error is None or isinstance(error, Exception)):
            return
        if error is not None:
            self.failed(_kind_of(error))
        if self._added:
            # At once: each call of the SDK takes a lock.
            self.span.set_attributes(self._added)
        self.span.end()
        self._tracer.measure(self._operation, perf_counter() - self._began, self._attributes, self._context)

    def set(self, name: str, value: Value | None) -> None:
        """Set an attribute; `None` is left out."""
        if self.span is not None and value is not None:
            self._attributes[name] = self._added[name] = _clean(value)

    def count(self, name: str) -> None:
        """Add one to an attribute."""
        before = self._attributes.get(name, 0)
        self.set(name, before + 1 if isinstance(before, int) else 1)

    def content(self, name: str, make: Callable[[], object]) -> None:
        """Set an attribute to content as JSON, secrets masked, if content is enabled; else `make` is not called."""
        if self.span is None or not self._tracer.content or not self.span.is_recording():
            return
        made = make()
        written = _json(made, MAX_TEXT_CHARS)
        if len(written) > MAX_CONTENT_CHARS:
            written = _json(made, MAX_NAME_CHARS)
        if len(written) <= MAX_CONTENT_CHARS:
            self._added[name] = written

    def failed(self, kind: str) -> None:
        """Mark the operation as failed."""
        if self.span is not None:
            self.set(names.ERROR_TYPE, kind)
            self.span.set_status(StatusCode.ERROR)

    def finish(self) -> None:
        """Mark the work on a seed as complete."""
        self._dropped = False

    def _start(self, parent: Context) -> Span:
        linked = self._link.span if isinstance(self._link, _LiveOperation) else None
        links = () if linked is None else (Link(linked.get_span_context()),)
        return self._tracer.spans.start_span(
            self._name,
            context=parent,
            kind=self._kind,
            attributes=self._attributes,
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        )


def tracer_of_global() -> Tracer | None:
    """Return a tracer of the global provider; `None` if the program has set none."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, ProxyTracerProvider | NoOpTracerProvider):
        return None
    return tracer_of(provider, metrics.get_meter_provider())


def tracer_of(spans: TracerProvider, meters: MeterProvider) -> Tracer:
    """Return a tracer of these providers, which gives new traces the ids of the run where it is the SDK's."""
    made = Tracer(spans, meters)
    if isinstance(made.spans, SdkTracer):
        made.spans.id_generator = _GivenIds(made.spans.id_generator)
    return made


class _GivenIds(IdGenerator):
    """Generator of the ids that a new trace is to have, and of random ones for all others."""

    def __init__(self, other: IdGenerator) -> None:
        self._other = other

    def generate_trace_id(self) -> int:
        """Return the id of a new trace."""
        return _NEXT_IDS.get()[0] or self._other.generate_trace_id()

    def generate_span_id(self) -> int:
        """Return the id of a new span."""
        return _NEXT_IDS.get()[1] or self._other.generate_span_id()

    def is_trace_id_random(self) -> bool:
        """Return true if the ids of traces are random."""
        return _NEXT_IDS.get()[0] is None and self._other.is_trace_id_random()


def clean_text(text: str) -> str:
    """Return a text as an attribute: short, and valid Unicode, without which a whole batch is lost."""
    text = str(text)  # members of enumerations
    cut = text if len(text) <= MAX_NAME_CHARS else f"{text[: MAX_NAME_CHARS - 1]}…"
    return cut if cut.isascii() else cut.encode(errors="replace").decode()


def _clean(value: Value) -> Value:
    if isinstance(value, str):
        return clean_text(value)
    return value if isinstance(value, int | float) else [clean_text(item) for item in value]


def _json(value: object, longest: int) -> str:
    return msgspec.json.encode(_clean_content(value, longest)).decode()


def _clean_content(value: object, longest: int) -> object:
    """Return a JSON value with its texts masked and cut."""
    if isinstance(value, str):
        text = value[: longest * 2].encode(errors="replace").decode()
        text = mask_text(text)
        return text if len(text) <= longest else f"{text[:longest]}… ({len(value)} characters)"
    if is_mapping(value):
        return {clean_text(name): _clean_content(item, longest) for name, item in value.items()}
    if is_list_or_tuple(value):
        return [_clean_content(item, longest) for item in value]
    return value if isinstance(value, int | float | None) else str(type(value).__name__)


def _marks(context: Context) -> Mapping[str, str]:
    marks = contexts.get_value(_MARKS, context)
    return {str(name): str(value) for name, value in marks.items()} if is_mapping(marks) else {}


def _kind_of(error: Exception) -> str:
    """Return the kind of a failure, which has few values."""
    kind: object = getattr(error, "kind", None)
    return str(kind) if isinstance(kind, StrEnum) else type(error).__qualname__
