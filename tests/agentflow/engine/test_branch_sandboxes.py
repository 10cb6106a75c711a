"""Isolation of branches: with forks, without forks, and when sandboxes are killed."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import psutil
import pytest
from pydantic import Field

from agentflow.engine import BranchSandboxes, Grower, GrowthSettings, Unforkable
from agentflow.errors import CannotFork
from agentflow.sandbox import Backend, Sandbox, SandboxSettings, Session, tool
from agentflow.trace import Action, ActionOutcome, Isolation, PlanRequest, Proposal, Tree, Verdict
from mcp_servers import Output
from tests.agentflow.engine._functions import SEED, Act, JudgeBy, PlanBy, fresh_page, stateful_plan
from tests.mcp_servers._balancer import TOKEN, Balanced, balanced

SMALL = GrowthSettings(max_depth=3, branching_factor=2, depth_threshold=2)


class Count(Output):
    """A count."""

    value: int
    """Current count."""


class Counter(Backend):
    """Backend whose session counts and cannot be copied."""

    name = "counter"

    async def initialize(self, session: Session, settings: Mapping[str, object]) -> None:
        session.put([0])

    async def fork(self, session: Session, forked: Session) -> None:
        raise CannotFork("counters can't be copied")

    @tool()
    async def add(self, session: Session, n: Annotated[int, Field(description="How many.")]) -> Count:
        """Add."""
        counts: list[int] = session.get(list)  # pyright: ignore[reportUnknownVariableType]
        counts[0] += n
        return Count(value=counts[0])

    @tool(idempotent=True)
    async def put(self, session: Session, n: Annotated[int, Field(description="How many.")]) -> Count:
        """Put."""
        counts: list[int] = session.get(list)  # pyright: ignore[reportUnknownVariableType]
        counts[0] = n
        return Count(value=counts[0])


def count_with(verb: str) -> PlanBy:
    def plan(request: PlanRequest) -> list[Proposal]:
        last = request.path[-1].call.arguments["n"] if request.path else 1
        return [Proposal("", f"counter_{verb}", {"n": 10 * last + n}) for n in range(request.count)]

    return PlanBy(plan)


async def counted(
    verb: str, unforkable: Unforkable = Unforkable.CHAIN, page: dict[str, bytes] | None = None
) -> Tree:
    settings = GrowthSettings(max_depth=3, branching_factor=2, depth_threshold=2, on_unforkable=unforkable)
    async with Sandbox(backends=[Counter()]) as base:
        growing = Grower(
            settings,
            run="run",
            planner=count_with(verb),
            executor=Act(),
            verifier=JudgeBy(),
            sandboxes=BranchSandboxes(base, await base.tools("counter")),
        )
        return await growing.grow(SEED, fresh_page(page))


def told(tree: Tree) -> list[tuple[int, str, str, str]]:
    return [
        (node.depth, node.observation.text, node.isolation.value, node.failure.kind if node.failure else "")
        for node in tree.nodes[1:]
    ]


@pytest.mark.promise("growth:replay")
async def test_an_unforkable_sandbox_is_replayed_if_that_is_safe() -> None:
    assert told(await counted("put")) == [
        (1, "10", "fork", ""), (1, "11", "fork", ""),
        (2, "100", "replay", ""), (2, "101", "fork", ""), (2, "110", "replay", ""), (2, "111", "fork", ""),
        (3, "1000", "fork", ""), (3, "1010", "fork", ""), (3, "1100", "fork", ""), (3, "1110", "fork", ""),
    ]  # fmt: skip


@pytest.mark.promise("growth:chain")
async def test_if_replaying_is_unsafe_the_first_child_continues_alone() -> None:
    journal: dict[str, bytes] = {}
    tree = await counted("add", page=journal)
    assert told(tree)[:6] == [
        (1, "10", "fork", ""), (1, "11", "fork", ""),
        (2, "110", "fork", ""), (2, "", "shared", "cannot_fork"),
        (2, "121", "fork", ""), (2, "", "shared", "cannot_fork"),
    ]  # fmt: skip
    del journal["act/0-0"], journal["node/0-0"]
    again = await counted("add", page=journal)
    assert told(again) == told(tree)


@pytest.mark.promise("growth:refuse")
async def test_with_refuse_no_child_is_tried() -> None:
    tree = await counted("add", Unforkable.REFUSE)
    assert [entry[3] for entry in told(tree)] == ["", "", *["cannot_fork"] * 4]
    assert all(node.verdict is Verdict.ERROR for node in tree.nodes if node.depth == 2)
    assert "counters can't be copied" in str(tree.nodes[-1].failure)


@pytest.mark.promise("growth:shared")
async def test_stateless_tools_share_a_sandbox_and_fork_nothing(tmp_path: Path) -> None:
    documents = tmp_path / "documents.jsonl"
    documents.write_text('{"id": "a", "title": "A", "text": "the sea and the tide"}\n', encoding="utf-8")

    def plan(request: PlanRequest) -> list[Proposal]:
        return [
            Proposal("", "rag_search", {"query": f"sea {n} {len(request.path)}"})
            for n in range(request.count)
        ]

    async with Sandbox(SandboxSettings(backends={"rag": {"index_path": str(documents)}})) as base:
        growing = Grower(
            SMALL,
            run="run",
            planner=PlanBy(plan),
            executor=Act(),
            verifier=JudgeBy(),
            sandboxes=BranchSandboxes(base, await base.tools("rag")),
        )
        tree = await growing.grow(SEED, fresh_page())
    assert {node.isolation for node in tree.nodes} == {Isolation.SHARED}


class KillOnce(Act):
    """Kills processes of later sandboxes before the n-th action and some that follow."""

    def __init__(self, at: int, which: str, times: int = 1) -> None:
        super().__init__()
        self.at = at
        self.which = which
        self.times = times
        self._others = set(psutil.Process().children(recursive=True))

    async def act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        if self.times and len(self.acted) >= self.at:
            self.times -= 1
            for process in set(psutil.Process().children(recursive=True)) - self._others:
                # Some end by themselves while they are looked at.
                with suppress(psutil.NoSuchProcess):
                    if self.which == "all" or self.which in " ".join(process.cmdline()):
                        process.kill()
        return await super().act(sandbox, action)


async def grown(
    executor: Act, journal: dict[str, bytes] | None = None, settings: GrowthSettings | None = None
) -> Tree:
    async with Sandbox(backends=["bash", "code"]) as base:
        growing = Grower(
            settings or SMALL,
            run="run",
            planner=PlanBy(stateful_plan),
            executor=executor,
            verifier=JudgeBy(),
            sandboxes=BranchSandboxes(base, await base.tools(["bash_run", "code_run"])),
        )
        return await growing.grow(SEED, fresh_page(journal))


@pytest.mark.promise("growth:killed")
@pytest.mark.parametrize("at", [0, 2, 5, 9])
@pytest.mark.parametrize("which", ["all", "bash"])
async def test_killing_the_sandboxes_does_not_change_the_tree(at: int, which: str) -> None:
    assert await grown(KillOnce(at, which)) == await grown(Act())


@pytest.mark.promise("growth:killed")
@pytest.mark.parametrize("at", [0, 1, 3])
async def test_killing_the_sandboxes_during_a_replay_does_not_change_the_tree(at: int) -> None:
    journal: dict[str, bytes] = {}
    whole = await grown(Act(), journal)
    kept = dict(list(journal.items())[:15])
    executor = KillOnce(at, "all")
    assert await grown(executor, kept) == whole
    assert executor.times == 0


class KillServer(Act):
    """Kills the server of the n-th action after it."""

    def __init__(self, both: Balanced, at: int) -> None:
        super().__init__()
        self.at = at
        self.killed = ""
        self._begun = False
        self._both = both

    async def act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
        outcome = await super().act(sandbox, action)
        if len(self.acted) > self.at and not self._begun:
            self._begun = True
            info = (await sandbox.list_sessions())[0]
            self.killed = info.session.rpartition("-")[2]
            self._both.running[self.killed].process.kill()
        return outcome


@pytest.mark.promise("growth:killed")
@pytest.mark.parametrize("at", [0, 4])
async def test_killing_one_of_two_servers_behind_a_balancer_does_not_change_the_tree(at: int) -> None:
    async with balanced("bash", "code") as both, Sandbox(both.url, token=TOKEN) as base:
        executor = KillServer(both, at)
        growing = Grower(
            SMALL,
            run="run",
            planner=PlanBy(stateful_plan),
            executor=executor,
            verifier=JudgeBy(),
            sandboxes=BranchSandboxes(base, await base.tools(["bash_run", "code_run"])),
        )
        tree = await growing.grow(SEED, fresh_page(None))
    assert executor.killed in both.running
    assert tree == await grown(Act())


@pytest.mark.promise("growth:killed")
async def test_killing_the_sandboxes_twice_in_a_row_does_not_change_the_tree() -> None:
    only = GrowthSettings(max_depth=1, branching_factor=1)
    assert await grown(KillOnce(0, "all", times=2), settings=only) == await grown(Act(), settings=only)
