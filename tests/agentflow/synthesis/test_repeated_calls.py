"""Calls whose results questions need are made again."""

import pytest
from msgspec.structs import replace

from agentflow import Sandbox
from agentflow.engine import BranchSandboxes
from agentflow.synthesis._questions import TreeCalls
from agentflow.team import call_tool
from agentflow.trace import Action, ActionOutcome, MemoryBlobStore, Node, Tree, tree_id
from tests.agentflow.synthesis._grown import SEED, node, page, tree

OWN = tree_id("run", SEED)


class Caller:
    """Executor without workers."""

    async def act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        return await call_tool(sandbox, action, MemoryBlobStore())


async def seen(sandbox: Sandbox, *commands: str) -> Tree:
    """Return the path of some commands with what they printed."""
    nodes: dict[tuple[int, ...], str | Node] = {}
    own = await sandbox.fork()
    for depth, command in enumerate(commands, 1):
        path = (0,) * depth
        outcome = await Caller().act(own, Action("bash_run", {"command": command}))
        made = node(OWN, path, "", tool="bash_run", arguments={"command": command})
        nodes[path] = replace(made, outcome=outcome)
    await own.close()
    return tree(nodes)


@pytest.mark.promise("synthesis:questions:repeated")
async def test_a_call_is_repeated_after_those_that_it_rests_on_and_its_result_compared() -> None:
    async with Sandbox(backends=["bash"]) as base:
        sandboxes = BranchSandboxes(base, await base.tools("bash_run"))
        grown = await seen(base, "echo 3 > n", "cat n", "date +%N")
        own = page()
        calls = TreeCalls(sandboxes, Caller(), grown, own)
        _, _, counted, clock = (each.id for each in grown.nodes)
        assert await calls.fault(counted) == ""
        assert "another result" in await calls.fault(clock)
        assert f"again/{clock}" in own
