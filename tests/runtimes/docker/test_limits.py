"""Limits of containers: typed outcomes with the output so far, and no process left."""

import pytest

from runtimes.docker import DockerRuntime
from tests.runtimes.process.limit_run import EXCESSES, Excess, key, observe

_PLAIN = ("wall in a tree of processes", "CPU", "file size", "disk", "output")
_ALWAYS = (
    "python: processes",
    "bash: fork bomb",
    "exec: memory",
    "python: memory",
    "bash: memory of a child",
)
CHOSEN = [excess for excess in EXCESSES if excess.name in _PLAIN or key(excess) in _ALWAYS]


@pytest.mark.promise("docker:limits")
@pytest.mark.parametrize("excess", CHOSEN, ids=key)
async def test_exceeding_a_limit_is_a_typed_outcome(docker: DockerRuntime, excess: Excess) -> None:
    await check(docker, excess)


@pytest.mark.promise("docker:limits")
@pytest.mark.parametrize("excess", [excess for excess in CHOSEN if key(excess) in _ALWAYS], ids=key)
async def test_exceeding_a_limit_without_an_engine_is_a_typed_outcome(
    runc: DockerRuntime, excess: Excess
) -> None:
    await check(runc, excess)


async def check(runtime: DockerRuntime, excess: Excess) -> None:
    seen = await observe(runtime, excess)
    assert seen.outcome == excess.outcome, seen
    assert seen.detail
    assert "before" in seen.output or seen.printed > 1000, seen
    assert seen.processes <= 0, seen
    assert seen.again == "again"
    assert seen.state == ("" if seen.state_lost else "kept")
    if excess.keeps_state is not None:
        assert seen.state_lost is not excess.keeps_state, seen
