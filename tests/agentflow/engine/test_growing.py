"""Trees have their configured shape, whatever the timing, and resume after a crash."""

from collections.abc import Iterator
from dataclasses import replace as replace_fields
from functools import partial

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agentflow.actors import together
from agentflow.engine import BranchSandboxes, Grower, GrowthSettings
from agentflow.errors import RunStopped, StopCause
from agentflow.sandbox import Sandbox, register_api_tool
from agentflow.sandbox._api_tools import registered_tools
from agentflow.trace import (
    Action,
    ActionOutcome,
    Failure,
    Isolation,
    Node,
    Plan,
    PlanRequest,
    Proposal,
    Reply,
    Seed,
    Verdict,
)
from tests._pages import SlowDisk
from tests.agentflow.engine._functions import (
    SEED,
    Act,
    JudgeBy,
    PlanBy,
    fresh_page,
    grower,
    stateful_plan,
    words_of,
)

SMALL = GrowthSettings(max_depth=3, branching_factor=2, depth_threshold=2)


@pytest.mark.promise("growth:shape")
async def test_a_tree_branches_above_the_threshold_and_continues_in_chains_below_it() -> None:
    planner = PlanBy(stateful_plan)
    async with grower(planner) as growing:
        tree = await growing.grow(SEED, fresh_page())
    depths = [node.depth for node in tree.nodes]
    assert [depths.count(depth) for depth in range(6)] == [1, 2, 4, 8, 8, 8]
    assert tree.stalled == {}
    assert all(node.verdict is Verdict.NEW for node in tree.nodes)


@pytest.mark.promise("growth:one_call")
async def test_a_node_asks_its_planner_once_for_all_its_children() -> None:
    planner = PlanBy(stateful_plan)
    async with grower(planner) as growing:
        tree = await growing.grow(SEED, fresh_page())
    assert len(planner.requests) == sum(bool(tree.children[node.id]) for node in tree.nodes) == 23
    assert [request.count for request in planner.requests[:2]] == [2, 2]
    assert tree.usage["planner"].calls == 23


@pytest.mark.promise("growth:isolation")
async def test_nodes_report_their_isolation() -> None:
    def plan(request: PlanRequest) -> list[Proposal]:
        return [
            Proposal(
                "look",
                "session_list" if len(request.path) == 9 else "bash_run",
                {"command": f"echo {n} >> a; cat a"},
            )
            for n in range(request.count)
        ]

    async with grower(PlanBy(plan), settings=SMALL) as growing:
        tree = await growing.grow(SEED, fresh_page())
    assert {node.isolation for node in tree.nodes[1:]} == {Isolation.FORK}


@pytest.mark.promise("growth:branches")
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**16), st.integers(1, 3), st.integers(1, 3))
async def test_every_observation_depends_on_its_path_alone(salt: int, branching: int, threshold: int) -> None:
    def plan(request: PlanRequest) -> list[Proposal]:
        return [
            Proposal(
                one.intent,
                one.tool,
                {key: f"{value}".replace("marks", f"marks{salt}") for key, value in one.arguments.items()},
            )
            for one in stateful_plan(request)
        ]

    shape = GrowthSettings(max_depth=3, branching_factor=branching, depth_threshold=threshold)
    async with grower(PlanBy(plan), settings=shape) as growing:
        tree = await growing.grow(SEED, fresh_page())
    act = Act()
    async with Sandbox(backends=["bash", "code"]) as base:
        for leaf in tree.leaves():
            async with await base.fork() as alone:
                for node in tree.path(leaf.id)[1:]:
                    assert node.action is not None
                    outcome = await act.act(alone, node.action)
                    assert outcome.observation == node.observation


