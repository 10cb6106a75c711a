"""Spans and metrics have the names, kinds and attributes of the pinned conventions, and none is emitted twice."""

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics.export import Histogram, Metric
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from agentflow.errors import ModelFailure, RunStopped
from agentflow.journal import NewSeed
from agentflow.models import ImagePart, Message, Sampling, TextPart
from agentflow.sandbox import Sandbox
from agentflow.synthesis import SynthesisConfig
from agentflow.synthesis.pipeline import SynthesisRun
from agentflow.telemetry import (
    RunTrace,
    current_trace,
    mark_spans,
    record_score,
    role_operation,
    seed_trace_id,
    silent_spans,
    tool_operation,
)
from agentflow.testing import fake_endpoint
from tests._core import core_environment, core_python
from tests.agentflow.models._serving import call, painter, refuses, says, script
from tests.agentflow.synthesis._runs import config_for, until
from tests.agentflow.telemetry._collected import attributes, collected, trace_of

SECRET = "the secret observatory <script>alert(1)</script>"
SEEDS = [NewSeed(f"{SECRET} {number}") for number in range(2)]
INPUT = "gen_ai.usage.input_tokens"
DIMENSIONS = {
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.response.model",
    "server.address",
    "server.port",
    "error.type",
}
"""Attributes of the metrics of model calls in the conventions."""


class Expected(NamedTuple):
    """Span of an operation in the conventions."""

    kind: SpanKind
    required: dict[str, type]
    other: dict[str, type]


OURS: dict[str, type] = {"agentflow.effect": str, "agentflow.node": str, "agentflow.isolation": str}
TABLE = {
    "invoke_workflow": Expected(
        SpanKind.INTERNAL,
        {"gen_ai.operation.name": str, "gen_ai.agent.name": str, "agentflow.run": str},
        {"error.type": str},
    ),
    "invoke_agent": Expected(
        SpanKind.INTERNAL,
        {"gen_ai.operation.name": str, "gen_ai.agent.name": str},
        {"gen_ai.conversation.id": str, "agentflow.run": str, "agentflow.seed": str, "error.type": str},
    ),
    "plan": Expected(
        SpanKind.INTERNAL,
        {"gen_ai.operation.name": str, "gen_ai.agent.name": str},
        {"error.type": str},
    ),
    "chat": Expected(
        SpanKind.CLIENT,
        {
            "gen_ai.operation.name": str,
            "gen_ai.provider.name": str,
            "gen_ai.request.model": str,
            "server.address": str,
            "server.port": int,
        },
        {
            "gen_ai.request.temperature": float,
            "gen_ai.request.top_p": float,
            "gen_ai.request.max_tokens": int,
            "gen_ai.request.seed": int,
            "gen_ai.request.stop_sequences": tuple,
            "gen_ai.output.type": str,
            "gen_ai.response.model": str,
            "gen_ai.response.finish_reasons": tuple,
            "gen_ai.usage.input_tokens": int,
            "gen_ai.usage.output_tokens": int,
            "error.type": str,
            "agentflow.role": str,
            "agentflow.attempts": int,
        },
    ),
    "execute_tool": Expected(
        SpanKind.INTERNAL,
        {"gen_ai.operation.name": str, "gen_ai.tool.name": str, "gen_ai.tool.type": str},
        {"gen_ai.tool.call.id": str, "error.type": str},
    ),
}
"""Version 0.1.0 of the GenAI conventions, and the attributes of ours that docs/tracing.md lists."""


def check(span: ReadableSpan) -> None:
    """Compare a span with the table."""
    given = attributes(span)
    expected = TABLE[str(given["gen_ai.operation.name"])]
    assert span.kind is expected.kind
    assert expected.required.keys() <= given.keys()
    known = expected.required | expected.other | OURS
    assert {name: type(value) for name, value in given.items()} == {name: known[name] for name in given}
    target = given.get("gen_ai.tool.name", given.get("gen_ai.request.model", given.get("gen_ai.agent.name")))
    assert span.name == f"{given['gen_ai.operation.name']} {target}"
    assert (span.status.status_code is StatusCode.ERROR) == ("error.type" in given)
    assert not span.status.description


