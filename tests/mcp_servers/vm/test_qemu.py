"""vm tools on a virtual machine: it can be copied while it runs."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Literal

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_servers import ToolTable
from mcp_servers.vm import VmBackend
from runtimes import Runtime
from tests.mcp_servers.live import Live, images
from tests.mcp_servers.vm._machines import machine_of
from tests.runtimes.desktop._waiting import eventually
from tests.runtimes.qemu._guests import guest

WORDS = st.lists(st.text("abcxyz019", min_size=1, max_size=6), min_size=1, max_size=3)


@pytest.fixture(scope="module")
async def computers(
    anyio_backend: Literal["asyncio"], runtime: Runtime, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[ToolTable]:
    """Table whose machines are the tiny guest."""

    async def given_runtime() -> Runtime:
        return runtime

    image: Path = await anyio.to_thread.run_sync(guest, "tiny")
    qemu = {"image": str(image), "memory_mib": 96, "state_dir": str(tmp_path_factory.mktemp("states"))}
    chosen = {"vm": {"machine": "qemu", "qemu": qemu}}
    async with ToolTable([VmBackend()], runtime=given_runtime, settings=chosen) as table:
        yield table


async def begun(table: ToolTable) -> Live:
    """Start a session with its machine."""
    session = await table.call("session_start")
    assert session.ok, session
    live = Live(table, str(session.data["session"]))
    await live.data("vm_screenshot")
    return live


async def typed(live: Live, words: list[str]) -> None:
    """Type words into the guest's shell, each into a file of its own, and wait for the last."""
    line = "; ".join(f"echo {word} >>/root/typed" for word in words)
    await live.data("vm_type", text=f"{line}; sync; echo >/root/settled\n")
    machine = machine_of(live)

    async def settled() -> bool:
        return (await machine.exec(["rm", "/root/settled"])).exit_code == 0

    await eventually(settled)


async def carried(live: Live) -> tuple[bytes, bool]:
    """Return the machine's state: the typed words, and the flag of the last action."""
    evaluator = {"func": "infeasible"}
    judged = await live.data("vm_evaluate", evaluator=evaluator)
    kept = await machine_of(live).exec(["cat", "/root/typed"])
    return kept.stdout, bool(judged["last_action_failed"])


@pytest.mark.promise("vm:fork:qemu")
@pytest.mark.timeout(300)
@settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(before=WORDS, parent_words=WORDS, fork_words=WORDS)
async def test_parent_fork_and_replay_agree_and_siblings_are_isolated(
    computers: ToolTable, before: list[str], parent_words: list[str], fork_words: list[str]
) -> None:
    parent = await begun(computers)
    await typed(parent, before)
    await parent.data("vm_fail")
    forked = await parent.fork()
    assert await carried(parent) == await carried(forked) == (lines(before), True)
    await typed(parent, parent_words)
    await typed(forked, fork_words)
    assert await carried(parent) == (lines(before + parent_words), False)
    assert await carried(forked) == (lines(before + fork_words), False)
    replayed = await begun(computers)
    await typed(replayed, before + fork_words)
    assert await carried(replayed) == await carried(forked)
    for live in (parent, forked, replayed):
        await live.data("session_end")


def lines(words: list[str]) -> bytes:
    return "".join(f"{word}\n" for word in words).encode()


@pytest.mark.promise("vm:qemu")
async def test_the_tools_and_the_evaluation_work_on_a_virtual_machine(computers: ToolTable) -> None:
    live = await begun(computers)
    (before,) = images(await live.call("vm_screenshot"))
    await live.data("vm_type", text="echo $((6*7)) >/root/answer; echo shown\n")
    machine = machine_of(live)

    async def there() -> bool:
        return (await machine.exec(["test", "-s", "/root/answer"])).exit_code == 0

    await eventually(there)
    (after,) = images(await live.call("vm_screenshot"))
    assert before.data != after.data
    for expected, score in (("42", 1.0), ("43", 0.0)):
        evaluator = {
            "func": "exact_match",
            "result": {"type": "vm_file", "path": "/root/answer"},
            "expected": {"type": "rule", "rules": {"expected": expected}},
        }
        assert (await live.data("vm_evaluate", evaluator=evaluator))["score"] == score
    kind, message = await live.failure(
        "vm_evaluate",
        evaluator={
            "func": "exact_match",
            "result": {"type": "window"},
            "expected": {"type": "rule", "rules": ""},
        },
    )
    assert kind == "unavailable"
    assert "vm_window_title" in message or "window" in message
    await live.data("session_end")


@pytest.mark.promise("vm:settings")
async def test_invalid_options_of_qemu_are_named(tmp_path: Path) -> None:
    settings = {"vm": {"machine": "qemu", "qemu": {"image": str(tmp_path), "memry_mib": 96}}}
    async with ToolTable([VmBackend()], settings=settings) as table:
        result = await table.call("session_start", {"backends": ["vm"]})
        assert result.error is not None
        assert "memory_mib" in result.error.message
        assert "\n" not in result.error.message
