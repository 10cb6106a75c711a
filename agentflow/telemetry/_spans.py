"""Operations of a run as spans and metrics. Without a provider of OpenTelemetry, every call does nothing. See docs/tracing.md.

This module loads no part of OpenTelemetry, so that a program without traces does not wait for it.
"""

import atexit
import logging
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from hashlib import blake2b
from importlib.util import find_spec
from threading import Event, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeAlias

from agentflow.errors import ConfigurationError
from agentflow.extras import missing_extra
from agentflow.telemetry import _conventions as names

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from agentflow.telemetry._providers import Providers
    from agentflow.telemetry._tracer import Tracer

_logger = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 5.0
"""Longest time that the end of a run waits for the collector."""
_VARIABLES: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
"""Variables that name a collector."""
_EXPORTER: Final = "opentelemetry.exporter.otlp.proto.http"
Value: TypeAlias = str | bool | int | float | Sequence[str]
"""Value of an attribute."""


class Operation:
    """One operation: a context manager that measures its block and emits a span. This base does nothing.

    A block that is cancelled emits nothing: its effect has no result and is made again when the run resumes.

    Example::

        with tool_operation("bash_run") as operation:
            operation.failed("timeout")
    """

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        return

    def set(self, name: str, value: Value | None) -> None:
        """Set an attribute; `None` is left out."""

    def count(self, name: str) -> None:
        """Add one to an attribute."""

    def content(self, name: str, make: Callable[[], object]) -> None:
        """Set an attribute to content as JSON, secrets masked, if content is enabled; else `make` is not called."""

    def failed(self, kind: str) -> None:
        """Mark the operation as failed.

        :param kind: kind of the failure, never its text, which may be content.
        """

    def finish(self) -> None:
        """Mark the work on a seed as complete; without it, the span of a seed is not emitted."""


class QueueSource(Protocol):
    """Object with a queue."""

    @property
    def waiting(self) -> int:
        """Number of waiting entries."""
        ...


class _TracingState:
    def __init__(self) -> None:
        self.tracer: Tracer | None = None
        """Tracer in use; `None`: that of the global provider, if a program has set one."""
        self.enabled = True


STATE = _TracingState()
"""Tracing of this process."""
_INERT = Operation()
_NOTHING = nullcontext()
_SDK = "opentelemetry.sdk.trace"


def active() -> "Tracer | None":
    """Return the tracer of this process; `None` if there is no provider."""
    if STATE.tracer is not None:
        return STATE.tracer
    if not STATE.enabled or _SDK not in sys.modules:
        return None
    from agentflow.telemetry._tracer import tracer_of_global

    STATE.tracer = tracer_of_global()
    return STATE.tracer


def _operation(
    operation: str, target: str, attributes: Mapping[str, Value | None], *, client: bool = False
) -> Operation:
    tracer = active()
    return _INERT if tracer is None else tracer.operation(operation, target, attributes, client=client)


def role_operation(role: str, method: str) -> Operation:
    """Return the operation of a role that answers a request: `plan planner`, `invoke_agent verifier`.

    See docs/tracing.md.
    """
    operation = names.PLAN if method == "plan" else names.INVOKE_AGENT
    return _operation(operation, role, {names.AGENT_NAME: role})


def tool_operation(tool: str) -> Operation:
    """Return the operation of one call of a tool. See docs/tracing.md."""
    return _operation(names.EXECUTE_TOOL, tool, {names.TOOL_NAME: tool, names.TOOL_TYPE: "function"})


def model_operation(
    model: str, provider: str, attributes: Mapping[str, Value | None], *, in_process: bool = False
) -> Operation:
    """Return the operation of one call of a model. See docs/tracing.md.

    :param provider: provider, as the conventions name it.
    :param in_process: the model computes in this process.
    """
    model_attributes = {names.PROVIDER_NAME: provider, names.REQUEST_MODEL: model, **attributes}
    return _operation(names.CHAT, model, model_attributes, client=not in_process)


def step_operation(step: int) -> Operation:
    """Return the operation of one step of a training. See docs/tracing.md."""
    return _operation(names.TRAIN_STEP, str(step), {names.STEP: step})