@pytest.mark.promise("growth:deterministic")
async def test_delays_and_concurrent_trees_do_not_change_a_tree() -> None:
    class Slow(PlanBy):
        async def plan(self, request: PlanRequest) -> Reply[Plan]:
            for _ in range(len(repr(request.path)) % 7):
                await anyio.lowlevel.checkpoint()
            return await super().plan(request)

    other = Seed(index=1, id="seed_002", content="the moon")
    async with grower(PlanBy(stateful_plan), settings=SMALL) as growing:
        alone = await growing.grow(SEED, fresh_page())
    async with grower(Slow(stateful_plan), settings=SMALL) as growing:
        both = await together(
            [partial(growing.grow, other, fresh_page()), partial(growing.grow, SEED, fresh_page())]
        )
    assert both[1] == alone


@pytest.mark.promise("growth:resume")
@pytest.mark.parametrize("kept", [0, 7, 19, 31])
async def test_recorded_effects_are_not_repeated_and_the_tree_is_the_same(kept: int) -> None:
    journal: dict[str, bytes] = {}
    async with grower(PlanBy(stateful_plan), settings=SMALL) as growing:
        whole = await growing.grow(SEED, fresh_page(journal))
    before = dict(list(journal.items())[:kept])
    planner, executor = PlanBy(stateful_plan), Act()
    async with grower(planner, settings=SMALL, executor=executor) as growing:
        again = await growing.grow(SEED, fresh_page(dict(before)))
    assert again == whole
    assert len(planner.requests) == sum(key.startswith("plan/") for key in journal.keys() - before.keys())


@pytest.mark.promise("growth:resume")
async def test_an_observer_is_told_which_actions_were_recorded_before() -> None:
    seen: list[tuple[str, bool]] = []
    page = fresh_page()

    def observe(_: Seed, node: Node, recalled: bool) -> None:
        seen.append((node.id, recalled))

    async with grower(PlanBy(stateful_plan), settings=SMALL) as growing:
        observed = replace_fields(growing, observer=observe)
        await observed.grow(SEED, page)
        tree = await observed.grow(SEED, page)
    first, second = seen[: len(tree.nodes)], seen[len(tree.nodes) :]
    assert not any(recalled for _, recalled in first)
    assert [node for node, recalled in second if not recalled] == [tree.nodes[0].id]


@pytest.mark.promise("growth:diverged")
async def test_a_diverging_node_is_listed_and_keeps_its_observation() -> None:
    def plan(request: PlanRequest) -> list[Proposal]:
        return [Proposal("", "bash_run", {"command": f"echo $RANDOM$RANDOM$RANDOM {len(request.path)}"})]

    chain = GrowthSettings(max_depth=3, branching_factor=1)
    journal: dict[str, bytes] = {}
    async with grower(PlanBy(plan), settings=chain) as growing:
        whole = await growing.grow(SEED, fresh_page(journal))
    for key in ("act/0-0-0", "node/0-0-0"):
        del journal[key]
    async with grower(PlanBy(plan), settings=chain) as growing:
        again = await growing.grow(SEED, fresh_page(journal))
    assert again.diverged == tuple(node.id for node in again.nodes[1:3])
    assert [words_of(again)[node.id] for node in again.nodes[:3]] == [*words_of(whole).values()][:3]


@pytest.mark.promise("growth:only_new_grows")
async def test_only_new_nodes_grow() -> None:
    def judge(request: object) -> Verdict:
        return next(verdicts)

    verdicts = iter([Verdict.NEW, Verdict.REPEATS, Verdict.EMPTY, Verdict.OFF_TOPIC, *[Verdict.NEW] * 9])
    settings = replace(SMALL, recovery_share=0)
    async with grower(PlanBy(stateful_plan), settings=settings, verifier=JudgeBy(judge)) as growing:
        tree = await growing.grow(SEED, fresh_page())
    assert [(node.depth, node.verdict.value) for node in tree.nodes] == [
        (0, "new"), (1, "new"), (1, "repeats"), (2, "empty"), (2, "off_topic"),
    ]  # fmt: skip


