"""Recovery children: the repair of a failed or empty node, from the state after it."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from msgspec.structs import replace

from agentflow.engine import GrowthSettings
from agentflow.errors import ErrorKind
from agentflow.journal import Page
from agentflow.sandbox import Sandbox, register_api_tool
from agentflow.sandbox._api_tools import registered_tools
from agentflow.trace import (
    Action,
    Failure,
    Judgement,
    JudgementRequest,
    PlanRequest,
    Proposal,
    Reply,
    Tree,
    Verdict,
)
from tests._pages import page_over
from tests.agentflow.engine._functions import SEED, Act, JudgeBy, PlanBy, fresh_page, grower

ONE = GrowthSettings(max_depth=4, branching_factor=2, depth_threshold=1, recovery_share=0.5)


def judge(request: JudgementRequest) -> Verdict:
    if request.step.error:
        return Verdict.ERROR
    return Verdict.NEW if request.step.text.strip() else Verdict.EMPTY


def shape(tree: Tree) -> list[tuple[int, str]]:
    return [(node.depth, node.verdict.value) for node in tree.nodes]


@pytest.mark.promise("growth:recovery")
async def test_a_failed_node_gets_one_child_that_sees_the_failure_and_its_state() -> None:
    def plan(request: PlanRequest) -> list[Proposal]:
        if not request.path:
            commands = ["echo fine", "echo left > note; cat missing"]
        elif request.path[-1].verdict is Verdict.ERROR:
            commands = ["cat note"] * 2
        else:
            commands = [f"echo step {len(request.path)} of {request.path[0].call.arguments['command'][:9]}"]
        return [Proposal("", "bash_run", {"command": command}) for command in commands]

    planner = PlanBy(plan)
    async with grower(planner, settings=ONE, verifier=JudgeBy(judge)) as growing:
        tree = await growing.grow(SEED, fresh_page())
    failed, repaired = tree.nodes[2], tree.nodes[4]
    assert (failed.verdict, repaired.parent, repaired.observation.text.strip()) == (
        Verdict.ERROR,
        failed.id,
        "left",
    )
    assert tree.children[failed.id] == (repaired.id,) and tree.children[repaired.id]
    asked = next(each for each in planner.requests if each.path and each.path[-1].verdict is Verdict.ERROR)
    assert (asked.count, asked.path[-1].error) == (1, "exit code 1")


def _sequence(request: PlanRequest, fails: Callable[[int], bool]) -> list[Proposal]:
    depth = len(request.path)
    spot = "-".join(str(step.call.arguments["number"]) for step in request.path)
    return [
        Proposal(
            "",
            "shelf_read",
            {"number": each, "spot": f"{spot}/{depth}/{len(request.taken)}", "fails": fails(depth)},
        )
        for each in range(request.count)
    ]


@pytest.fixture
def shelf() -> Iterator[None]:
    """A stateless tool that fails when it is told to."""
    before = dict(registered_tools)

    @register_api_tool("shelf:read", read_only=True)
    def read(number: int, spot: str, fails: bool) -> str:
        """Read."""
        if fails:
            raise ValueError("the shelf is empty")
        return f"Book {number} of {spot} names ports, lights and keepers."

    assert callable(read)
    yield
    registered_tools.clear()
    registered_tools.update(before)


async def grown(
    settings: GrowthSettings,
    fails: Callable[[int], bool],
    page: Page | None = None,
    *,
    judge_by: JudgeBy | None = None,
    act: Act | None = None,
) -> Tree:
    planner = PlanBy(partial(_sequence, fails=fails))
    async with grower(
        planner,
        settings=settings,
        verifier=judge_by or JudgeBy(),
        executor=act,
        backends=(),
        tools=("shelf:read",),
    ) as growing:
        return await growing.grow(SEED, page or fresh_page())


@pytest.mark.promise("growth:recovery")
@pytest.mark.parametrize(
    ("share", "recovered"), [(0.0, 0), (0.1, 1), (0.25, 3), (1.0, 4)], ids=["off", "one", "three", "all"]
)
async def test_recoveries_are_limited_in_path_order_and_are_not_repeated(
    shelf: None, share: float, recovered: int
) -> None:
    settings = GrowthSettings(max_depth=4, branching_factor=2, depth_threshold=2, recovery_share=share)
    assert settings.recoveries == int(share * (2 + 4 + 4 + 4))
    tree = await grown(settings, lambda depth: depth > 0)
    failed = [node for node in tree.nodes if node.depth == 2]
    assert [len(tree.children[node.id]) for node in failed] == [1] * recovered + [0] * (4 - recovered)
    # A repair that fails is not repaired again.
    assert not [node for node in tree.nodes if node.depth == 4]


@pytest.mark.promise("growth:recovery")
async def test_what_was_not_tried_or_not_judged_is_not_repaired(shelf: None) -> None:
    class Refused(Act):
        async def act(self, sandbox: Sandbox, action: Action):  # noqa: ANN202
            outcome = await super().act(sandbox, action)
            return replace(outcome, failure=Failure(ErrorKind.CANNOT_FORK, "not tried"))

    class Silent(JudgeBy):
        async def judge(self, request: JudgementRequest) -> Reply[Judgement]:
            return Reply(failure=Failure("timeout", "no answer"))

    for judge_by, act in ((None, Refused()), (Silent(), None)):
        tree = await grown(ONE, lambda _: False, judge_by=judge_by, act=act)
        assert shape(tree) == [(0, "new"), (1, "error"), (1, "error")]


@pytest.mark.promise("growth:recovery")
async def test_a_tree_with_recoveries_is_the_same_whichever_effects_were_recorded(shelf: None) -> None:
    settings = GrowthSettings(max_depth=4, branching_factor=2, depth_threshold=2, recovery_share=0.2)
    entries: dict[str, bytes] = {}
    tree = await grown(settings, lambda depth: depth == 1, page_over(entries))
    assert sum(node.verdict is Verdict.ERROR for node in tree.nodes) > 3
    recorded = list(entries.items())
    for end in range(0, len(recorded), 3):
        assert await grown(settings, lambda depth: depth == 1, page_over(dict(recorded[:end]))) == tree