class RunTrace:
    """Trace of the work of this process on a run, and of its seeds.

    Example::

        with RunTrace("synthesis", run.key) as trace, trace.seed("0", "seed_001", agent="team") as operation:
            operation.finish()
    """

    def __init__(self, name: str, key: str) -> None:
        """Describe it; it begins with the block.

        :param name: kind of run, such as `synthesis`.
        :param key: key of the run, from which all ids of traces follow.
        """
        self._name = name
        self._key = key
        self._operation = _INERT
        self._token: Token[RunTrace | None] | None = None

    def __enter__(self) -> Self:
        tracer = active()
        if tracer is not None:
            attributes = {names.AGENT_NAME: self._name, names.RUN: self._key}
            ids = (_number(16, self._key), None)
            self._operation = tracer.operation(names.INVOKE_WORKFLOW, self._name, attributes, ids=ids)
            self._token = _RUN.set(self)
        self._operation.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._operation.__exit__(kind, error, trace)
        if self._token is not None:
            _RUN.reset(self._token)

    def seed(self, place: str, id: str, *, agent: str) -> Operation:
        """Return the operation of a seed or episode: a trace of its own, linked to the run.

        Its ids follow from the run's key and its place, so a run that is resumed continues the trace.

        :param place: place in the run, unique there.
        :param id: name of the seed or task.
        :param agent: name of what works on it.
        """
        tracer = active()
        if tracer is None:
            return _INERT
        attributes = {
            names.AGENT_NAME: agent,
            names.CONVERSATION_ID: f"{self._key}/{place}",
            names.RUN: self._key,
            names.SEED: id,
        }
        ids = (_number(16, self._key, place), _number(8, self._key, place))
        link = self._operation
        return tracer.operation(names.INVOKE_AGENT, agent, attributes, ids=ids, link=link, unfinished=True)


_RUN: ContextVar[RunTrace | None] = ContextVar("agentflow_run_trace", default=None)


def episode_operation(place: str, id: str, *, agent: str) -> Operation:
    """Return the operation of an episode of the run in whose block this is called; nothing is emitted outside of one.

    See `RunTrace.seed` and docs/tracing.md.
    """
    run = _RUN.get()
    return _INERT if run is None else run.seed(place, id, agent=agent)


def gateway_operation(model: str, agent: str, *, episode: str, task: str, key: str) -> Operation:
    """Return the operation of a call of any agent, in the trace of its episode. See docs/tracing.md.

    Inside `continued_trace` it is a child of the agent's own span.

    :param episode: name of the episode and its attempt.
    :param task: name of its task.
    :param key: text that only this attempt has; the id of the trace follows from it.
    """
    tracer = active()
    if tracer is None:
        return _INERT
    attributes = {
        names.PROVIDER_NAME: "openai",
        names.REQUEST_MODEL: model,
        names.CONVERSATION_ID: episode,
        names.ROLE: agent,
        names.SEED: task,
    }
    ids = None if tracer.is_continued() else (_number(16, key), None)
    return tracer.operation(names.CHAT, model, attributes, client=True, ids=ids)


def continued_trace(headers: Mapping[str, str]) -> AbstractContextManager[None]:
    """Continue the trace of the client of a request in the block, by W3C Trace Context. See docs/tracing.md.

    :param headers: headers of the request; without a valid `traceparent`, nothing is continued.
    """
    tracer = active()
    return _NOTHING if tracer is None or "traceparent" not in headers else tracer.continued(headers)


def seed_trace_id(run: str, place: str) -> str:
    """Return the id of a seed's trace, as viewers of traces write it.

    >>> len(seed_trace_id("run", "0"))
    32

    :param run: key of the run.
    :param place: place of the seed in the run: its index.
    """
    return f"{_number(16, run, place):032x}"


def current_trace() -> "Context | None":
    """Return the current span and marks, for work that another task does; `None` without a provider.

    See docs/tracing.md.
    """
    tracer = active()
    return None if tracer is None else tracer.current()


def carry_trace(trace: "Context | None") -> AbstractContextManager[None]:
    """Make spans of the block children of a span of another task. See docs/tracing.md.

    :param trace: from `current_trace`.
    """
    tracer = active()
    return _NOTHING if trace is None or tracer is None else tracer.attached(trace)


def mark_spans(
    *, node: str = "", effect: str = "", isolation: str = "", call: str = ""
) -> AbstractContextManager[None]:
    """Add attributes to all spans that begin in the block. See docs/tracing.md.

    :param node: path of the node in its tree.
    :param effect: key of the effect in the journal.
    :param isolation: isolation of the sandbox from those of other branches.
    :param call: id that the model gave to its call of a tool.
    """
    tracer = active()
    if tracer is None:
        return _NOTHING
    marks = {names.NODE: node, names.EFFECT: effect, names.ISOLATION: isolation, names.TOOL_CALL_ID: call}
    return tracer.marked({name: value for name, value in marks.items() if value})


def silent_spans() -> AbstractContextManager[None]:
    """Emit nothing in the block: it repeats effects that were traced before. See docs/tracing.md."""
    tracer = active()
    return _NOTHING if tracer is None else tracer.silent()