@pytest.mark.promise("growth:seen_elsewhere")
@pytest.mark.parametrize(("says", "seen"), [("seq 50", True), ("echo ok", False)])
async def test_the_verifier_learns_that_an_earlier_node_returned_the_same_text(says: str, seen: bool) -> None:
    def plan(request: PlanRequest) -> list[Proposal]:
        return [Proposal("", "bash_run", {"command": f"{says} # {n}"}) for n in range(request.count)]

    verifier = JudgeBy()
    async with grower(PlanBy(plan), settings=GrowthSettings(max_depth=1), verifier=verifier) as growing:
        await growing.grow(SEED, fresh_page())
    assert [request.seen_elsewhere for request in verifier.requests] == [False, seen]


@pytest.mark.promise("growth:failed_planner")
async def test_a_node_whose_planner_fails_reports_it_and_the_rest_grows() -> None:
    class Failing(PlanBy):
        async def plan(self, request: PlanRequest) -> Reply[Plan]:
            if len(request.path) == 1 and "bash" in request.path[0].call.tool:
                return Reply(failure=Failure("unavailable", "no answer after 4 attempts"))
            return await super().plan(request)

    async with grower(Failing(stateful_plan), settings=SMALL) as growing:
        tree = await growing.grow(SEED, fresh_page())
    assert list(tree.stalled.values()) == ["planner failed: no answer after 4 attempts"]
    assert len(tree.nodes) == 1 + 2 + 2 + 2


@pytest.mark.promise("growth:stopped")
async def test_a_run_that_stops_raises_run_stopped_and_leaves_no_sandbox() -> None:
    class Stopping(Act):
        async def act(self, sandbox: Sandbox, action: Action) -> ActionOutcome:
            if len(self.acted) == 4:
                raise RunStopped(StopCause.BUDGET, "the budget is used up")
            return await super().act(sandbox, action)

    journal: dict[str, bytes] = {}
    async with Sandbox(backends=["bash", "code"]) as base:
        growing = Grower(
            SMALL,
            run="run",
            planner=PlanBy(stateful_plan),
            executor=Stopping(),
            verifier=JudgeBy(),
            sandboxes=BranchSandboxes(base, await base.tools(["bash_run", "code_run"])),
        )
        with pytest.raises(RunStopped, match="used up"):
            await growing.grow(SEED, fresh_page(journal))
        listing = await base.execute("session_list", {})
        assert listing.data["sessions"] == []
    assert journal


@pytest.fixture
def sent() -> Iterator[list[str]]:
    """Letters sent by a tool that changes the world."""
    before, sent = dict(registered_tools), list[str]()

    @register_api_tool("mail:send")
    def send(text: str) -> str:
        """Send a letter.

        :param text: what it says
        """
        sent.append(text)
        return text

    assert callable(send)
    yield sent
    registered_tools.clear()
    registered_tools.update(before)


@pytest.mark.promise("journal:page:noted")
async def test_an_action_that_may_change_the_world_waits_until_earlier_results_are_on_disk(
    sent: list[str],
) -> None:
    disk = SlowDisk()
    once = GrowthSettings(max_depth=1, branching_factor=1, depth_threshold=1)
    planner = PlanBy(lambda _: [Proposal("write", "mail_send", {"text": "Hello."})])
    async with (
        grower(planner, settings=once, backends=(), tools=("mail:send",)) as growing,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(growing.grow, SEED, disk.page)
        await anyio.wait_all_tasks_blocked()
        assert (len(disk.writing), sent) == (1, [])
        disk.catch_up()
    assert sent == ["Hello."]


@pytest.mark.promise("team:planner:told")
async def test_a_planner_is_told_how_many_actions_can_follow_and_where_inputs_are() -> None:
    planner = PlanBy(stateful_plan)
    settings = GrowthSettings(max_depth=3, branching_factor=2, depth_threshold=1, inputs=("/data: a folder",))
    async with grower(planner, settings=settings) as growing:
        await growing.grow(SEED, fresh_page())
    assert {(len(request.path), request.remaining) for request in planner.requests} == {
        (0, 3),
        (1, 2),
        (2, 1),
    }
    assert {request.inputs for request in planner.requests} == {("/data: a folder",)}
