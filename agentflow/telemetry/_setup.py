"""Providers of a program: OpenTelemetry's SDK with OTLP over HTTP, if it is installed and a collector is named."""

import atexit
import logging
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from agentflow.errors import ConfigurationError
from agentflow.extras import missing_extra
from agentflow.telemetry._spans import STATE

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from agentflow.telemetry._exporters import Providers

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


class _Program:
    def __init__(self) -> None:
        self.providers: Providers | None = None
        """Providers that this program has made."""
        self.told = False


PROGRAM = _Program()
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
    if not wanted or off or PROGRAM.providers is not None or _is_set():
        return
    if not _installed():
        if collector is not None:
            raise ConfigurationError(missing_extra("tracing", "otel"))
        if not PROGRAM.told:
            PROGRAM.told = True
            _logger.warning(
                "no traces are sent: %s", missing_extra("a collector in OTEL_* variables", "otel")
            )
        return
    from agentflow.telemetry._exporters import Providers

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