def record_score(name: str, value: float, label: str = "") -> None:
    """Add the event of a score to the current span. See docs/tracing.md.

    :param name: name of the metric.
    :param label: verdict in a word.
    """
    tracer = active()
    if tracer is not None:
        tracer.score(name, value, label)


def observe_queue(name: str, source: QueueSource) -> None:
    """Report the length of a queue as a metric, as long as the source is alive. See docs/tracing.md."""
    tracer = active()
    if tracer is not None:
        tracer.observe(name, source)


def captures_content() -> bool:
    """Return true if spans get content. See docs/tracing.md."""
    tracer = active()
    return tracer is not None and tracer.content


def _number(size: int, *parts: str) -> int:
    """Return an id of a trace or span; zero is not valid."""
    state = blake2b(digest_size=size, person=b"agentflow-trace")
    for part in parts:
        encoded = part.encode(errors="surrogatepass")
        state.update(len(encoded).to_bytes(8, "big") + encoded)
    return int.from_bytes(state.digest(), "big") or 1


class _ProgramTracing:
    def __init__(self) -> None:
        self.providers: Providers | None = None
        """Providers that this program has made."""
        self.warned = False


PROGRAM = _ProgramTracing()
"""Tracing that this program has started."""


def start_tracing(
    collector: bool | str | None = None,
    *,
    service: str = "agentflow",
    environment: Mapping[str, str] | None = None,
) -> None:
    """Send traces and metrics of this process to a collector. Does nothing if a provider is set already.

    Only a program calls this, never a library. See docs/tracing.md.

    :param collector: its address, such as `http://localhost:4318`; `True`: the one of the variables, or this machine's;
        `None`: the one of the variables, if they name one; `False`: emit nothing.
    :param service: name of this program, unless `OTEL_SERVICE_NAME` gives one.
    :param environment: variables; by default those of the process.
    :raises ConfigurationError: if a collector is set, but the extra `otel` is missing.
    """
    variables = os.environ if environment is None else environment
    STATE.enabled = collector is not False
    if collector is False:
        STATE.tracer = None
        return
    wanted = collector is not None or any(variables.get(name) for name in _VARIABLES)
    off = variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if not wanted or off:
        return
    if PROGRAM.providers is not None:
        STATE.tracer = PROGRAM.providers.tracer
        return
    if _is_set():
        return
    if not _installed():
        if collector is not None:
            raise ConfigurationError(missing_extra("tracing", "otel"))
        if not PROGRAM.warned:
            PROGRAM.warned = True
            _logger.warning(
                "no traces are sent: %s", missing_extra("a collector in OTEL_* variables", "otel")
            )
        return
    from agentflow.telemetry._providers import Providers

    address = collector if isinstance(collector, str) else None
    made = PROGRAM.providers = Providers(address, service, variables)
    made.publish()
    STATE.tracer = made.tracer
    atexit.register(flush_tracing)


def flush_tracing(seconds: float = FLUSH_SECONDS) -> bool:
    """Send everything that is still queued; return false if that takes too long or fails. Blocks.

    A collector that did not answer before is not waited for. See docs/tracing.md.

    :param seconds: longest time to wait.
    """
    providers = PROGRAM.providers
    if providers is None:
        return True
    if providers.unreachable:
        return False
    done = Event()

    def flush() -> None:
        providers.flush()
        done.set()

    # A daemon: an export that hangs must not keep the process.
    Thread(target=flush, name="agentflow-flush", daemon=True).start()
    return done.wait(seconds) and not providers.unreachable


@contextmanager
def tracing_to(spans: "TracerProvider", meters: "MeterProvider | None" = None) -> Generator[None]:
    """Use these providers in the block, instead of those of the process. See docs/tracing.md.

    :param meters: provider of metrics; by default the global one.
    """
    from opentelemetry import metrics

    from agentflow.telemetry._tracer import tracer_of

    before, enabled = STATE.tracer, STATE.enabled
    STATE.tracer = tracer_of(spans, metrics.get_meter_provider() if meters is None else meters)
    STATE.enabled = True
    try:
        yield
    finally:
        STATE.tracer, STATE.enabled = before, enabled


def _is_set() -> bool:
    """Return true if the program has set a provider of its own."""
    if "opentelemetry.sdk.trace" not in sys.modules:
        return False
    from agentflow.telemetry._tracer import tracer_of_global

    return tracer_of_global() is not None


def _installed() -> bool:
    try:
        return find_spec(_EXPORTER) is not None
    except ModuleNotFoundError:
        return False
