"""In-process calls and calls through a server give the same results."""

import re
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow.sandbox import ResourceLink, ToolResult
from tests.agentflow.sandbox._backends import CounterBackend, EchoBackend
from tests.agentflow.sandbox._hosts import HOSTS, opened

Calls = list[tuple[str, Mapping[str, object]]]

EVERY_KIND: Calls = [
    ("counter:up", {}),
    ("counter_up", {"by": 2}),
    ("up", {"by": "3"}),
    ("up", {"by": -1}),
    ("up", {"by": None}),
    ("up", {"by": 1.5}),
    ("up", {"bye": 1}),
    ("up", {"session": "session-of-nobody"}),
    ("up", {"session": 7}),
    ("counter:down", {}),
    ("conter:up", {}),
    ("python_execute", {"code": "1"}),
    ("", {}),
    ("echo:say", {"text": "grüße 🌍 \x00\x1b"}),
    ("echo:say", {"text": ""}),
    ("echo:say", {}),
    ("echo:say", {"text": ["a"]}),
    ("echo:show", {}),
    ("echo:nothing", {}),
    ("echo:nothing", {"more": 1}),
    ("echo:keep", {"text": "x" * 1000}),
    ("echo:crash", {}),
    *(
        ("echo:refuse", {"kind": kind})
        for kind in ("denied", "timeout", "out_of_memory", "busy", "cannot_fork")
    ),
    ("session:fork", {"session": "session-of-nobody"}),
    ("session:end", {"sesion": "x"}),
]


def plain(result: ToolResult) -> object:
    """The result without what differs from session to session."""
    parts = [
        (part.name, part.mime, part.size) if isinstance(part, ResourceLink) else part for part in result.parts
    ]
    message = result.error and re.sub(r"session-[0-9a-f]{24}", "session-X", result.error.message)
    return result.ok, result.data, result.error and result.error.kind, message, parts


async def outcomes(calls: Calls) -> list[list[object]]:
    """Results of the calls on each host."""
    behind: list[list[object]] = []
    for host in HOSTS:
        async with opened(host, CounterBackend(), EchoBackend()) as sandbox:
            behind.append([plain(result) for result in await sandbox.execute_batch(calls)])
    return behind


@pytest.mark.promise("sandbox:hosts-agree")
async def test_every_kind_of_result_and_error_is_the_same_on_both_hosts() -> None:
    here, server = await outcomes(EVERY_KIND)
    assert server == here


@pytest.mark.promise("sandbox:hosts-agree")
async def test_the_tools_are_the_same_on_both_hosts() -> None:
    listings: list[object] = []
    for host in HOSTS:
        async with opened(host, CounterBackend(), EchoBackend()) as sandbox:
            tools = await sandbox.tools()
            listings.append([(t.function(), t.prompt(), t.route, t.output_schema, t.hints) for t in tools])
    assert listings[0] == listings[1]
    assert "session" not in str(listings[0]), "the sandbox names its session by itself"


texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)
arguments = st.dictionaries(
    st.sampled_from(["by", "text", "kind", "x"]),
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), texts, st.lists(texts, max_size=2)),
    max_size=2,
)


@pytest.mark.promise("sandbox:hosts-agree")
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["counter:up", "echo:say", "echo:nothing", "echo:keep", "say", "ech:say"]),
            arguments,
        ),
        max_size=8,
    )
)
async def test_random_calls_give_the_same_results_on_both_hosts(calls: Calls) -> None:
    here, server = await outcomes(calls)
    assert server == here