def config(folder: Path, url: str, *, seeds: int = 1) -> SynthesisConfig:
    """Return settings of a small synthesis with a model at an endpoint."""
    settings: dict[str, object] = {
        "model_name": "painter",
        "base_url": url,
        "max_depth": 2,
        "branching_factor": 2,
    }
    return config_for(folder, **settings, number_of_seed=seeds)


async def small_run(folder: Path, url: str, *, seeds: int = 1) -> SynthesisRun:
    """Run a small synthesis."""
    run = SynthesisRun(config(folder, url, seeds=seeds))
    await run.run(SEEDS[:seeds])
    return run


@pytest.mark.promise("tracing:conventions")
@pytest.mark.promise("tracing:levels")
@pytest.mark.promise("tracing:resume")
@pytest.mark.promise("tracing:content")
async def test_the_spans_of_a_synthesis_follow_the_conventions_and_a_finished_run_emits_nothing(
    tmp_path: Path,
) -> None:
    async with fake_endpoint() as url:
        with collected() as found:
            await small_run(tmp_path, url)
            spans = found.all
            await small_run(tmp_path, url)
            assert found.all == spans
            measured = found.metrics()
    for span in spans:
        check(span)
    by_id = {span.context.span_id: span for span in spans if span.context is not None}
    (workflow,) = (span for span in spans if span.name == "invoke_workflow synthesis")
    (seed,) = (span for span in spans if span.name == "invoke_agent team")
    assert seed.parent is None and workflow.parent is None
    assert [link.context for link in seed.links] == [workflow.context]
    assert (
        trace_of(seed) == seed_trace_id(str(attributes(workflow)["agentflow.run"]), "0") != trace_of(workflow)
    )
    levels = {
        "plan": {"invoke_agent"},
        "execute_tool": {"invoke_agent"},
        "chat": {"plan", "invoke_agent"},
    }
    for span in spans:
        operation = span.name.partition(" ")[0]
        if operation in levels:
            assert span.parent is not None
            assert by_id[span.parent.span_id].name.partition(" ")[0] in levels[operation]
            assert trace_of(span) == trace_of(seed)
    assert {attributes(span).get("agentflow.node") for span in found.of("execute_tool")} >= {"0", "1"}
    nodes = [each for each in map(attributes, found.of("execute_tool")) if "agentflow.node" in each]
    assert {str(each["agentflow.isolation"]) for each in nodes} == {"shared"}
    assert {event.name for event in seed.events} == {"gen_ai.evaluation.result"}
    scores = [dict(event.attributes or {}) for event in seed.events]
    assert {str(score["gen_ai.evaluation.name"]) for score in scores} >= {"trajectory"}
    assert {type(score["gen_ai.evaluation.score.value"]) for score in scores} == {float}
    assert {attributes(span)["agentflow.effect"] for span in spans if span.name == "plan planner"} >= {
        "plan/root/0",
        "plan/0/0",
    }
    assert not any("secret observatory" in span.to_json() for span in spans)
    chats = [span for span in spans if span.name == "chat painter"]
    assert measured.keys() == {
        "gen_ai.client.inference.duration",
        "gen_ai.client.inference.operation.input_tokens",
        "gen_ai.client.inference.operation.output_tokens",
        "gen_ai.execute_tool.duration",
        "gen_ai.invoke_agent.duration",
        "agentflow.queue.length",
    }
    tokens = measured["gen_ai.client.inference.operation.input_tokens"]
    durations = measured["gen_ai.client.inference.duration"]
    assert (tokens.unit, durations.unit) == ("{token}", "s")
    assert counted(tokens) == (len(chats), sum(int(str(attributes(each)[INPUT])) for each in chats))
    assert counted(durations)[0] == len(chats)


