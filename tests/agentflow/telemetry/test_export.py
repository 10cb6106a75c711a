"""Spans reach a real collector from every process of a run, and a collector that does not answer disturbs nothing."""

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import anyio
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from agentflow.errors import ConfigurationError
from agentflow.journal import NewSeed
from agentflow.synthesis.pipeline import SynthesisRun
from agentflow.telemetry import RunTrace, _providers, _spans, flush_tracing, start_tracing, tool_operation
from agentflow.telemetry._providers import Providers
from agentflow.testing import fake_endpoint
from tests.agentflow.synthesis._runs import config_for, until
from tests.agentflow.telemetry._receiver import receiver


def closed_port() -> int:
    """Return a port at which nothing listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _nothing(_: object) -> None:
    """Stand in for a function with an effect on the whole process."""


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A program that has started no tracing; its providers are not the global ones."""
    monkeypatch.setattr(_spans, "PROGRAM", type(_spans.PROGRAM)())
    monkeypatch.setattr(Providers, "publish", _nothing)
    monkeypatch.setattr("atexit.register", _nothing)
    levels = {name: logging.getLogger(name).level for name in _providers.QUIET}
    before, enabled = _spans.STATE.tracer, _spans.STATE.enabled
    yield
    if _spans.PROGRAM.providers is not None:
        _spans.PROGRAM.providers.close()
    _spans.STATE.tracer, _spans.STATE.enabled = before, enabled
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.promise("tracing:processes")
def test_one_trace_leads_from_the_planner_through_the_server_to_the_tool(tmp_path: Path) -> None:
    seeds = tmp_path / "seeds.jsonl"
    seeds.write_text('{"content": "The harbour"}\n')
    with receiver() as found:
        settings = {
            "seeds_file": seeds,
            "output_dir": tmp_path / "run",
            "max_depth": 1,
            "min_depth": 1,
            "branching_factor": 1,
            "max_questions": 0,
            "control": "false",
            "model_name": "offline",
            "resource_types": "[rag]",
            "sandbox_server_url": f"http://127.0.0.1:{closed_port()}",
        }
        given = [f"{name}={value}" for name, value in settings.items()]
        command = [sys.executable, "-m", "agentflow.cli", "synth", "--json", *given]
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": found.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    (seed,) = found.named("invoke_agent team")
    (plan, *_) = found.named("plan planner")
    assert plan.trace_id == seed.trace_id
    by_id = {span.span_id: (service, span) for service, span in found.spans}
    tool = next(
        (service, span)
        for service, span in found.spans
        if span.name.startswith("tools/call rag_") and span.trace_id == seed.trace_id
    )
    path = [tool]
    while path[-1][1].parent_span_id:
        path.append(by_id[path[-1][1].parent_span_id])
    name = tool[1].name.removeprefix("tools/call ")
    assert [(service, span.name) for service, span in path] == [
        ("agentflow-tools", f"tools/call {name}"),
        ("agentflow", f"MCP send tools/call {name}"),
        ("agentflow", f"execute_tool {name}"),
        ("agentflow", "invoke_agent team"),
    ]
    called, sent = tool[1], path[1][1]
    assert (called.kind, sent.kind) == (Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT)
    conventions = import_module("opentelemetry.semconv._incubating.attributes.mcp_attributes")
    published = {value for value in vars(conventions).values() if isinstance(value, str)}
    assert {each.key for each in called.attributes if each.key.startswith("mcp.")} <= published
    assert {"gen_ai.execute_tool.duration", "agentflow.queue.length"} <= found.metrics


@pytest.mark.promise("tracing:collector")
@pytest.mark.usefixtures("program")
async def test_a_cancelled_run_sends_what_it_has_done(tmp_path: Path) -> None:
    with receiver() as found:
        log = tmp_path / "requests.jsonl"
        async with fake_endpoint(hold_after=2, log=log) as url:
            config = config_for(
                tmp_path / "run", model_name="painter", base_url=url, tracing=found.url, number_of_seed=1
            )
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(SynthesisRun(config).run, [NewSeed("The harbour")])
                await until(lambda: log.exists() and len(log.read_text().splitlines()) > 2)
                tasks.cancel_scope.cancel()
    assert len(found.named("chat painter")) == 2
    assert found.named("invoke_agent team") == []


@pytest.mark.promise("tracing:collector")
@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("status", [0, 400])
def test_a_collector_that_takes_nothing_costs_one_line(
    status: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_providers, "EXPORT_SECONDS", 0.2)
    with receiver() as found:
        found.status = status
        address = found.url if status else f"http://user:pw@127.0.0.1:{closed_port()}"
        start_tracing(address)
        for _ in range(3):
            with RunTrace("synthesis", "key"):
                pass
            assert not flush_tracing()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    shown = address.replace("user:pw", "user:***")
    assert line == f"no traces are sent: the collector at {shown} does not take them"


@pytest.mark.promise("tracing:collector")
@pytest.mark.usefixtures("program")
@pytest.mark.parametrize(
    ("switched_off", "sent"),
    [("OTEL_METRICS_EXPORTER", {"/v1/traces"}), ("OTEL_TRACES_EXPORTER", {"/v1/metrics"})],
)
def test_a_signal_that_is_switched_off_is_not_sent(switched_off: str, sent: set[str]) -> None:
    with receiver() as found:
        start_tracing(found.url, environment={switched_off: "none"})
        with tool_operation("bash_run"):
            pass
        assert flush_tracing()
    assert set(found.requests) == sent


@pytest.mark.promise("tracing:extra")
@pytest.mark.usefixtures("program")
def test_without_the_extra_a_setting_is_refused_and_variables_cost_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_spans, "find_spec", _nothing)
    with pytest.raises(ConfigurationError, match=r"^tracing needs the extra otel: "):
        start_tracing(True)
    for _ in range(2):
        start_tracing(environment={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"})
    (record,) = caplog.records
    assert "needs the extra otel" in record.getMessage()


@pytest.mark.promise("tracing:collector")
@pytest.mark.usefixtures("program")
@pytest.mark.parametrize(
    "variables",
    [{}, {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}],
)
def test_nothing_is_started_without_a_collector_or_where_tracing_is_disabled(
    variables: dict[str, str],
) -> None:
    start_tracing(environment=variables)
    start_tracing(False)
    assert _spans.PROGRAM.providers is None
    assert flush_tracing()