def counted(metric: Metric) -> tuple[int, float]:
    """Return the number and the sum of the values of a histogram."""
    assert isinstance(metric.data, Histogram)
    points = metric.data.data_points
    for point in points:
        assert dict(point.attributes or {}).keys() <= DIMENSIONS
    return sum(point.count for point in points), sum(point.sum for point in points)


@pytest.mark.promise("tracing:conventions")
async def test_a_call_of_a_model_has_its_request_its_answer_and_its_attempts() -> None:
    sampling = Sampling(temperature=0.5, max_tokens=9, seed=3, stop=("x",))
    with collected() as found:
        async with script(refuses(503), says()) as endpoint, painter(endpoint.url) as model:
            await model.complete(replace(call(), sampling=sampling))
    (span,) = found.all
    check(span)
    assert attributes(span) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "painter",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.seed": 3,
        "gen_ai.request.stop_sequences": ("x",),
        "gen_ai.output.type": "json",
        "gen_ai.response.model": "painter-1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "server.address": "127.0.0.1",
        "server.port": int(endpoint.url.rpartition(":")[2].partition("/")[0]),
        "agentflow.role": "planner",
        "agentflow.attempts": 2,
    }


@pytest.mark.promise("tracing:conventions")
@pytest.mark.promise("tracing:content")
async def test_a_failed_call_has_the_kind_of_its_failure_and_not_its_text() -> None:
    with collected() as found:
        async with script(refuses(400, SECRET)) as endpoint, painter(endpoint.url) as model:
            with pytest.raises(ModelFailure):
                await model.complete(call())
        async with Sandbox(backends=["rag"]) as sandbox:
            result = await sandbox.execute("rag:get", {"document": SECRET})
            assert result.error is not None
    for span in found.all:
        check(span)
        assert "secret" not in span.to_json()
    assert [(span.name, attributes(span)["error.type"]) for span in found.all] == [
        ("chat painter", "bad_request"),
        ("execute_tool rag_get", str(result.error.kind)),
    ]


@pytest.mark.promise("tracing:resume")
async def test_a_resumed_run_continues_its_traces_and_emits_no_effect_twice(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    async with fake_endpoint(log=log) as url:
        with collected() as found:
            run = SynthesisRun(config(tmp_path / "run", url, seeds=2))

            async def stop() -> None:
                await until(lambda: len(found.all) > 12)
                run.stop()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stop)
                with pytest.raises(RunStopped):
                    await run.run(SEEDS)
            before = found.all
            await small_run(tmp_path / "run", url, seeds=2)
    assert len(before) < len(found.all)
    roots = [span for span in found.all if span.name == "invoke_agent team"]
    assert sorted(str(attributes(span)["agentflow.seed"]) for span in roots) == ["seed_001", "seed_002"]
    assert {trace_of(span) for span in before} <= {trace_of(span) for span in found.all[len(before) :]}
    effects = Counter(
        (trace_of(span), span.name, attributes(span).get("agentflow.effect")) for span in found.all
    )
    del effects[trace_of(found.of("invoke_workflow")[0]), "invoke_workflow synthesis", None]
    assert effects.most_common(1)[0][1] == 1
    assert len(found.of("chat")) == len(log.read_text().splitlines())
    ends = {span.context.span_id for span in found.all if span.context is not None}
    assert all(span.parent is None or span.parent.span_id in ends for span in found.all)


@pytest.mark.promise("tracing:resume")
async def test_repeated_and_cancelled_effects_emit_nothing() -> None:
    with collected() as found:
        with RunTrace("synthesis", "key") as trace:
            with trace.seed("0", "seed_001", agent="team"), silent_spans(), tool_operation("bash_run") as one:
                one.set("agentflow.node", "0")
                record_score("f1", 1.0)
            with trace.seed("1", "seed_002", agent="team"), anyio.CancelScope() as scope:
                scope.cancel()
                with tool_operation("bash_run"):
                    await anyio.lowlevel.checkpoint()
        assert [span.name for span in found.all] == ["invoke_workflow synthesis"]
        assert "gen_ai.execute_tool.duration" not in found.metrics()


@pytest.mark.promise("tracing:scores")
def test_a_score_is_an_event_of_the_span_that_is_scored() -> None:
    with (
        collected() as found,
        RunTrace("rollout", "key") as trace,
        trace.seed("0", "t", agent="team") as episode,
    ):
        record_score("exact_match", 1, "correct")
        episode.finish()
    (event,) = found.all[0].events
    assert event.name == "gen_ai.evaluation.result"
    assert dict(event.attributes or {}) == {
        "gen_ai.evaluation.name": "exact_match",
        "gen_ai.evaluation.score.value": 1.0,
        "gen_ai.evaluation.score.label": "correct",
    }


@pytest.mark.promise("tracing:content")
async def test_content_is_written_where_it_is_enabled_masked_and_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    asked = Message(
        "user", (TextPart(f"{SECRET} token=abcd1234"), TextPart("x" * 40_000), ImagePart(b"1234"))
    )
    with collected() as found:
        async with script(says()) as endpoint, painter(endpoint.url) as model:
            await model.complete(replace(call(), messages=(asked,)))
        async with Sandbox(backends=["rag"]) as sandbox:
            await sandbox.execute("rag:search", {"query": "harbour", "top_k": 1})
    chat, tool = map(attributes, found.all)
    (message,) = json.loads(str(chat["gen_ai.input.messages"]))
    assert message["role"] == "user"
    text, cut, image = message["parts"]
    assert text == {"type": "text", "content": f"{SECRET} token=***"}
    assert cut["content"].endswith("… (40000 characters)") and len(cut["content"]) < 20_000
    assert image == {"type": "image", "mime_type": "image/png", "bytes": 4}
    (answer,) = json.loads(str(chat["gen_ai.output.messages"]))
    assert (answer["role"], answer["finish_reason"]) == ("assistant", "stop")
    assert json.loads(str(tool["gen_ai.tool.call.arguments"])) == {"query": "harbour", "top_k": 1}
    assert json.loads(str(tool["gen_ai.tool.call.result"]))["error"] is None


@pytest.mark.promise("tracing:content")
def test_hostile_names_are_short_and_valid_so_that_their_batch_is_not_lost() -> None:
    with collected() as found, RunTrace("synthesis", "key") as trace:
        with trace.seed("0", "\ud800" + "x" * 10_000_000, agent="team") as seed:
            seed.finish()
        encode_spans(found.all).SerializeToString()
    assert str(attributes(found.all[0])["agentflow.seed"]).startswith("?x")
    assert len(str(attributes(found.all[0])["agentflow.seed"])) == 200


@pytest.mark.promise("tracing:no-op")
def test_without_a_provider_operations_do_nothing() -> None:
    with RunTrace("synthesis", "key") as trace, trace.seed("0", "seed_001", agent="team") as seed:
        with mark_spans(node="0"), silent_spans(), role_operation("planner", "plan") as operation:
            operation.content("gen_ai.input.messages", lambda: 1 / 0)
            operation.failed("timeout")
            record_score("f1", 1.0)
        seed.finish()
    assert current_trace() is None


@pytest.mark.promise("tracing:no-op")
@pytest.mark.promise("tracing:extra")
def test_a_core_installation_loads_no_part_of_opentelemetry_and_names_the_extra() -> None:
    code = """
import sys
from agentflow.errors import ConfigurationError
from agentflow.models import Accounts
from agentflow.telemetry import start_tracing, tool_operation
start_tracing()
with tool_operation("bash_run"):
    assert "opentelemetry" not in sys.modules
try:
    start_tracing(True)
except ConfigurationError as error:
    assert str(error).startswith("tracing needs the extra otel: "), error
else:
    raise AssertionError("the SDK is installed")
"""
    subprocess.run([core_python(), "-c", code], env=core_environment(), cwd="/", check=True)
